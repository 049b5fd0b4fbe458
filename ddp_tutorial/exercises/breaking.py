"""Checks of notebook 08: a hang, and a verdict of one rank. Taught in ``notebooks/08_when_it_breaks.ipynb``."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..cleanup import process_group
from . import Exercise


def _try_best(answer, accuracies):
    with process_group(timeout=2) as env:
        try:
            return answer(accuracies[env.rank])
        except RuntimeError:
            return "waited for a rank that did not come"


def _best_by_gathering(accuracy):
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, accuracy)
    return max(everybody) if dist.get_rank() == 0 else None


def _on_rank_0_only(accuracy):
    best = torch.tensor(accuracy, dtype=torch.float64)
    if dist.get_rank() == 0:
        dist.all_reduce(best, op=dist.ReduceOp.MAX)
        return best.item()


def _without_the_collective(accuracy):
    return accuracy if dist.get_rank() == 0 else None


def _told_by_all(accuracy):
    best = torch.tensor(accuracy, dtype=torch.float64)
    dist.all_reduce(best, op=dist.ReduceOp.MAX)
    return best.item()


best = Exercise(
    run=_try_best,
    right=_best_by_gathering,
    inputs=lambda random: ([random.uniform(0.1, 0.4), random.uniform(0.6, 0.9)],),  # the best is not rank 0's
    mistakes={
        "rank 0 calls a collective, and who else does? Look at which lines the condition governs": _on_rank_0_only,
        "nothing hangs, since nothing is exchanged. Whose accuracy does rank 0 return?": _without_the_collective,
        "the number is right. Which ranks were asked to return it?": _told_by_all,
    },
    shows="all ranks take part, one of them tells",
    world_size=2,
)


def _try_agreement(answer, pairs):
    with process_group(timeout=2) as env:
        return [answer(torch.tensor(pair[env.rank], dtype=torch.float32)) for pair in pairs]


def _agree_by_gathering(weights):
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, weights.tolist())
    return all(other == everybody[0] for other in everybody)


def _own_opinion(weights):
    reference = weights.clone()
    dist.broadcast(reference, src=0)
    return torch.equal(weights, reference)


def _one_is_enough(weights):
    flag = torch.tensor(int(_own_opinion(weights)))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def _equal_sums(weights):
    sums = torch.stack([weights.sum(), -weights.sum()])
    dist.all_reduce(sums, op=dist.ReduceOp.MAX)
    return bool(sums[0] == -sums[1])


def _pairs(random):
    one = [random.randint(1, 9), random.randint(10, 99), random.randint(100, 999)]
    return ([[one, one], [one, [number + 1 for number in one]], [one, one[::-1]]],)


agreement = Exercise(
    run=_try_agreement,
    right=_agree_by_gathering,
    inputs=_pairs,
    mistakes={
        "rank 0 compares its weights with its own. Who tells it what the others found?": _own_opinion,
        "one rank always agrees with rank 0. How many have to?": _one_is_enough,
        "other weights can have the same sum. What has to be compared?": _equal_sums,
    },
    shows="a verdict that all ranks share, so that none goes on while another raises",
    world_size=2,
)
