"""Checkpoint files: written whole or not at all, and the newest that can be read.

Taught in ``notebooks/10_beyond_one_machine.ipynb``.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

FORMAT = "ddp_tutorial checkpoint 1"


def write_checkpoint(folder: Path, step: int, state: dict, keep: int) -> Path:
    """Write ``state`` to ``folder/step-<step>.pt`` and remove all but the last ``keep`` files. Raises ``OSError``."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob("step-*.new"):  # of a run that was killed while it wrote
        leftover.unlink()
    path = folder / f"step-{step:08d}.pt"
    new = path.with_suffix(".new")
    try:
        with open(new, "wb") as file:
            torch.save({"format": FORMAT, **_on_cpu(state)}, file)
            file.flush()
            os.fsync(file.fileno())  # on the disk before it gets its name: that name promises that the file is whole
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    # Of those up to this one: newer ones are damaged or foreign, and must not push out what is whole.
    for old in sorted(file for file in folder.glob("step-*.pt") if file.name <= path.name)[:-keep]:
        old.unlink()
    return path


def newest_checkpoint(folder: Path) -> tuple[Path | None, dict | None, list[str]]:
    """Return path and content of the newest checkpoint in ``folder`` that is whole, and a line for each passed over."""
    passed_over = []
    for path in sorted(folder.glob("step-*.pt"), reverse=True):
        try:
            state = torch.load(path, map_location="cpu")
            if not isinstance(state, dict) or state.get("format") != FORMAT:
                raise ValueError("it was not written by Checkpoints")
        except Exception as error:  # whatever a damaged file makes of the reader, the one before it may be whole
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].split(". ")[0]
            if isinstance(error, pickle.UnpicklingError):  # torch's own words advise to switch the protection off
                reason = "it holds something else than tensors and plain values"
            passed_over.append(f"{path} is damaged or not a checkpoint, and is passed over: {reason}")
        else:
            return path, state, passed_over
    return None, None, passed_over


def _on_cpu(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.detach().cpu()
    if isinstance(state, Mapping):
        return {key: _on_cpu(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_on_cpu(value) for value in state)
    return state
