"""What a training leaves behind, and the file in which it can be read while it goes on.

Taught in ``notebooks/05_training_loop.ipynb``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict


class History(TypedDict):
    """What a training returns: plain numbers, which pickle, turn into JSON, and pass ``torch.load`` as it is.

    A step is ``{step, epoch, train_loss, train_loss_by_rank}``; an epoch is ``{epoch, train_loss, train_loss_by_rank,
    eval_loss, eval_accuracy, seconds, samples_per_second}``. Losses are means over samples, accuracy is a fraction,
    seconds are those of training alone, samples a second those of all ranks together. ``resumed`` lists the steps
    after which the run went on from a checkpoint.
    """

    config: dict
    world_size: int
    global_batch: int
    device: str
    steps: list[dict]
    epochs: list[dict]
    resumed: list[int]


def write_records(path: Path, records: Iterable[dict], append: bool = True) -> None:
    """Write ``records`` to ``path``, a line each, at its end or in place of what is there."""
    lines = "".join(f"{json.dumps(record)}\n" for record in records)
    if append:
        with open(path, "a") as file:
            file.write(lines)
    else:  # under another name first, so that a reader never finds half of it
        new = path.with_name(f"{path.name}.new")
        new.write_text(lines)
        os.replace(new, path)


def read_history(path: str | os.PathLike) -> dict:
    """Return the ``steps``, ``epochs`` and ``resumed`` of a ``history.jsonl``, as a :class:`History` has them."""
    records = [json.loads(line) for line in Path(path).read_text().splitlines()]
    return {
        "steps": [record for record in records if "step" in record],
        "epochs": [record for record in records if "eval_loss" in record],
        "resumed": [record["resumed"] for record in records if "resumed" in record],
    }
