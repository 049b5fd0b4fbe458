"""The check of the final piece: it says everything that is wrong. Taught in ``notebooks/11_capstone.ipynb``."""

from __future__ import annotations

import contextlib
import io
import os
import random
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from ..ranks import Ranks
from . import Hint, _codes, same

EPOCHS, BATCH = 2, 12
SAMPLES, HELD_OUT = 44, 15  # the last batch of an epoch is smaller, and two ranks cannot share 15 evenly


class Counted(TensorDataset):
    """A data set that notes the index of each sample it hands out."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        super().__init__(*tensors)
        self.used = []

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
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
    # One process; both ranks; both with a rate of 0, so that the true numbers are known; both with other samples on
    # rank 1 than on rank 0, so that only an exchange keeps their weights equal.
    for size, lr, shift in ((1, 0.2, 0.0), (2, 0.2, 0.0), (2, 0.0, 0.0), (2, 0.2, 1.0)):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            results = ranks.run(_attempt, (answer, size, samples, held_out, folder, lr, seed, shift))
        runs.append(results[:size])
    wrong = list(_wrong(*runs, samples, held_out))
    if wrong:
        raise Hint("\n- ".join([f"still wrong, {len(wrong)} in all:", *wrong]))
    print(f"right: two ranks end with the weights of one process, to {_distance(runs[0][0], runs[1][0])}")
    print("each sample was used once an epoch, the numbers are those of all samples, and nothing is left behind")


def _attempt(answer, size, samples, held_out, folder, lr, seed, shift) -> dict | None:
    """Train on this rank, if it is one of the first ``size``, and return what came of it."""
    rank = int(os.environ["RANK"])
    if rank >= size:
        return None
    os.environ["WORLD_SIZE"] = str(size)
    (out := Path(folder, str(rank))).mkdir()  # one for each rank, to see who wrote what
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


def _wrong(alone, both, still, apart, samples, held_out) -> Iterator[str]:
    """Yield a sentence or two for each thing that is wrong."""
    used = Counter(index for rank in both for index in rank["used"])
    odd = [index for index in range(SAMPLES) if used[index] != EPOCHS]
    first_half = both[0]["used"][: len(both[0]["used"]) // EPOCHS]
    if odd:
        yield f"samples: number {odd[0]} was used {used[odd[0]]} times in {EPOCHS} epochs. Who deals them to the ranks?"
    elif both[0]["used"] == first_half * EPOCHS:
        yield "samples: every epoch has the same order. Who tells the sampler which epoch it is?"
    exchanged = same(apart[0]["weights"], apart[1]["weights"])
    if not exchanged:
        yield f"gradients: ranks with different samples end {_distance(*apart)} apart. What does a training step call?"
    if same(still[0]["weights"], still[1]["weights"]) and (numbers := list(_numbers(still, samples, held_out))):
        yield f"numbers: {'; '.join(numbers)}. Over whose samples is each taken?"
    if not odd and exchanged and not same(alone[0]["weights"], both[0]["weights"]):
        far = _distance(alone[0], both[0])
        yield f"weights: two ranks end {far} away from one process. How many samples are in a step of both together?"
    elif same(both[0]["weights"], still[0]["weights"]):
        yield "weights: nothing was learned. Is there a step of the optimizer?"
    if left := [f"rank {rank} leaves {what}" for rank in (0, 1) for what in both[rank]["left"]]:
        yield f"leftovers: {'; '.join(left)}. What happens after the last epoch, and on which rank?"


def _numbers(still, samples, held_out) -> Iterator[str]:
    """Yield what is wrong with the numbers of ranks whose weights never moved."""
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    model.load_state_dict(still[0]["weights"])
    with torch.no_grad():  # what alone.py would report of these weights
        train_loss, loss = (F.cross_entropy(model(x), y).item() for x, y in (samples, held_out))
        accuracy = (model(held_out[0]).argmax(dim=1) == held_out[1]).double().mean().item()
    for name, true in {"train_loss": train_loss, "loss": loss, "accuracy": accuracy}.items():
        reported = [rank["history"][-1][name] for rank in still]
        if not all(same(float(number), true) for number in reported):
            told = " and ".join(f"{number:.4f} on rank {rank}" for rank, number in enumerate(reported))
            yield f"{name} is {told}, but {true:.4f} over all samples"
    counts = Counter(index for rank in still for index in rank["held"])
    if odd := [index for index in range(HELD_OUT) if counts[index] != EPOCHS]:
        yield f"held-out sample {odd[0]} was used {counts[odd[0]] / EPOCHS:g} times an epoch"


def _distance(one: dict, other: dict) -> str:
    return f"{max((one['weights'][name] - other['weights'][name]).abs().max().item() for name in one['weights']):.1g}"
