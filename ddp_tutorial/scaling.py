"""How long a step of data-parallel training takes on many GPUs: a model of few numbers.

Seconds, bytes, bytes a second and samples throughout; nothing here imports torch. Taught in
``notebooks/09_faster.ipynb``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MIB = 2**20
BACKWARD = 2 / 3  # of forward and backward: two products a layer against one (Kaplan et al. 2020, arXiv:2001.08361)


@dataclass(frozen=True)
class Link:
    """What one hop of a message costs: ``latency`` seconds, and its bytes over ``bandwidth`` (bytes/s, one way)."""

    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Cluster:
    """Machines of ``per_machine`` GPUs: ``inside`` links one GPU to its neighbours, ``between`` one whole machine."""

    inside: Link
    between: Link
    per_machine: int = 8

    def machines(self, ranks: int) -> int:
        """Return how many machines ``ranks`` GPUs fill."""
        return math.ceil(ranks / self.per_machine)

    def bandwidth(self, ranks: int) -> float:
        """Return the bytes a second of the narrowest place that an all-reduce of ``ranks`` passes."""
        return (
            self.inside.bandwidth if ranks <= self.per_machine else min(self.inside.bandwidth, self.between.bandwidth)
        )


def ring(size: float, ranks: int, cluster: Cluster) -> float:
    """Return the seconds of a ring all-reduce of ``size`` bytes: 2 (n - 1) hops of size / n bytes each.

    Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations". Which hops leave a
    machine is counted as NCCL does it (``src/graph/tuning.cc``).
    """
    hops, outside = 2 * (ranks - 1), 2 * (cluster.machines(ranks) - 1)
    latency = (hops - outside) * cluster.inside.latency + outside * cluster.between.latency
    return latency + hops / ranks * size / cluster.bandwidth(ranks)


def tree(size: float, ranks: int, cluster: Cluster) -> float:
    """Return the seconds of a tree all-reduce of ``size`` bytes: up and down log2(machines) levels, in a stream.

    The levels are those of Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in
    MPICH"; that each byte passes a link only twice needs NCCL's two trees at once (version 2.4, ``tuning.cc``).
    """
    machines = cluster.machines(ranks)
    inside = min(ranks, cluster.per_machine) - 1
    latency = 2 * (inside * cluster.inside.latency + math.log2(machines) * cluster.between.latency)
    return latency + 2 * size / cluster.bandwidth(ranks)


def all_reduce(size: float, ranks: int, cluster: Cluster) -> float:
    """Return the seconds of the quicker of ring and tree, which is how NCCL chooses; nothing for one rank."""
    return 0.0 if ranks == 1 else min(ring(size, ranks, cluster), tree(size, ranks, cluster))


def buckets(size: float, cap: float = 25 * MIB, first: float = MIB) -> list[float]:
    """Return the bytes of DDP's buckets for ``size`` bytes of gradients: a small first one, then full ones."""
    rest = max(size - first, 0.0)
    return [min(size, first), *[cap] * int(rest // cap), *([rest % cap] if rest % cap else [])]


def step_time(
    compute: float, sizes: Sequence[float], exchange: Callable[[float], float], overlap: float = 1.0
) -> tuple[float, float]:
    """Return the seconds of a step, and how many of them are an exchange that computing does not hide.

    ``compute`` is the step without any exchange, ``sizes`` the bytes of the buckets in the order in which they are
    sent, ``exchange(bytes)`` the seconds of one. A bucket leaves when its gradients are there, evenly spread over the
    backward pass by bytes, and when the bucket before it is through (Li et al. 2020, arXiv:2006.15704).
    ``overlap`` is 1 where links work on their own (GPUs) and 0 where they take the cores from computing.
    """
    done, through, total = 0.0, 0.0, sum(sizes)
    for size in sizes:
        done += size
        ready = compute * (1 - BACKWARD + BACKWARD * done / total)
        through = max(ready, through) + exchange(size)
    in_turn = compute + sum(map(exchange, sizes))
    seconds = overlap * max(compute, through) + (1 - overlap) * in_turn
    return seconds, seconds - compute


def efficiency(one: float, many: float, ranks: int = 1) -> float:
    """Return the part that is put to use, from the seconds of a step on one rank and on many.

    Weak scaling, the same batch on each rank, needs no ``ranks``; strong scaling, the same global batch, does.
    """
    return one / (ranks * many)


def fit_line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Return constant and slope of the line through the points, each with the same say relative to its own size."""
    weights = [1 / y**2 for y in ys]
    x = sum(w * x for w, x in zip(weights, xs)) / sum(weights)
    y = sum(w * y for w, y in zip(weights, ys)) / sum(weights)
    slope = sum(w * (a - x) * (b - y) for w, a, b in zip(weights, xs, ys))
    slope /= sum(w * (a - x) ** 2 for w, a in zip(weights, xs))
    return y - slope * x, slope
