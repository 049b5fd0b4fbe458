"""One call on all ranks, watched from start to end: what they print, report, return and suffer.

Taught in ``notebooks/07_launch_and_plot.ipynb``.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

from .door import Door
from .failures import Failure, LaunchError, from_description
from .inquest import exit_of, name_the_silent
from .output import Output
from .processes import Processes

GRACE = 1.0  # seconds to hear what other ranks suffered, once the cause is known
SEARCH = 3.0  # seconds to hear of the cause, while only its consequences are known


class Call:
    """A call on every rank of ``processes``, bounded by ``timeout`` seconds where ranks wait for one another."""

    def __init__(self, processes: Processes, number: int, timeout: float, on_event: Callable | None) -> None:
        self.processes, self.timeout, self.on_event = processes, timeout, on_event
        self.size = len(processes.pipes)
        self.folder = processes.folder / f"call-{number}"
        self.folder.mkdir()
        self.outputs = [Output(rank, processes.folder / f"{rank}-{number}.txt") for rank in range(self.size)]
        self.results: dict[int, Any] = {}
        self.returned: dict[int, int] = {}  # when, in nanoseconds since 1970
        self.files: dict[str, str] = {}  # the reader's source files that the ranks have imported
        self.failures: dict[int, Failure] = {}
        self.stacks: dict[int, list] = {}
        self.first_result = self.first_failure = self.last_event = 0.0
        self.door = Door()

    def run(self) -> list[Any]:
        """Return what the ranks returned, in rank order, or raise :class:`LaunchError`."""
        self.started = time.monotonic()
        try:
            while len(self.results) < self.size and not self._given_up():
                self.listen(0.05)
                for output in self.outputs:
                    output.show()
            if len(self.results) < self.size:
                name_the_silent(self)
        finally:
            self.door.close()
        for output in self.outputs:
            output.show(final=True)
        if self.failures:
            for rank, failure in self.failures.items():
                failure.printed = list(self.outputs[rank].last)
            raise LaunchError(list(self.failures.values()))
        return [self.results[rank] for rank in range(self.size)]

    def _given_up(self) -> bool:
        now = time.monotonic()
        if self.failures:
            if len(self.failures.keys() | self.results.keys()) == self.size:
                return True
            known = any(not failure.symptom for failure in self.failures.values())
            return now > self.first_failure + (GRACE if known else SEARCH)
        if self.results:
            # The others get the time that ranks wait for one another, and a little more: a collective that nobody
            # joins has a better error of its own by then.
            return now > max(self.first_result, self.last_event) + self.timeout + SEARCH
        # A rank takes seconds to start, up to a minute on a busy machine.
        return not self.processes.all_ready and now > self.started + max(self.timeout, 60)

    def listen(self, seconds: float) -> None:
        """Wait until a rank says something or ends, for ``seconds`` at most, and take it in."""
        alive = [rank for rank in range(self.size) if rank not in self.failures]
        pipes = {self.processes.pipes[rank]: rank for rank in alive}
        exits = {self.processes.processes[rank].sentinel: rank for rank in alive if rank not in self.results}
        for source in connection.wait([*pipes, *exits, *self.door.waitables()], seconds):
            if source in pipes:
                self._hear(pipes[source])
            elif source in exits:
                while self._hear(exits[source]):  # its last words may still be in the pipe
                    pass
                self._fail(exit_of(self, exits[source]))
            else:
                self.door.open()

    def _hear(self, rank: int) -> bool:
        """Take in one message of ``rank``, if there is one."""
        pipe = self.processes.pipes[rank]
        try:
            if rank in self.failures or not pipe.poll():
                return False
            kind, content = pipe.recv()
            result = pipe.recv_bytes() if kind == "done" else b""
        except (EOFError, OSError):
            return False  # its exit tells more
        if kind == "events" and self.on_event is not None:
            self.outputs[rank].show()  # what was printed before the report appears before it
            events = [{"rank": rank, **record} for record in content]
            if hasattr(self.on_event, "hear"):  # such as LivePlot, which draws once for records that came together
                self.on_event.hear(events)
            else:
                for event in events:
                    self.on_event(event)
            self.last_event = time.monotonic()  # a slow on_event is not the rank's fault
        elif kind == "ready":
            self.processes.ready.add(rank)
        elif kind == "where":
            self.stacks[rank] = content
        elif kind == "failed":
            self._fail(from_description(rank, content))
        elif kind == "done":
            self.first_result = self.first_result or time.monotonic()
            self.returned[rank] = time.time_ns()
            self.files |= content
            try:
                self.results[rank] = pickle.loads(result)
            except Exception as error:
                what = f"returned what cannot be read here ({type(error).__name__}: {error})"
                self._fail(Failure(rank, what, type(error).__name__))
        return True

    def _fail(self, failure: Failure) -> None:
        self.first_failure = self.first_failure or time.monotonic()
        self.failures.setdefault(failure.rank, failure)
