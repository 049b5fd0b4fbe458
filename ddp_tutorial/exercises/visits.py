"""An exercise on counting who has read what. Taught in ``notebooks/04_sampler.ipynb``."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..cleanup import process_group
from . import Exercise


def counts(answer, samples, n):
    dist.set_debug_level(dist.DebugLevel.DETAIL)  # compares shapes before each collective; gloo alone would abort
    try:
        with process_group(timeout=5) as env:
            return [int(number) for number in answer(samples[env.rank], n)]
    except RuntimeError as error:
        if "mismatch between collectives" not in str(error):
            raise
        return "different shapes in one collective"
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)


def gathered(samples, n):
    of_all = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, samples)
    return [sum(of_all, []).count(sample) for sample in range(n)]


def once_a_rank(samples, n):
    visits = torch.zeros(n, dtype=torch.int64)
    visits[samples] += 1
    dist.all_reduce(visits)
    return visits


def of_own_length(samples, n):
    visits = torch.bincount(torch.tensor(samples))
    dist.all_reduce(visits)
    return visits


def lists_with_repeats(random):
    n = random.randint(6, 12)
    few, many = ([random.randrange(n - 2) for _ in range(length)] for length in (random.randint(3, 5), 6))
    return [few + few[:1], many + many[:1] + [n - 2]], n  # a repeat on each rank; n - 2 on rank 1 only, n - 1 on none


tally = Exercise(
    run=counts,
    right=gathered,
    inputs=lists_with_repeats,
    mistakes={
        "Each rank has counted its own visits only. Which collective adds a tensor up over the ranks?": (
            lambda samples, n: torch.bincount(torch.tensor(samples), minlength=n)
        ),
        "The ranks handed tensors of different lengths to one collective, for which gloo would end a process without "
        "this check. What has the same length on every rank?": of_own_length,
        "A sample that a rank visits twice counts once. What is x = torch.zeros(3) after x[[1, 1]] += 1?": once_a_rank,
    },
    shows="every rank knows how often all ranks together have visited each sample",
    world_size=2,
)
