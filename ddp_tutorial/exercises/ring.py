"""An all-reduce from send and receive: a ring to watch, and the check. Taught in ``notebooks/01_environment.ipynb``."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import torch
import torch.distributed as dist

from ..cleanup import process_group
from . import Exercise


def in_a_ring(tensor: torch.Tensor, note: Callable = lambda: None, gather: bool = True) -> None:
    """Add up ``tensor`` over all ranks, in place, and call ``note`` after each step."""
    rank, size = dist.get_rank(), dist.get_world_size()
    chunks, arrived = tensor.chunk(size), torch.empty(len(tensor) // size)
    for step in range(2 * (size - 1) if gather else size - 1):
        sending = dist.isend(chunks[(rank - step) % size], (rank + 1) % size)
        dist.recv(arrived, (rank - 1) % size)
        sending.wait()
        target = chunks[(rank - 1 - step) % size]
        target.copy_(target + arrived if step < size - 1 else arrived)
        note()


def states_of_a_ring(values: list[list[float]]) -> list[list[float]]:
    """Return what this rank holds at first and after each step, when rank ``r`` begins with ``values[r]``."""
    with process_group(timeout=10) as env:
        tensor = torch.tensor(values[env.rank], dtype=torch.float32)
        states = [tensor.tolist()]
        in_a_ring(tensor, lambda: states.append(tensor.tolist()))
        return states


def count_sent(answer: Callable, tensor: torch.Tensor) -> dict[int, int]:
    """Call ``answer(tensor)`` and return how many elements were sent to which rank."""
    counts, send = {}, dist.ProcessGroup.send

    def counting(group, tensors, to, *more):
        counts[to] = counts.get(to, 0) + sum(tensor.numel() for tensor in tensors)
        return send(group, tensors, to, *more)

    with mock.patch.object(dist.ProcessGroup, "send", counting):
        answer(tensor)
    return counts


def _try_ring(answer: Callable, tensors: list[torch.Tensor]) -> dict:
    with process_group(timeout=2) as env:
        tensor = tensors[env.rank].clone()
        try:
            counts = count_sent(answer, tensor)
        except RuntimeError as error:
            if not any(words in str(error).lower() for words in ("timed out", "by peer")):
                raise
            return {"waited": "in vain"}  # until its own limit, or until a neighbour had given up
        return {"tensor": tensor, "elements sent": sum(counts.values()), "receivers": len(counts)}


def _sum_and_traffic(tensor):  # the sum from the real one, and as much traffic as a ring of chunks needs
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(tensor)
    sending = dist.isend(tensor.repeat(2)[: 2 * (size - 1) * len(tensor) // size], (rank + 1) % size)
    dist.recv(torch.empty(2 * (size - 1) * len(tensor) // size), (rank - 1) % size)
    sending.wait()


def _whole_tensors(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    moving, arrived = tensor.clone(), torch.empty_like(tensor)
    for _ in range(size - 1):
        sending = dist.isend(moving, (rank + 1) % size)
        dist.recv(arrived, (rank - 1) % size)
        sending.wait()
        tensor += arrived
        moving.copy_(arrived)


def _all_send_first(tensor):
    dist.send(tensor, (dist.get_rank() + 1) % dist.get_world_size())
    dist.recv(tensor, (dist.get_rank() - 1) % dist.get_world_size())


ring = Exercise(
    run=_try_ring,
    right=_sum_and_traffic,
    inputs=lambda random: (list(torch.rand(3, 3 * random.randint(4, 6)) + torch.arange(3)[:, None]),),
    mistakes={
        "the sum is right, and each rank has sent its whole tensor twice. Which part of it does the next rank need in "
        "one step, if others look after the rest?": _whole_tensors,
        "each rank holds one finished chunk, and the others are sums of some ranks only. The first half of the way is "
        "done; who has the chunks that you lack?": lambda tensor: in_a_ring(tensor, gather=False),
        "the sum is right, but no rank has sent anything by itself: a collective did it. Use send and receive "
        "alone": lambda tensor: dist.all_reduce(tensor),
        "the tensor that was handed in is as it was: an all-reduce works in place": lambda tensor: in_a_ring(
            tensor.clone()
        ),
        "the ranks waited until the timeout. send() returns when the other side receives: look at what each "
        "of the three ranks does first": _all_send_first,
    },
    shows="three ranks hold the sum, and each has sent 4/3 of its tensor, to one neighbour",
    world_size=3,
)
