"""Two exercises on speed that is judged without a clock. Taught in ``notebooks/09_faster.ipynb``."""

from __future__ import annotations

from . import Exercise


def some_runs(random):
    batch, seconds = random.choice((64, 128, 256)), random.uniform(0.1, 0.2)
    weak = [(n, n * batch, seconds * random.uniform(1.05, 1.3)) for n in (2, 8)]
    strong = [(n, batch, seconds / n * random.uniform(1.1, 1.6)) for n in (2, 4)]
    return ([(1, batch, seconds), *weak, *strong],)


efficiencies = Exercise(
    run=lambda answer, runs: [float(number) for number in answer(runs)],
    right=lambda runs: [(runs[0][2] / runs[0][1]) / (ranks * seconds / batch) for ranks, batch, seconds in runs],
    inputs=some_runs,
    mistakes={
        "That is right where each rank keeps its batch. What if the ranks share the batch of one?": (
            lambda runs: [runs[0][2] / seconds for _, _, seconds in runs]
        ),
        "That is right where the ranks share the batch of one. What if each rank keeps its own?": (
            lambda runs: [runs[0][2] / (ranks * seconds) for ranks, _, seconds in runs]
        ),
        "That is the speedup, which may grow up to the number of ranks. How much of each rank is put to use?": (
            lambda runs: [batch / seconds * runs[0][2] / runs[0][1] for _, batch, seconds in runs]
        ),
    },
    shows="one formula for weak and for strong scaling: samples a second of a rank, against those of one rank alone",
)


def in_turn(forward, backward, buckets, order):
    through = 0.0
    for ready, seconds in buckets:
        through = order(through, forward + ready * backward) + seconds
    return max(forward + backward, through)


def some_steps(random):
    def buckets(least, most):
        return [((k + 1) / 4, random.uniform(least, most) * backward) for k in range(4)]

    forward, backward = random.uniform(1, 2), random.uniform(3, 4)
    return ([(forward, backward, buckets(0.35, 0.45)), (forward, backward, buckets(0.03, 0.06))],)


def closed_form(forward, backward, buckets):
    sent = [seconds for _, seconds in buckets]
    ends = [forward + ready * backward + sum(sent[place:]) for place, (ready, _) in enumerate(buckets)]
    return max(forward + backward, *ends)


steps = Exercise(
    run=lambda answer, cases: [float(answer(*case)) for case in cases],
    right=closed_form,
    inputs=some_steps,
    mistakes={
        "You let the exchange begin when the backward pass is over. When is the first bucket full?": (
            lambda forward, backward, buckets: forward + backward + sum(seconds for _, seconds in buckets)
        ),
        "You let buckets overtake one another. How many messages does the link carry at a time?": (
            lambda *case: in_turn(*case, order=lambda through, ready: ready)
        ),
        "You let the exchange begin with the backward pass. What is in the first bucket at that moment?": (
            lambda forward, backward, buckets: forward + max(backward, sum(seconds for _, seconds in buckets))
        ),
        "You keep the link busy from the first bucket on. What if it is through before the next bucket is ready?": (
            lambda *case: in_turn(*case, order=lambda through, ready: through or ready)
        ),
    },
    shows="a bucket leaves when it is ready and the one before it is through; what sticks out behind is paid",
)
