"""The lines that ranks print, whole and with the rank in front. Taught in ``notebooks/07_launch_and_plot.ipynb``."""

from __future__ import annotations

from collections import deque
from pathlib import Path


class Output:
    """Follows the file that one rank's standard output and error go to.

    A file, not a pipe: it keeps the last words of a rank that is killed, never fills up, and needs no thread.
    """

    def __init__(self, rank: int, path: Path) -> None:
        self.rank, self.path = rank, path
        self.last: deque[str] = deque(maxlen=10)
        self._position, self._rest = 0, b""

    def show(self, final: bool = False) -> None:
        """Print what has come since the last call; an unfinished last line only if this call is the ``final`` one."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._position)
                new = file.read()
        except FileNotFoundError:  # the rank has not begun
            new = b""
        self._position += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        if final and self._rest:
            lines, self._rest = [*lines, self._rest], b""
        # A bar that overwrites itself with carriage returns leaves what a terminal would show in the end.
        texts = [line.rstrip(b"\r").split(b"\r")[-1].decode("utf-8", "backslashreplace") for line in lines]
        self.last.extend(texts)
        if texts:
            print("\n".join(f"[rank {self.rank}] {text}" for text in texts), flush=True)
