"""Replicas that start equal and stay equal. Taught in ``notebooks/03_ddp_wrap.ipynb``."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .environment import Environment


def wrap(model: nn.Module, env: Environment, **options: Any) -> DistributedDataParallel:
    """Move ``model`` to the rank's device and wrap it, so that ``backward()`` averages gradients over all ranks.

    Every rank calls this with a model of the same structure; all of them start from rank 0's weights. ``options`` go
    to :class:`~torch.nn.parallel.DistributedDataParallel`, which raises ``RuntimeError`` for a model without a
    trainable parameter. Call the wrapper, not ``.module``: a forward through ``.module`` exchanges nothing.
    """
    model = model.to(env.device)
    for parameter in model.parameters():
        if parameter.dim() == 4:  # the weights of a 2-D convolution
            parameter.data = parameter.data.to(memory_format=torch.channels_last)
    # On the CPU device_ids must be None: DDP refuses a list there.
    device_ids = None if env.device.type == "cpu" else [env.device]
    # Gradients live in the buckets that are sent, which saves a copy of all of them.
    return DistributedDataParallel(model, device_ids=device_ids, **{"gradient_as_bucket_view": True, **options})


def assert_replicas_agree(model: nn.Module) -> None:
    """Raise ``AssertionError`` on every rank, naming the tensor, unless all ranks hold the same weights and buffers.

    A collective: every rank has to call it. It compares to the bit, with rank 0 as the reference.
    """
    for name, tensor in model.state_dict().items():
        reference = tensor.detach().clone()
        dist.broadcast(reference, src=0)
        differs = (tensor != reference) & ~(tensor.isnan() & reference.isnan())
        # One flag for all, so that no rank goes on while another raises.
        flag = differs.any().to(torch.int32)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        if flag.item():
            raise AssertionError(
                f"the ranks hold different values of {name!r}. Was the model called as model.module(x), changed by one "
                f"rank alone, or never wrapped?"
            )
