"""The losses of all ranks, exchanged without waiting at each step. Taught in ``notebooks/05_training_loop.ipynb``."""

from __future__ import annotations

import math
import time

import torch
import torch.distributed as dist

from .environment import Environment

PAUSE = 0.5  # seconds between two exchanges, about
MOST = 200  # steps between two exchanges, however quick the last ones were: the next ones can be slow


class LossExchange:
    """Collects the losses of this rank on its device, and exchanges them with those of all ranks twice a second.

    ``add`` and ``flush`` return the steps that have arrived, each with a pair of numbers by rank: the sum of the losses
    of its samples, and how many samples.
    """

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._losses: list[torch.Tensor] = []
        self._counts: list[int] = []
        self._under_way: tuple[dist.Work, list[torch.Tensor]] | None = None
        self._next = 1  # steps until the next exchange
        self.start_clock()

    def start_clock(self) -> None:
        """Leave out of the seconds a step takes what has passed until now."""
        self._last = time.perf_counter()

    def add(self, loss: torch.Tensor, count: int) -> list[list[list[float]]]:
        """Note the mean ``loss`` of this rank's ``count`` samples; it stays on the device until it is exchanged."""
        arrived = self._receive()
        # No .item() here: it would make every step wait until the device has finished it.
        self._losses.append(loss.detach())
        self._counts.append(count)
        if len(self._losses) >= self._next:
            self._send()
        return arrived

    def flush(self) -> list[list[list[float]]]:
        """Exchange what is left, and wait for it. A collective: to be called on all ranks after the same step."""
        arrived = self._receive()
        if self._losses:
            self._send()
        return arrived + self._receive()

    def _send(self) -> None:
        counts = torch.tensor(self._counts, device=self._env.device, dtype=torch.float64)
        losses = torch.stack(self._losses).double()
        sums = torch.stack([torch.where(counts > 0, losses * counts, 0), counts], dim=1)  # a mean of nothing is nan
        now = time.perf_counter()
        mine = torch.cat([sums, sums.new_tensor([[(now - self._last) / len(counts), 0]])])  # and its seconds a step
        self._last, self._losses, self._counts = now, [], []
        everyone = [torch.empty_like(mine) for _ in range(self._env.world_size)]
        # Not waited for: it travels while the next step computes. (The host waits for its device here, and when it
        # receives: twice a second.)
        self._under_way = dist.all_gather(everyone, mine, async_op=True), everyone

    def _receive(self) -> list[list[list[float]]]:
        if self._under_way is None:
            return []
        (work, everyone), self._under_way = self._under_way, None
        work.wait()
        *steps, paces = torch.stack(everyone, dim=1).tolist()  # one transfer
        # From a number that all ranks have. If each asked its own clock, they would exchange after different steps: one
        # would wait here for the others, and they for its gradients.
        self._next = min(MOST, math.ceil(PAUSE / max(pace for pace, _ in paces)))
        return steps
