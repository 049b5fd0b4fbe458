"""The check of the final piece: it says everything that is wrong. Taught in ``notebooks/11_capstone.ipynb``."""

from __future__ import annotations

import contextlib
import io
import os
import random
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from ..ranks import Ranks
from . import Hint, _codes
from .complaints import EPOCHS, distance, wrong_with

BATCH = 12
SAMPLES, HELD_OUT = 44, 15  # the last batch of an epoch is smaller, and two ranks cannot share 15 evenly


class Counted(TensorDataset):
    """A data set that notes the index of each sample it hands out, or raises if it is ``broken``."""

    def __init__(self, *tensors: torch.Tensor, broken: bool = False) -> None:
        super().__init__(*tensors)
        self.used, self.broken = [], broken

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        if self.broken:
            raise OSError(f"sample {index} cannot be read")
        self.used.append(int(index))
        return super().__getitem__(index)


def check(answer: Callable, ranks: Ranks) -> None:
    """Train with ``answer`` on one and on both of ``ranks``, and raise :class:`Hint` that lists all that is wrong."""
    if ranks.world_size != 2:
        raise ValueError("the final piece is checked with Ranks(world_size=2, device='cpu')")
    if any("NotImplementedError" in code.co_names for code in _codes(answer)):
        print("not yet: put your code in place of the line with NotImplementedError, run that cell, then this one")
        return
    samples, held_out = ((torch.randn(n, 64), torch.randint(0, 10, (n,))) for n in (SAMPLES, HELD_OUT))
    held_out[0][::2] *= 4  # so that the loss of every second sample is not that of all
    seed, runs = random.randrange(1000), []
    # One process; both ranks; both with a rate of 0, so that the true numbers are known; both with another seed, and
    # with other samples on rank 1 than on rank 0, so that only an exchange keeps their weights equal.
    settings = ((1, 0.2, seed, 0.0), (2, 0.2, seed, 0.0), (2, 0.0, seed, 0.0), (2, 0.2, seed + 1, 1.0))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        for size, *setting in settings:
            runs.append(ranks.run(_attempt, (answer, size, samples, held_out, folder, *setting))[:size])
        stayed = ranks.run(_after_an_error, (answer, samples, held_out, folder))
    wrong = list(wrong_with(*runs, samples, held_out))
    if any(stayed) and not any(what.startswith("a process") for rank in runs[1] for what in rank["left"]):
        who = " and ".join(f"rank {rank}" for rank, in_group in enumerate(stayed) if in_group)
        wrong.append(f"leftovers: after an error in the data the group still has {who}. What runs in every case?")
    if wrong:
        raise Hint("\n- ".join([f"still wrong, {len(wrong)} in all:", *wrong]))
    print(f"right: two ranks end with the weights of one process, to {distance(runs[0][0], runs[1][0])}")
    print("each sample was used once an epoch, the numbers are those of all samples, and nothing is left behind")


def _after_an_error(answer, samples, held_out, folder) -> bool:
    """Train on data that cannot be read, and return whether this rank is in a group afterwards."""
    out = Path(tempfile.mkdtemp(dir=folder))
    with contextlib.suppress(Exception):
        answer(Counted(*samples, broken=True), Counted(*held_out), out, EPOCHS, BATCH, 0.2, 0)
    return dist.is_initialized()


def _attempt(answer, size, samples, held_out, folder, lr, seed, shift) -> dict | None:
    """Train on this rank, if it is one of the first ``size``, and return what came of it."""
    rank = int(os.environ["RANK"])
    if rank >= size:
        return None
    os.environ["WORLD_SIZE"] = str(size)
    out = Path(tempfile.mkdtemp(dir=folder))  # one for each rank, to see who wrote what
    data, held_out = Counted(samples[0] + shift * rank, samples[1]), Counted(*held_out)
    torch.optim.SGD([torch.zeros(1)])  # the first optimizer loads torch's compiler, which sets a variable
    variables, threads = dict(os.environ), set(threading.enumerate())
    weights, history = answer(data, held_out, out, EPOCHS, BATCH, lr, seed)
    told = [sorted(numbers) if isinstance(numbers, dict) else numbers for numbers in history]
    if told != [["accuracy", "loss", "train_loss"]] * EPOCHS:
        raise TypeError("history must be a list with train_loss, loss and accuracy of each epoch, as in alone.py")
    left = ["a process group that was not left"] if dist.is_initialized() else []
    left += [f"the thread {thread.name!r}" for thread in set(threading.enumerate()) - threads]
    left += [f"the variable {name}" for name in sorted(dict(os.environ.items() ^ variables.items()))]
    files, kept = {path.name for path in out.iterdir()}, {"model.pt"} if rank == 0 else set()
    saved = torch.load(out / "model.pt") if "model.pt" in files else {}
    left += [f"the name {name!r} in its weights" for name in [*weights, *saved] if name.startswith("module.")][:1]
    left += [f"no {name} in its folder" for name in kept - files]
    left += [f"the file {name}" for name in sorted(files - kept)]
    weights = {name.removeprefix("module."): tensor.detach().clone() for name, tensor in weights.items()}
    return {"weights": weights, "history": history, "used": data.used, "held": held_out.used, "left": left}
