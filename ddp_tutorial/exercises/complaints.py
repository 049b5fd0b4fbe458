"""What is wrong with an answer to the final piece, told from its runs. Taught in ``notebooks/11_capstone.ipynb``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from . import same

EPOCHS = 2


def wrong_with(alone, both, still, apart, samples, held_out) -> Iterator[str]:
    """Yield a sentence or two for each thing that is wrong."""
    used = Counter(index for rank in both for index in rank["used"])
    odd = [index for index in range(len(samples[0])) if used[index] != EPOCHS]
    first_half = both[0]["used"][: len(both[0]["used"]) // EPOCHS]
    if odd:
        yield f"samples: number {odd[0]} was used {used[odd[0]]} times in {EPOCHS} epochs. Who deals them to the ranks?"
    elif both[0]["used"] == first_half * EPOCHS:
        yield "samples: every epoch has the same order. Who tells the sampler which epoch it is?"
    elif both[0]["used"] == apart[0]["used"]:
        yield "samples: another seed gives the same order. What is the order drawn from?"
    exchanged = same(apart[0]["weights"], apart[1]["weights"])
    if not exchanged:
        yield f"gradients: ranks with different samples end {distance(*apart)} apart. What does a training step call?"
    if same(still[0]["weights"], still[1]["weights"]) and (numbers := list(_numbers(still, samples, held_out))):
        yield f"numbers: {'; '.join(numbers)}. Over whose samples is each taken?"
    if not odd and exchanged and not same(alone[0]["weights"], both[0]["weights"]):
        far = distance(alone[0], both[0])
        question = "How many samples are in a step of both together, and at which rate is it taken?"
        yield f"weights: two ranks end {far} away from one process. {question}"
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
    if odd := [index for index in range(len(held_out[0])) if counts[index] != EPOCHS]:
        yield f"held-out sample {odd[0]} was used {counts[odd[0]] / EPOCHS:g} times an epoch"


def distance(one: dict, other: dict) -> str:
    return f"{max((one['weights'][name] - other['weights'][name]).abs().max().item() for name in one['weights']):.1g}"
