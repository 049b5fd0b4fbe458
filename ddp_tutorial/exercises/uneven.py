"""Two exercises on ranks that do not get, or want, the same. Taught in ``notebooks/05_training_loop.ipynb``."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ..cleanup import process_group
from ..wrap import wrap
from . import Exercise


def bounded(part, answer, given):
    with process_group(timeout=3) as env:
        try:
            return part(env, answer, given[env.rank])
        except RuntimeError as error:
            if "gloo" not in str(error):
                raise
            return "waited for a rank that did not come"


def gradients(answer, given):
    return bounded(_gradients, answer, given)


def _gradients(env, answer, batches):
    found = []
    for inputs, targets in batches:
        model = wrap(nn.Linear(3, 1, bias=False, dtype=torch.double), env)
        nn.init.ones_(model.module.weight)
        answer(model, inputs, targets, env)
        found.append(model.module.weight.grad)
    return found


def one_process(model, inputs, targets, env):
    of_all = [None] * env.world_size
    dist.all_gather_object(of_all, (inputs, targets))
    inputs, targets = (torch.cat(parts) for parts in zip(*of_all))
    F.mse_loss(model.module(inputs), targets).backward()


def weighted(model, inputs, targets, env, factor=1):
    count = torch.tensor(len(inputs))
    dist.all_reduce(count)
    (F.mse_loss(model(inputs), targets, reduction="sum") * factor / count).backward()


def last_batches(random):
    generator, few = torch.Generator().manual_seed(random.randrange(10**6)), random.randint(1, 3)

    def batch(count):
        return tuple(torch.randn(count, width, generator=generator, dtype=torch.double) for width in (3, 1))

    return ([[batch(few + 3), batch(few)], [batch(few), batch(0)]],)  # uneven, and then rank 1 has no sample


uneven_batch = Exercise(
    run=gradients,
    right=one_process,
    inputs=last_batches,
    mistakes={
        "DDP gives each rank the same weight, whatever its number of samples. Which number do all ranks need?": (
            lambda model, inputs, targets, env: F.mse_loss(model(inputs), targets).backward()
        ),
        "Half of the right gradient: DDP divides by the world size, after you have divided by all samples.": weighted,
        "A rank without samples takes no part, and the other one waits. What can it contribute?": (
            lambda model, inputs, targets, env: len(inputs) and weighted(model, inputs, targets, env, env.world_size)
        ),
    },
    shows="the gradient of one process on all samples, on both ranks, even if one of them has none",
    world_size=2,
)


def steps(answer, given, limit):
    return bounded(_steps, answer, [(losses, limit) for losses in given])


def _steps(env, answer, given):
    model, (losses, limit) = wrap(nn.Linear(1, 1), env), given
    of_this_rank = iter(losses)

    def step():
        model(torch.ones(1, 1)).sum().backward()
        return torch.tensor(next(of_this_rank))

    return int(answer(step, limit, env))


def steps_until(step, limit, env, decide=lambda of_all: sum(of_all) / len(of_all)):
    number, of_all = 0, [limit] * env.world_size
    while decide(of_all) >= limit:
        number += 1
        dist.all_gather_object(of_all, step().item())
    return number


def falling_losses(random):
    fast, limit = random.randint(2, 3), random.uniform(1, 5)
    slow = fast + 2 * random.randint(1, 2)  # rank 0 is below the limit in step slow, rank 1 in step fast
    # By a part of the limit in each step: within the twelve steps even the sum of both falls below it.
    return [[limit * (1 + 0.09 * (end - number - 0.5)) for number in range(1, 13)] for end in (slow, fast)], limit


stop = Exercise(
    run=steps,
    right=steps_until,
    inputs=falling_losses,
    mistakes={
        "Each rank looks at its own loss: one leaves the loop, the other waits in backward(). What can both see?": (
            lambda step, limit, env: next(number for number in range(1, 100) if step() < limit)
        ),
        "Both stop together, when the last of them has seen enough. The limit is for the mean over the ranks.": (
            lambda *loop: steps_until(*loop, decide=max)
        ),
        "Both stop together, as soon as one of them wants to. The limit is for the mean over the ranks.": (
            lambda *loop: steps_until(*loop, decide=min)
        ),
        "An all-reduce leaves the sum. What turns it into the mean?": (lambda *loop: steps_until(*loop, decide=sum)),
    },
    shows="both ranks leave the loop after the same step, the first in which the mean loss is below the limit",
    world_size=2,
)
