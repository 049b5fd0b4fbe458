"""Moments in which an interrupt would leave something behind. Taught in ``notebooks/07_launch_and_plot.ipynb``."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold back an interrupt (Ctrl-C, the stop button) until the block is over, also in processes started in it."""
    in_main = threading.current_thread() is threading.main_thread()
    pending = []
    if in_main:
        previous = signal.signal(signal.SIGINT, lambda *_: pending.append(True))
    if os.name == "posix":
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if os.name == "posix":
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if in_main:
            signal.signal(signal.SIGINT, previous or signal.SIG_DFL)
            if pending:
                signal.raise_signal(signal.SIGINT)
