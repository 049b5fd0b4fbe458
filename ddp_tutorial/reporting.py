"""Records that a rank hands to whoever launched it, while it still runs.

Taught in ``notebooks/07_launch_and_plot.ipynb``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

_listener: Callable[[dict], None] | None = None


def report(**values: Any) -> None:
    """Hand a small record to the process that launched this rank; its ``on_event`` gets ``{"rank": r, **values}``.

    Where nobody listens, under plain ``torchrun`` for example, it does nothing. Raises ``TypeError`` for values that
    are not JSON, such as tensors.
    """
    try:
        record = json.loads(json.dumps(values))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"report() takes plain numbers, strings, lists and dictionaries ({error}); a tensor of one element becomes "
            f"a number with .item()"
        ) from None
    if _listener is not None:
        _listener(record)


def listen(listener: Callable[[dict], None] | None) -> None:
    """Have ``listener`` called with each record that this process reports; ``None`` ends that."""
    global _listener
    _listener = listener
