"""Checks: a loss over unequal shares, and a training with bugs. Taught in ``notebooks/03_ddp_wrap.ipynb``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ..cleanup import process_group
from ..wrap import wrap
from . import Exercise


def _try_loss(answer: Callable, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    with process_group(timeout=5) as env:
        model = wrap(nn.Linear(4, 3), env)
        nn.init.eye_(model.module.weight)
        nn.init.zeros_(model.module.bias)
        answer(model(inputs[env.rank]), targets[env.rank]).backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def _sentences(random):
    targets = torch.randint(3, (2, 14))  # the ranks' words together are fewer
    targets[0, random.randint(2, 3) :] = -100  # a short sentence on rank 0, a longer one on rank 1
    targets[1, random.randint(7, 9) :] = -100
    return torch.randn(2, 14, 4), targets


def _by_share(logits, targets, factor: Callable = lambda size: size):
    """Return the loss, weighted by this rank's share of all words."""
    counts: list[Any] = [None] * dist.get_world_size()
    mine = int((targets != -100).sum())
    dist.all_gather_object(counts, mine)
    return F.cross_entropy(logits, targets) * mine / sum(counts) * factor(len(counts))


def _padding_too(logits, targets):
    return F.cross_entropy(logits, targets, reduction="sum") / len(targets)


token_loss = Exercise(
    run=_try_loss,
    right=_by_share,
    inputs=_sentences,
    mistakes={
        "each rank counts the same, so that a word of the short sentence counts for more than one of the long "
        "one": F.cross_entropy,
        "each word counts the same, and the gradient is too small by the world size: what else divides by "
        "it?": lambda logits, targets: _by_share(logits, targets, lambda size: 1),
        "that is a sum: DDP divides it by the ranks and nobody divides it by the words": lambda logits, targets: (
            F.cross_entropy(logits, targets, reduction="sum")
        ),
        "positions with -100 were counted. How many words are there?": _padding_too,
    },
    shows="the gradient of two ranks is that of one process whose loss is the mean over all words",
    world_size=2,
)


def _try_training(answer: Callable, checkpoint: dict, batches: torch.Tensor) -> Any:
    with process_group(timeout=5) as env:
        torch.manual_seed(env.rank)
        model = nn.Linear(3, 1)
        answer(model, checkpoint if env.is_main else None, batches[:, env.rank], env)
        return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _fine_tune(model, checkpoint, batches, env, late=False, around=False):
    """Train without DDP: send what rank 0 has loaded, average each gradient. ``late`` and ``around`` are the bugs."""
    if checkpoint is not None and not late:
        model.load_state_dict(checkpoint)
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    if checkpoint is not None and late:
        model.load_state_dict(checkpoint)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs in batches:
        optimizer.zero_grad()
        (model(inputs) - 1).square().mean().backward()
        for parameter in model.parameters():
            if not around:
                dist.all_reduce(parameter.grad)
                parameter.grad /= env.world_size
        optimizer.step()


training = Exercise(
    run=_try_training,
    right=_fine_tune,
    inputs=lambda random: ({"weight": torch.randn(1, 3), "bias": torch.randn(1)}, torch.randn(3, 2, 4, 3)),
    mistakes={
        "the replicas neither start equal nor stay equal. Which line changes one replica alone? Which line computes "
        "without DDP's knowledge?": lambda *given: _fine_tune(*given, late=True, around=True),
        "the replicas start equal, and drift from the first step on: which object is called in the "
        "loop?": lambda *given: _fine_tune(*given, around=True),
        "gradients are exchanged, and the replicas still differ, by the same amount in every step: what changes one of "
        "them after DDP has made them equal?": lambda *given: _fine_tune(*given, late=True),
    },
    shows="both ranks hold what one process gets that starts from the checkpoint and sees all samples",
    world_size=2,
)
