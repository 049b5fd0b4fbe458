"""Two exercises on who gets which sample. Taught in ``notebooks/04_sampler.ipynb``."""

from __future__ import annotations

import torch
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


def left_over(order, size, drop):
    rest = len(order) % size
    return order[: len(order) - rest] if drop else order + order[:rest]


def numbers_with_a_tail(random):
    size = random.choice([3, 5])  # of an even number, half can be left over, and as many be missing
    return size * random.randint(3, 9) + random.randint(1, size - 1), size, random.randrange(1000), random.randint(1, 9)


rule = Exercise(
    run=all_shards,
    right=real_sampler,
    inputs=numbers_with_a_tail,
    mistakes={
        "Some ranks get a sample more than others, and would take a step more. What makes the list divide evenly?": (
            lambda n, size, rank, seed, epoch, drop: permuted(n, seed + epoch)[rank::size]
        ),
        "You have repeated as many samples as are left over. How many are missing to the next multiple?": (
            lambda n, size, rank, seed, epoch, drop: left_over(permuted(n, seed + epoch), size, drop)[rank::size]
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


def batches(answer, n, global_batch, epochs, seed):
    with process_group() as env:
        return [[list(map(int, batch)) for batch in epoch] for epoch in answer(n, env, global_batch, epochs, seed)]


def by_hand(n, env, global_batch, epochs, seed, share=True, told=True, first=0):
    size = global_batch // env.world_size if share else global_batch
    orders = [permuted(n, seed + first + epoch * told)[env.rank :: env.world_size] for epoch in range(epochs)]
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
        "Each epoch has an order of its own, but your first one is epoch 1. It is 0 here.": (
            lambda *numbers: by_hand(*numbers, first=1)
        ),
        "The order is right. But batch_size is per rank: how many samples of all ranks stand behind one step?": (
            lambda *numbers: by_hand(*numbers, share=False)
        ),
    },
    shows="each epoch has an order of its own, and one step of all ranks takes the global batch",
    world_size=2,
)
