"""Records that a rank hands to whoever launched it, while it still runs.

Taught in ``notebooks/07_launch_and_plot.ipynb``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

_listener: Callable[[list[dict]], None] | None = None


def report(**values: Any) -> None:
    """Hand a small record to the process that launched this rank; its ``on_event`` gets ``{"rank": r, **values}``.

    Where nobody listens, under plain ``torchrun`` for example, it does nothing. Raises ``TypeError`` for values that
    are not JSON, such as tensors.
    """
    report_all([values])


def report_all(records: list[dict]) -> None:
    """Hand over several records as one message, which costs little more than one; otherwise as :func:`report`."""
    try:
        records = json.loads(json.dumps(records))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"report() takes plain numbers, strings, lists and dictionaries ({error}); a tensor of one element becomes "
            f"a number with .item()"
        ) from None
    if _listener is not None:
        _listener(records)


def listen(listener: Callable[[list[dict]], None] | None) -> None:
    """Have ``listener`` called with the records that this process reports, as they come; ``None`` ends that."""
    global _listener
    _listener = listener
