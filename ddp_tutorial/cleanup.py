"""Leaving well, also when something broke. Taught in ``notebooks/06_cleanup.ipynb``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from .environment import Environment, init_environment


@contextmanager
def process_group(
    device: str | None = None, backend: str | None = None, timeout: float | None = None
) -> Iterator[Environment]:
    """Join the process group for the length of a ``with`` block and leave it at the end, whatever happened.

    Takes the arguments of :func:`init_environment`, raises what it raises, and yields its :class:`Environment`.
    """
    try:
        yield init_environment(device, backend, timeout)
    except BaseException as error:
        # Written down before leaving. The moment this rank leaves, the others fail with "connection closed by peer",
        # and whoever reads the errors could take one of those for the cause.
        record_error(error)
        raise
    finally:
        leave()


def record_error(error: BaseException) -> None:
    """Write ``error`` to the file in ``TORCHELASTIC_ERROR_FILE``, where ``torchrun`` and ``launch`` look for it.

    Call it in an ``except`` block. Where the variable is not set, it does nothing.
    """
    get_error_handler().record_exception(error)


def leave() -> None:
    """Destroy the process group if there is one, so that calling it twice does no harm."""
    if dist.is_initialized():
        dist.destroy_process_group()
