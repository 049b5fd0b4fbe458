"""Checks: the time of a message, and a rank's duties. Taught in ``notebooks/01_environment.ipynb``."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from . import Exercise


def _try_forecast(answer: Callable, sizes: list[int], seconds: list[float], latency: float, bandwidth: float) -> dict:
    found = {}
    for size, count in [(400, 1), (4_000_000, 1), (400_000_000, 1), (4_000, 100)]:
        ratio = answer(sizes, seconds, size, count) / (count * (latency + size / bandwidth))
        verdict = "too short" if ratio < 0.9 else "too long" if ratio > 1.1 else "within 10 %"
        found[f"{count} of {size:,} bytes"] = verdict
    return found


def _measure(random):
    latency, bandwidth, sizes = random.uniform(3e-5, 1e-4), random.uniform(5e8, 1e9), [4 * 10**n for n in range(8)]
    noise = [random.uniform(-0.01, 0.01) for _ in sizes[2:]] + [random.uniform(0.04, 0.05), -random.uniform(0.04, 0.05)]
    return sizes, [(1 + off) * (latency + size / bandwidth) for size, off in zip(sizes, noise)], latency, bandwidth


def _two_ends(sizes, seconds, size, count):
    latency = statistics.mean(seconds[:3])
    return count * (latency + size * (seconds[-1] - latency) / sizes[-1])


def _same_say(sizes, seconds, size, count):
    line = statistics.linear_regression(sizes, seconds)
    return count * (line.intercept + line.slope * size)


forecast = Exercise(
    run=_try_forecast,
    right=_two_ends,
    inputs=_measure,
    mistakes={
        "large messages are right, and small ones take longer than you say. What does a message of no bytes "
        "cost?": lambda sizes, seconds, size, count: count * size * seconds[-1] / sizes[-1],
        "single messages are right, a hundred small ones take longer than you say. Which of the two costs does each "
        "message pay anew?": lambda *asked: _two_ends(*asked[:2], asked[2] * asked[3], 1),
        "small messages come out wrong. A large message that was measured 4 % off is off by more than a latency. "
        "Does each point have the same say relative to its own time?": _same_say,
    },
    shows="four times within 10 % of the true ones, up to ten times beyond the largest size that was measured",
)


def _try_duties(answer: Callable, machines: list[int]) -> dict:
    found = {}
    for machine, count in enumerate(machines):
        for local_rank in range(count):
            rank = sum(machines[:machine]) + local_rank
            numbers = {"RANK": rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": sum(machines), "LOCAL_WORLD_SIZE": count}
            found[f"machine {machine}, GPU {local_rank}"] = answer(
                {name: str(value) for name, value in numbers.items()}
            )
    return found


def _duties(own, *, device="LOCAL_RANK", prepares="LOCAL_RANK", saves="RANK"):
    return {
        "device": f"cuda:{own[device]}",
        "prepares": not int(own[prepares]),
        "saves": not int(own[saves]),
    }


def _duties_by_remainder(own):
    return _duties(own) | {"device": f"cuda:{int(own['RANK']) % int(own['LOCAL_WORLD_SIZE'])}"}


def _machines(random):
    first = random.randint(2, 4)
    return ([first, first + random.randint(1, 3)],)


duties = Exercise(
    run=_try_duties,
    right=_duties,
    inputs=_machines,
    mistakes={
        "a rank on the second machine takes a GPU that is not there, and nobody there prepares the data. Which number "
        "counts on one machine, which over all?": lambda own: _duties(own, device="RANK", prepares="RANK"),
        "the devices are right. On the second machine no rank prepares the data, and its disk is its own": lambda own: (
            _duties(own, prepares="RANK")
        ),
        "each machine has its data. A rank on the second machine takes a GPU that is not there": lambda own: _duties(
            own, device="RANK"
        ),
        "the checkpoint is written once on each machine, and there should be one in all": lambda own: _duties(
            own, saves="LOCAL_RANK"
        ),
        "a remainder gives the right GPU only where all machines have the same number of them; here they "
        "do not": _duties_by_remainder,
    },
    shows="on machines with different numbers of GPUs, each rank has a GPU of its own, and each duty falls to one rank",
)
