"""Two exercises on numbers and gradients of all ranks. Taught in ``notebooks/05_training_loop.ipynb``."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from ..cleanup import process_group
from ..wrap import wrap
from . import Exercise


def accuracies(answer, pairs):
    with process_group() as env:
        found = [float(answer(torch.tensor(pair[env.rank], dtype=torch.bool))) for pair in pairs]
    return [number if number == number else "not a number" for number in found]


def gathered_accuracy(right):
    of_all = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, right)
    return torch.cat(of_all).double().mean()


def mean_of_ranks(own):
    own = torch.tensor(float(own)) / dist.get_world_size()
    dist.all_reduce(own)
    return own


def shares(random):
    few, yes, no = random.randint(1, 3), [True], [False]
    return ([(yes * few + no * few, yes * (few + 4) + no), (yes * few + no * 2, [])],)  # uneven; and rank 1 has none


accuracy = Exercise(
    run=accuracies,
    right=gathered_accuracy,
    inputs=shares,
    mistakes={
        "Each rank has the accuracy of its own share. What has to travel before the division?": (
            lambda right: right.double().mean()
        ),
        "A mean of the ranks' means: equal weight for unequal shares, nan for an empty one. What adds up exactly?": (
            lambda right: mean_of_ranks(right.double().mean())
        ),
        "An empty share counts as an accuracy of 0, and pulls the mean down. How many samples should it weigh?": (
            lambda right: mean_of_ranks(right.double().mean() if len(right) else 0)
        ),
    },
    shows="sums first, one division: exact on both ranks, for unequal shares and for an empty one",
    world_size=2,
)


def count_and_reduce(counted, bucket):
    counted.append(bucket.index())
    return allreduce_hook(dist.group.WORLD, bucket)


def weights_after(answer, batches, *options):
    with process_group() as env:
        # A function of its own: its model lets go of the group when it returns.
        return _weights_after(env, answer, batches[env.rank], options)


def _weights_after(env, answer, batches, options):
    model, counted = wrap(nn.Linear(3, 1, bias=False, dtype=torch.double), env), []
    model.register_comm_hook(counted, count_and_reduce)
    nn.init.ones_(model.module.weight)
    answer(model, torch.optim.SGD(model.parameters(), lr=0.1), batches, *options)
    return {"weights": model.module.weight.detach(), "all-reduces": len(counted)}


def large_batches(model, optimizer, batches, size):
    for start in range(0, len(batches), size):
        inputs, targets = (torch.cat(parts) for parts in zip(*batches[start : start + size]))
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()


def accumulated(model, optimizer, batches, size, divide=len, synchronise=len, least=1):
    for start in range(0, len(batches), size):
        group = batches[start : start + size]
        if len(group) < least:
            break
        optimizer.zero_grad()
        for number, (inputs, targets) in enumerate(group, start=1):
            with nullcontext() if synchronise(group) in (number, None) else model.no_sync():
                (F.mse_loss(model(inputs), targets) / divide(group)).backward()
        optimizer.step()


def micro_batches(random):
    size, generator = random.randint(3, 4), torch.Generator().manual_seed(random.randrange(10**6))
    count = 2 * size + random.randint(1, size - 1)  # a tail is left
    numbers = torch.randn(2, count, 2, 4, generator=generator, dtype=torch.double)
    return [[(batch[:, :3], batch[:, 3:]) for batch in of_rank] for of_rank in numbers], size


accumulation = Exercise(
    run=weights_after,
    right=large_batches,
    inputs=micro_batches,
    mistakes={
        "The steps are too long: gradients add up in .grad. What turns the sum over a group into its mean?": (
            lambda *loop: accumulated(*loop, divide=lambda group: 1)
        ),
        "The weights are right, but every backward() communicates. Is the forward inside no_sync() as well?": (
            lambda *loop: accumulated(*loop, synchronise=lambda group: None)
        ),
        "The ranks end with different weights: what comes after the all-reduce of a group stays on its rank.": (
            lambda *loop: accumulated(*loop, synchronise=lambda group: 1)
        ),
        "The last micro-batches of the epoch are in no step. What happens to a group that is not full?": (
            lambda *loop: accumulated(*loop, least=loop[-1])
        ),
        "All is right but the last step, which is too short. How many micro-batches does its group have?": (
            lambda *loop: accumulated(*loop, divide=lambda group: loop[-1])
        ),
    },
    shows="the weights of large batches, on both ranks, with one all-reduce a step, the short last group included",
    world_size=2,
)
