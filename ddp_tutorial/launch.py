"""Run a function on every device, from a notebook or a script. Taught in ``notebooks/07_launch_and_plot.ipynb``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .ranks import Ranks


def launch(
    fn: Callable,
    args: Sequence = (),
    *,
    world_size: int | None = None,
    device: str | None = None,
    backend: str | None = None,
    timeout: float = 120.0,
    on_event: Callable[[dict], None] | None = None,
) -> list[Any]:
    """Run ``fn(*args)`` in ``world_size`` new processes and return what each returned, in rank order.

    ``device`` None takes every visible GPU, and two CPU ranks where there is none; ``backend`` None takes the device's
    own. ``fn``, ``args`` and results travel by value. ``timeout`` is the seconds that ranks wait for one another, not
    those of the whole run. ``on_event`` gets each record that a rank hands to :func:`report`.

    Raises ``ValueError`` or ``TypeError`` before any process starts for what cannot work, and :class:`LaunchError` if a
    rank fails. Whatever happens, no process, port, file or variable stays behind.
    """
    __tracebackhide__ = True
    with Ranks(world_size=world_size, device=device, backend=backend, timeout=timeout) as ranks:
        return ranks.run(fn, args, on_event=on_event)
