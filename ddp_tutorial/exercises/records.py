"""Check of notebook 07: a curve from the records of all ranks. Taught in ``notebooks/07_launch_and_plot.ipynb``."""

from __future__ import annotations

import torch

from . import Exercise


def _records(random):
    few, many = random.randint(1, 3), random.randint(5, 8)
    order = random.choice([(2, 1, 3), (3, 1, 2), (3, 2, 1)])
    losses = [{"rank": 0, "step": step, "loss": random.random(), "count": few} for step in order]
    return ([r for loss in losses for r in (loss, {"rank": 1, "step": loss["step"], "loss": 5.0, "count": many})],)


def _by_table(records):
    table = torch.zeros(3, 2, dtype=torch.float64)
    for record in records:
        table[record["step"] - 1] += torch.tensor([record["loss"] * record["count"], record["count"]])
    return (table[:, 0] / table[:, 1]).tolist()


def _mean_by_step(ranks=(0, 1), counted=True, order=sorted):
    def curve(records):
        means = {}
        for step in order(dict.fromkeys(record["step"] for record in records)):
            here = [record for record in records if record["step"] == step and record["rank"] in ranks]
            weights = [record["count"] if counted else 1 for record in here]
            means[step] = sum(weight * r["loss"] for weight, r in zip(weights, here)) / sum(weights)
        return list(means.values())

    return curve


curve = Exercise(
    run=lambda answer, records: answer(records),
    right=_by_table,
    inputs=_records,
    mistakes={
        "that is the curve of one rank. Who else has reported?": _mean_by_step(ranks=(0,)),
        "two ranks with different counts: does each weigh the same?": _mean_by_step(counted=False),
        "these are the means, in the order in which they were heard. Which order has a curve?": _mean_by_step(
            order=list
        ),
        "that is the curve of one rank, in the order in which it was heard. Who else, and which order?": _mean_by_step(
            ranks=(0,), order=list
        ),
        "two ranks with different counts, and steps as they were heard: which weights, and which order?": _mean_by_step(
            counted=False, order=list
        ),
    },
    shows="one point a step, over all ranks, each sample counted once, in the order of steps",
)
