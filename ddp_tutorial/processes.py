"""The processes of a launch, from their start to their end, so that none stays behind.

Taught in ``notebooks/07_launch_and_plot.ipynb``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch.multiprocessing as mp

from . import worker
from .interrupts import interrupts_held

_one_at_a_time = threading.Lock()  # two threads that start processes would hide, and restore, each other's names


class Processes:
    """``world_size`` fresh processes that wait for calls. ``stop`` ends them and removes what they used."""

    def __init__(self, world_size: int, import_roots: list[str]) -> None:
        self.processes, self._error_files = [], []
        self.folder = None
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="ddp_tutorial-"))
            (self.folder / "room").write_bytes(bytes(65536))
        except OSError as error:
            if self.folder:
                shutil.rmtree(self.folder, ignore_errors=True)
            raise OSError(
                f"no room for the ranks' files ({error}); set TMPDIR to a folder that is writable and not full"
            ) from None
        pairs = [connection.Pipe() for _ in range(world_size)]
        self.pipes = [ours for ours, _ in pairs]
        self.ready: set[int] = set()  # ranks that have imported what they need and wait for calls
        try:
            with interrupts_held(), _seen_by_children(import_roots):
                arguments = ([theirs for _, theirs in pairs], str(self.folder))
                context = mp.spawn(worker.main, arguments, nprocs=world_size, join=False)
                self.processes, self._error_files = context.processes, context.error_files
        except BaseException:
            self.stop()  # if not all could be started, the others see their pipe close, and end
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()

    @property
    def all_ready(self) -> bool:
        return len(self.ready) == len(self.pipes)

    def send(self, rank: int, kind: str, content: Any = None) -> None:
        # A rank that has died is noticed by its exit code, with a better message than a broken pipe.
        with contextlib.suppress(OSError):
            self.pipes[rank].send((kind, content))

    def stop(self, patience: float = 0.0) -> None:
        """End all processes and theirs, remove the folder. ``patience`` is the seconds given to leave by themselves."""
        with interrupts_held():  # a second press on stop must not leave half of them running
            if patience:
                for rank in range(len(self.processes)):
                    self.send(rank, "stop")
                self._wait(patience)
            for process in self.processes:
                process.terminate()
            self._wait(2)
            for process in self.processes:
                if os.name == "posix":  # its DataLoader workers as well
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, signal.SIGKILL)
                process.kill()
                process.join()  # without it, it stays a zombie
                process.close()
            self.processes = []
            for pipe in self.pipes:
                pipe.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            for file in self._error_files:  # torch writes one for an error that the worker could not report itself
                Path(file).unlink(missing_ok=True)

    def _wait(self, seconds: float) -> None:
        """Wait for the processes to end; their exit is seen, not collected, so that their process ids stay theirs."""
        end, left = time.monotonic() + seconds, {process.sentinel for process in self.processes}
        while left and (remaining := end - time.monotonic()) > 0:
            left -= set(connection.wait(left, timeout=remaining))


@contextlib.contextmanager
def _seen_by_children(import_roots: list[str]) -> Iterator[None]:
    """Show a new process what it has to see, and no more, of this one's ``sys.path`` and main module.

    multiprocessing runs the file of ``__main__`` again in every child: a script without ``if __name__ == "__main__"``
    would start over, and in a notebook a variable ``__file__`` would be taken for that file. What ``__main__`` defines
    travels by value, so it need not run. Relative entries of ``sys.path`` mean another folder after a ``%cd``.
    """
    with _one_at_a_time:
        main, path, method = sys.modules["__main__"], list(sys.path), mp.get_start_method(allow_none=True)
        hidden = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
        sys.path[:] = paths_for_ranks(import_roots)
        for name in hidden:
            setattr(main, name, None)
        try:
            yield
        finally:
            sys.path[:] = path
            for name, value in hidden.items():
                setattr(main, name, value)
            mp.set_start_method(method, force=True)  # starting a process settles it, and only the reader may do that


def paths_for_ranks(import_roots: list[str]) -> list[str]:
    """Return ``sys.path`` as absolute paths, and behind them the folders of the reader's loaded modules."""
    return list(dict.fromkeys([*(os.path.abspath(entry) for entry in sys.path), *import_roots]))
