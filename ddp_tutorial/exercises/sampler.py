"""Three exercises on who gets which sample. Taught in ``notebooks/04_sampler.ipynb``."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from ..cleanup import process_group
from . import Exercise


def all_shards(answer, n, size, seed, epoch):
    ways = [(rank, seed, epoch, drop) for drop in (False, True) for rank in range(size)]
    return [[int(sample) for sample in answer(n, size, *way)] for way in ways]


def real_sampler(n, size, rank, seed, epoch, drop):
    sampler = DistributedSampler(range(n), size, rank, seed=seed, drop_last=drop)
    sampler.set_epoch(epoch)
    return sampler


def permuted(n, seed):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()


def in_blocks(n, size, rank, seed, epoch, drop):
    order = permuted(n, seed + epoch)
    order = order[: n - n % size] if drop else order + order[: -n % size]
    return torch.tensor(order).chunk(size)[rank]


def numbers_with_a_tail(random):
    size = random.randint(2, 5)
    return size * random.randint(3, 9) + random.randint(1, size - 1), size, random.randrange(1000), random.randint(1, 9)


rule = Exercise(
    run=all_shards,
    right=real_sampler,
    inputs=numbers_with_a_tail,
    mistakes={
        "Some ranks get a sample more than others, and would take a step more. What makes the list divide evenly?": (
            lambda n, size, rank, seed, epoch, drop: permuted(n, seed + epoch)[rank::size]
        ),
        "Each rank gets a block of neighbours. How far apart are its places in the picture of the deal?": in_blocks,
        "Each epoch deals as the first one did. What goes into the seed of the permutation besides seed?": (
            lambda n, size, rank, seed, epoch, drop: real_sampler(n, size, rank, seed, 0, drop)
        ),
        "It pads with drop_last=True as well. Then nothing may be repeated: what happens to the tail instead?": (
            lambda n, size, rank, seed, epoch, drop: real_sampler(n, size, rank, seed, epoch, False)
        ),
    },
    shows="your rule deals as DistributedSampler does, for random sizes, world sizes, seeds and epochs",
)


def counts(answer, samples, n):
    with process_group() as env:
        return [int(number) for number in answer(samples[env.rank], n)]


def gathered(samples, n):
    of_all = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, samples)
    return [sum(of_all, []).count(sample) for sample in range(n)]


def once_a_rank(samples, n):
    visits = torch.zeros(n, dtype=torch.int64)
    visits[samples] += 1
    dist.all_reduce(visits)
    return visits


def lists_with_repeats(random):
    n = random.randint(6, 12)
    samples = [[random.randrange(n - 1) for _ in range(length)] for length in (random.randint(3, 5), 7)]
    return [mine + mine[:1] for mine in samples], n  # each rank repeats one of its own; sample n - 1 is on none


tally = Exercise(
    run=counts,
    right=gathered,
    inputs=lists_with_repeats,
    mistakes={
        "Each rank has counted its own visits only. Which collective adds a tensor up over the ranks?": (
            lambda samples, n: torch.bincount(torch.tensor(samples), minlength=n)
        ),
        "A sample that a rank visits twice counts once. What is x = torch.zeros(3) after x[[1, 1]] += 1?": once_a_rank,
    },
    shows="every rank knows how often all ranks together have visited each sample",
    world_size=2,
)


def batches(answer, n, global_batch, epochs, seed):
    with process_group() as env:
        return [[list(map(int, batch)) for batch in epoch] for epoch in answer(n, env, global_batch, epochs, seed)]


def by_hand(n, env, global_batch, epochs, seed, share=True, told=True):
    size = global_batch // env.world_size if share else global_batch
    orders = [permuted(n, seed + epoch * told)[env.rank :: env.world_size] for epoch in range(epochs)]
    return [[order[place : place + size] for place in range(0, len(order), size)] for order in orders]


def even_numbers(random):
    return 2 * random.randint(8, 15), 2 * random.randint(2, 4), random.randint(3, 5), random.randrange(1000)


hunt = Exercise(
    run=batches,
    right=by_hand,
    inputs=even_numbers,
    mistakes={
        "Two things are wrong: count the samples of all ranks in one step, and compare the first two epochs.": (
            lambda *numbers: by_hand(*numbers, share=False, told=False)
        ),
        "The batches have the right size, but each epoch repeats the first. What does the sampler not know?": (
            lambda *numbers: by_hand(*numbers, told=False)
        ),
        "The order is right. But batch_size is per rank: how many samples of all ranks stand behind one step?": (
            lambda *numbers: by_hand(*numbers, share=False)
        ),
    },
    shows="each epoch has an order of its own, and one step of all ranks takes the global batch",
    world_size=2,
)
