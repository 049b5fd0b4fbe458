"""The check of a wrapper that does what DDP does. Taught in ``notebooks/03_ddp_wrap.ipynb``."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..cleanup import process_group
from . import Exercise


class Scaled(nn.Module):
    """A layer and a buffer; both depend on the rank that builds it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("scale", torch.rand(2) + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale


def _try_wrapper(answer: Callable, batch: torch.Tensor) -> dict:
    with process_group(timeout=5) as env:
        torch.manual_seed(env.rank)
        model = Scaled()
        wrapped = answer(model)
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with mock.patch.object(dist, "all_reduce", wraps=dist.all_reduce) as messages:
            wrapped(batch[env.rank :: env.world_size]).square().mean().backward()
            wrapped.average()
        gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        return {"start": start, "gradient": gradient, "one message": messages.call_count <= 1}


class _Real(DistributedDataParallel):
    def average(self) -> None:
        """Nothing is left to do after ``backward()``."""


class _ByHand(nn.Module):
    def __init__(self, module, state=lambda module: module.state_dict().values(), divide=True, together=True):
        super().__init__()
        self.module, self.divide, self.together = module, divide, together
        for tensor in state(module):
            dist.broadcast(tensor.detach(), src=0)

    def forward(self, *inputs):
        return self.module(*inputs)

    def average(self):
        gradients = [parameter.grad for parameter in self.module.parameters()]
        groups = [gradients] if self.together else [[gradient] for gradient in gradients]
        for group in groups:
            flat = torch.cat([gradient.flatten() for gradient in group])
            dist.all_reduce(flat)
            nn.utils.vector_to_parameters(flat / (dist.get_world_size() if self.divide else 1), group)


wrapper = Exercise(
    run=_try_wrapper,
    right=_Real,
    inputs=lambda random: (torch.randn(8, 3),),
    mistakes={
        "the gradients are equal on both ranks, and twice as large as they should be: what does an all-reduce leave to "
        "you?": lambda module: _ByHand(module, divide=False),
        "the gradients are averaged, but each rank has averaged from weights of its own: how do the replicas "
        "start?": lambda module: _ByHand(module, state=lambda module: []),
        "the weights start equal, and there is more in a model than weights: is all of its state "
        "sent?": lambda module: _ByHand(module, state=nn.Module.parameters),
        "the numbers are right, in more than one message: what would have to lie in one tensor for one all-reduce to "
        "do?": lambda module: _ByHand(module, together=False),
    },
    shows="state and gradients are those of the real DDP, with one message after backward()",
    world_size=2,
)
