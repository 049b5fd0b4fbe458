"""Check of notebook 08: which rank is the cause, by a log. Taught in ``notebooks/08_when_it_breaks.ipynb``."""

from __future__ import annotations

from ..failures import Failure, LaunchError
from . import Exercise

WORLD = 5  # ranks in the logs


def _logs(random):
    """Draw two logs: one with a cause in the middle of its symptoms, one in which the cause says nothing."""
    ranks = random.sample(range(WORLD), WORLD)
    gone, late = "RuntimeError: Connection closed by peer", "RuntimeError: Timed out waiting 120000ms"
    one, other = random.sample([gone, late], 2)
    error = random.choice(["ValueError: sample 17 has no label", "KeyError: 'label'", "OSError: the disk is full"])
    logs = [one, other, error, gone, late], [other, one, gone, late]
    return tuple("\n".join(f"rank {rank}: {text}" for rank, text in zip(ranks, log)) for log in logs)


def _as_the_launcher_sorts(log, world_size):
    lines = _lines(log)
    failures = [Failure(rank, text, time=i, symptom="RuntimeError" in text) for i, (rank, text) in enumerate(lines)]
    first = LaunchError(failures).failures[0]
    silent = set(range(world_size)) - {rank for rank, _ in lines}
    return silent.pop() if first.symptom and silent else first.rank


def _lines(log):
    return [(int(line.split()[1][:-1]), line) for line in log.splitlines()]


def _first_without(*signs):
    def cause(log, world_size):
        return next((rank for rank, text in _lines(log) if not any(sign in text for sign in signs)), None)

    return cause


cause = Exercise(
    run=lambda answer, *logs: [answer(log, WORLD) for log in logs],
    right=_as_the_launcher_sorts,
    inputs=_logs,
    mistakes={
        "the first to speak is often a healthy rank. What does its text say about another one?": _first_without(),
        "the last line is what one copies into a search engine. Is it a symptom?": lambda log, _: _lines(log)[-1][0],
        "a rank that timed out did come. For whom did it wait?": _first_without("by peer"),
        "there is a second sort of symptom: what says a rank whose partner has gone?": _first_without("Timed out"),
        "if all that is said are symptoms, who has said nothing?": _first_without("by peer", "Timed out"),
    },
    shows="the cause in a log full of symptoms, and the rank that is missing in one with nothing else",
)
