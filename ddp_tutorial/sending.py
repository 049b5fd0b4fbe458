"""By value: how functions, arguments and results travel between a notebook and its ranks.

Taught in ``notebooks/07_launch_and_plot.ipynb``.
"""

from __future__ import annotations

import functools
import io
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def dumps(value: Any) -> bytes:
    """Pickle ``value``, functions and classes of a notebook cell included; tensors of a GPU become CPU tensors.

    ``pickle.loads`` reads it. Raises ``TypeError`` with the way out for what cannot travel.
    """
    buffer = io.BytesIO()
    try:
        _pickler()(buffer).dump(value)
    except Exception as error:
        if type(error) is TypeError and str(error).startswith("a "):  # one of ours, which says more
            raise
        raise TypeError(
            f"{type(value).__name__} cannot be pickled ({type(error).__name__}: {error}); make it inside the function"
        ) from error
    return buffer.getvalue()


def pack(fn: Callable, args: tuple) -> bytes:
    """Pickle a call of ``fn(*args)``. Raises ``TypeError`` that names the argument which cannot be sent."""
    if not callable(fn):
        raise TypeError(f"fn must be a function, not {type(fn).__name__}: launch(fn, args), without calling it")
    if not isinstance(args, tuple | list):
        raise TypeError(f"args must be a tuple, not {type(args).__name__}; for one argument write (value,)")
    try:
        return dumps((fn, tuple(args)))
    except TypeError as error:
        problem = error
    name = getattr(fn, "__name__", "fn")
    for what, part in [(f"the function {name!r}", fn), *((f"argument {i} of {name!r}", a) for i, a in enumerate(args))]:
        try:
            dumps(part)
        except TypeError as error:
            raise TypeError(f"{what} cannot be sent to the ranks: {error}") from None
    raise problem


@functools.cache
def _pickler() -> type:
    # Imported here: ranks under torchrun and Slurm need torch and nothing else.
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, DistributedDataParallel):
                raise TypeError("a DDP-wrapped model belongs to the process that wrapped it; send model.module")
            if isinstance(value, dist.ProcessGroup):
                raise TypeError("a process group belongs to the processes in it")
            # cloudpickle drops the file's name; with it, a traceback shows the reader's own line.
            if isinstance(value, types.CodeType):
                make, parts = self.dispatch_table[types.CodeType](value)
                return make, tuple(value.co_filename if part == "<dynamic-code>" else part for part in parts)
            # cloudpickle would send the content of a file as it is now; writes would then go nowhere.
            if isinstance(value, io.IOBase) and value not in (sys.stdout, sys.stderr) and _has_descriptor(value):
                raise TypeError(f"a file that is open here ({value.name!r}) is not open there; send its name")
            # The receiver may lack this GPU, or be a rank of another one. A Parameter arrives here through its .data.
            if type(value) is torch.Tensor and value.device.type not in ("cpu", "meta"):
                return value.detach().cpu().requires_grad_(value.requires_grad).__reduce_ex__(self.proto)
            return super().reducer_override(value)

        proto = cloudpickle.DEFAULT_PROTOCOL

    return Pickler


def _has_descriptor(file: io.IOBase) -> bool:
    try:
        file.fileno()
    except (OSError, ValueError):
        return False
    return True
