"""Going on in the middle of an epoch: the samples that are left, and random numbers where they stood.

Taught in ``notebooks/10_beyond_one_machine.ipynb``.
"""

from __future__ import annotations

import random
import sys
from itertools import cycle, islice

import torch
from torch.utils.data import DataLoader, DistributedSampler

from .environment import Environment


def rest_of_epoch(loader: DataLoader, env: Environment, done: int) -> DataLoader:
    """Return this rank's batches of ``loader``'s epoch without the first ``done`` samples of its order.

    ``loader`` is a :func:`train_loader` whose ``set_epoch`` has been called; ``done`` counts the samples that all ranks
    have taken together, however many ranks those were. As many ranks as before get the batches that they would have
    got; another number of ranks shares out the rest: no sample twice, none left out, but for the usual padding.
    """
    if done == 0:
        return loader
    everyone = DistributedSampler(loader.dataset, num_replicas=1, rank=0, shuffle=True, seed=loader.sampler.seed)
    everyone.set_epoch(loader.sampler.epoch)
    order = list(everyone)
    rest = order[done:]
    rest += islice(cycle(order), -len(rest) % env.world_size)  # padded from the start of the order, as usual
    return DataLoader(
        loader.dataset,
        loader.batch_size,
        sampler=rest[env.rank :: env.world_size],
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        # A DataLoader draws a number whenever it is started. Drawn from the rank's own generator, it would move the
        # dropout masks of all later steps.
        generator=torch.Generator(),
    )


def random_state(device: torch.device) -> dict:
    """Return where the random numbers of this process stand, in types that ``torch.load`` takes as they are."""
    state = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state(device)
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = [name, keys.tolist(), *rest]
    return state


def set_random_state(state: dict, device: torch.device) -> None:
    """Set the random numbers of this process to ``state``, as :func:`random_state` returned it."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    if "device" in state and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(state["device"], device)
    if "numpy" in state:
        import numpy

        numpy.random.set_state(tuple(state["numpy"]))
