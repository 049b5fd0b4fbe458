"""One call on all ranks, watched from start to end: what they print, report, return and suffer.

Taught in ``notebooks/07_launch_and_plot.ipynb``.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

from .door import Door
from .failures import Failure, LaunchError, from_description, from_exit
from .output import Output
from .processes import Processes
from .traces import is_library, show_frames

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
        self.files: dict[str, str] = {}  # the reader's source files that the ranks have imported
        self.failures: dict[int, Failure] = {}
        self.stacks: dict[int, list] = {}
        self.first_result = self.first_failure = 0.0
        self.door = Door()

    def run(self) -> list[Any]:
        """Return what the ranks returned, in rank order, or raise :class:`LaunchError`."""
        self.started = time.monotonic()
        try:
            while len(self.results) < self.size and not self._given_up():
                self._listen(0.05)
                for output in self.outputs:
                    output.show()
            if len(self.results) < self.size:
                self._name_the_silent()
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
            return now > self.first_result + self.timeout + SEARCH
        # A rank takes seconds to start, up to a minute on a busy machine.
        return not self.processes.all_ready and now > self.started + max(self.timeout, 60)

    def _listen(self, seconds: float) -> None:
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
                self._fail(self._exit_of(exits[source]))
            else:
                self.door.open()

    def _hear(self, rank: int) -> bool:
        """Take in one message of ``rank``, if there is one."""
        pipe = self.processes.pipes[rank]
        try:
            if rank in self.failures or not pipe.poll():
                return False
            kind, content = pipe.recv()
        except (EOFError, OSError):
            return False  # its exit tells more
        if kind == "event" and self.on_event is not None:
            self.outputs[rank].show()  # what was printed before the report appears before it
            self.on_event({"rank": rank, **content})
        elif kind == "ready":
            self.processes.ready.add(rank)
        elif kind == "where":
            self.stacks[rank] = content
        elif kind == "failed":
            self._fail(from_description(rank, content))
        elif kind == "done":
            self.first_result = self.first_result or time.monotonic()
            self.files |= content[1]
            try:
                self.results[rank] = pickle.loads(content[0])
            except Exception as error:
                what = f"returned what cannot be read here ({type(error).__name__}: {error})"
                self._fail(Failure(rank, what, type(error).__name__))
        return True

    def _fail(self, failure: Failure) -> None:
        self.first_failure = self.first_failure or time.monotonic()
        self.failures.setdefault(failure.rank, failure)

    def _exit_of(self, rank: int) -> Failure:
        self.processes.processes[rank].join()
        failure = from_exit(rank, self.processes.processes[rank].exitcode)
        if rank not in self.processes.ready:
            failure.what += ", before it was ready: its own message is above"
        written = self.folder / f"error-{rank}.json"
        if written.exists():  # it wrote its error down and died while cleaning up
            told = json.loads(written.read_text())["message"]
            failure.what = f"raised {told['message']} and then {failure.what}"
            failure.traceback, failure.time = told["extraInfo"]["py_callstack"], written.stat().st_mtime_ns
        return failure

    def _name_the_silent(self) -> None:
        """Say of each rank that has neither failed nor returned where it is: the others may have waited for it."""
        silent = set(range(self.size)) - self.failures.keys() - self.results.keys()
        for rank in silent:
            self.processes.send(rank, "where")
        end = time.monotonic() + 1
        while not self.stacks.keys() | self.failures.keys() >= silent and time.monotonic() < end:
            self._listen(0.05)
        unexplained = all(failure.symptom for failure in self.failures.values())
        for rank in silent - self.failures.keys():
            stack = self.stacks.get(rank, [])
            waits = bool(stack) and is_library(stack[-1][0]) and "torch" in stack[-1][0]  # most likely in a collective
            what = "was waiting for other ranks" if waits else "was still running"
            if unexplained and not waits:
                what = "did not arrive where the others waited for it" if self.failures else "has not returned"
            self.failures[rank] = Failure(
                rank, what, traceback=show_frames(stack), symptom=waits or not unexplained, time=time.time_ns()
            )
        if unexplained and self.results and any(failure.symptom for failure in self.failures.values()):
            for rank in self.results.keys() - self.failures.keys():
                self.failures[rank] = Failure(rank, "had returned while others still waited for it")
