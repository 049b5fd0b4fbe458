"""Run a function on every device, from a notebook or a script. Taught in ``notebooks/07_launch_and_plot.ipynb``.

launch(fn, args)                     new processes for one call
with Ranks(device="cpu") as ranks:   processes that stay up between calls
    ranks.run(fn, args)
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from .devices import choose, variables
from .processes import Processes, paths_for_ranks
from .sending import pack
from .sources import Snapshot, import_roots, own_files
from .supervision import Call
from .traces import short_name

# Read when a process starts, so a change of one of them needs new processes.
_READ_AT_START = ("CUDA_", "HIP_", "NVIDIA_", "OMP_", "MKL_", "NCCL_", "GLOO_", "TORCH", "PYTORCH_")
_notebook = Snapshot()
_running: weakref.WeakSet[Ranks] = weakref.WeakSet()


class Ranks:
    """Processes that stay up between calls of :meth:`run`, with the arguments and the guarantees of :func:`launch`.

    They start with the first call, anew after a failure or when a source file that they imported has changed, and end
    with the ``with`` block, with :meth:`close`, or with this process.
    """

    def __init__(
        self,
        world_size: int | None = None,
        device: str | None = None,
        backend: str | None = None,
        timeout: float = 120.0,
    ) -> None:
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < 1e7:
            raise ValueError(f"timeout must be a number of seconds above 0, not {timeout!r}")
        self.timeout = float(timeout)
        self._chosen = device is None
        self.world_size, self.device, self.backend, self._reason = choose(world_size, device, backend)
        self._processes: Processes | None = None
        self._files, self._number = Snapshot(), 0
        _running.add(self)

    def run(self, fn: Callable, args: Sequence = (), *, on_event: Callable[[dict], None] | None = None) -> list[Any]:
        """Run ``fn(*args)`` on every rank and return what each returned, in rank order; see :func:`launch`."""
        __tracebackhide__ = True
        payload = pack(fn, args)
        files = own_files()
        roots = import_roots(files)
        self._tell_of_changes(files)
        processes = self._started(roots)
        self._number += 1
        try:
            call = Call(processes, self._number, self.timeout, on_event)
            setting = (self.world_size, self.device, self.backend, self.timeout)
            order = {"number": self._number, "payload": payload, "folder": str(call.folder), "cwd": os.getcwd()}
            order |= {"path": paths_for_ranks(roots), "environ": variables(*setting, call.door.port, call.folder)}
            for rank in range(self.world_size):
                processes.send(rank, "call", order)
            results = call.run()
        except BaseException:  # an interrupt too: nothing may go on behind the reader's back
            self._processes = None
            processes.stop()
            raise
        self._files.note(call.files)
        return results

    def close(self) -> None:
        """End the processes. Calling it twice does no harm."""
        processes, self._processes = self._processes, None
        if processes is not None:
            processes.stop(patience=2)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_processes", None) is not None and not sys.is_finalizing():
            self.close()

    def _started(self, roots: list[str]) -> Processes:
        settings = {name: value for name, value in os.environ.items() if name.startswith(_READ_AT_START)}
        dead = self._processes and not all(process.is_alive() for process in self._processes.processes)
        if self._processes and (dead or settings != self._settings or self._files.changed()):
            self.close()
        if self._processes is None:
            if self._chosen:
                what = f"{self.world_size} {'rank' if self.world_size == 1 else 'ranks'}"
                print(f"{what} on {self.device} ({self.backend}): {self._reason}", flush=True)
                self._chosen = False
            self._settings, self._files = settings, Snapshot()
            self._processes = Processes(self.world_size, roots)
        return self._processes

    def _tell_of_changes(self, files: dict[str, str]) -> None:
        _notebook.note(files)
        for file in filter(os.path.exists, _notebook.changed()):
            print(
                f"{short_name(file)} has changed since this process imported it: the ranks run the new version, this "
                f"process keeps the old one until it is restarted",
                flush=True,
            )


@atexit.register
def _close_all() -> None:
    # Before multiprocessing's own exit handler, which would wait for these processes for ever.
    for ranks in list(_running):
        ranks.close()
