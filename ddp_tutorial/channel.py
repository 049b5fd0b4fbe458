"""A rank's end of the pipe to its parent. Taught in ``notebooks/07_launch_and_plot.ipynb``."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any, NoReturn


class Channel:
    """Sends to the parent, from any thread, and receives from it. If the parent is gone, the rank ends."""

    def __init__(self, pipe: Connection, folder: str) -> None:
        self._pipe, self._lock, self._folder = pipe, threading.Lock(), folder

    def send(self, kind: str, content: Any = None, result: bytes | None = None) -> None:
        """Send a message; a ``result``, already pickled, goes after it as it is, for it can be large."""
        try:
            with self._lock:
                self._pipe.send((kind, content))
                if result is not None:
                    self._pipe.send_bytes(result)
        except OSError:
            self._abandoned()

    def receive(self) -> tuple[str, Any]:
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            self._abandoned()

    def _abandoned(self) -> NoReturn:
        """The parent is gone, without a word: remove what it left, and end with all processes of this rank."""
        shutil.rmtree(self._folder, ignore_errors=True)
        if os.name == "posix":
            os.killpg(0, signal.SIGKILL)
        os._exit(1)
