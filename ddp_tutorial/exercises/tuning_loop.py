"""An exercise on a slow loop, judged by counts and not by a clock. Taught in ``notebooks/09_faster.ipynb``."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..cleanup import process_group
from ..wrap import wrap
from . import Exercise

SENDING = ("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_object", "gather", "all_gather_into_tensor")


class Watch(TorchDispatchMode):
    """Counts operations by name while it is active."""

    def __init__(self):
        super().__init__()
        self.counts = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def watched(answer, images, labels, size):
    with process_group() as env:
        return _watched(answer, images[env.rank :: env.world_size], labels[env.rank :: env.world_size], size, env)


def _watched(answer, images, labels, size, env):
    model = wrap(nn.Linear(4, 1, bias=False, dtype=torch.double), env)
    nn.init.ones_(model.module.weight)
    sent, originals = [], {name: getattr(dist, name) for name in SENDING}
    try:
        for name, original in originals.items():
            setattr(dist, name, functools.partial(_noted, sent, original))
        with Watch() as watch:
            loss = answer(model, torch.optim.SGD(model.parameters(), lr=0.1), images, labels, size)
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
    reads, picks = (watch.counts.get(name, 0) for name in ("_local_scalar_dense", "select"))
    return {
        "loss": float(loss),
        "weights": model.module.weight.detach(),
        "messages of its own": "at most one" if len(sent) < 2 else len(sent),
        "numbers read from the device": "at most one" if reads < 2 else reads,
        "samples picked one by one": "none" if picks < len(images) else picks,
    }


def _noted(sent, original, *args, **kwargs):
    sent.append(original.__name__)
    return original(*args, **kwargs)


def lean(model, optimizer, images, labels, size, by_one=False, read=False, send=False, together=True):
    kept = []
    for start in range(0, len(images), size):
        some = list(range(start, start + size))
        inputs = torch.stack([images[i] for i in some]) if by_one else images[some]
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), labels[some])
        loss.backward()
        optimizer.step()
        kept.append(loss.detach().clone())
        if send:
            dist.all_reduce(kept[-1])
        if read:
            kept[-1] = torch.tensor(kept[-1].item(), dtype=torch.double)
    total = torch.stack(kept).sum()
    if together and not send:
        dist.all_reduce(total)
    return total / len(kept) / (dist.get_world_size() if together else 1)


def some_samples(random):
    size, generator = random.randint(3, 5), torch.Generator().manual_seed(random.randrange(10**6))
    count = 2 * size * random.randint(3, 4)  # of both ranks
    images = torch.randn(count, 4, generator=generator, dtype=torch.double)
    return images, torch.randn(count, 1, generator=generator, dtype=torch.double), size


loop = Exercise(
    run=watched,
    right=lean,
    inputs=some_samples,
    mistakes={
        "Samples are still picked one by one. How does one indexing operation take a whole batch?": (
            functools.partial(lean, by_one=True)
        ),
        "A number is still read from the device in each step. Where can it stay until the end of the epoch?": (
            functools.partial(lean, read=True)
        ),
        "A message is still sent in each step, beside the gradients. What adds up before it travels?": (
            functools.partial(lean, send=True)
        ),
        "It is quick, and each rank returns the loss of its own half. One message is allowed.": (
            functools.partial(lean, together=False)
        ),
    },
    shows="the same weights and the same loss, with one message, one number read, and a batch at a time",
    world_size=2,
)
