"""Who kept the others waiting? Asked when a call on the ranks has failed.

Taught in ``notebooks/07_launch_and_plot.ipynb``.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from .failures import Failure, from_exit
from .traces import is_library, show_frames

if TYPE_CHECKING:
    from .supervision import Call


def exit_of(call: Call, rank: int) -> Failure:
    """Say how a rank ended that has not delivered a result."""
    call.processes.processes[rank].join()
    failure = from_exit(rank, call.processes.processes[rank].exitcode)
    if rank not in call.processes.ready:
        failure.what += ", before it was ready: its own message is above"
    _add_what_was_written(call, failure)
    return failure


def name_the_silent(call: Call) -> None:
    """Say of each rank that has neither failed nor returned where it is: the others may have waited for it."""
    silent = set(range(call.size)) - call.failures.keys() - call.results.keys()
    for rank in silent:
        call.processes.send(rank, "where")
    end = time.monotonic() + 1
    while not call.stacks.keys() | call.failures.keys() >= silent and time.monotonic() < end:
        call.listen(0.05)
    unexplained = all(failure.symptom for failure in call.failures.values())
    for rank in silent - call.failures.keys():
        stack = call.stacks.get(rank, [])
        waits = bool(stack) and is_library(stack[-1][0]) and "torch" in stack[-1][0]  # most likely in a collective
        what = "was waiting for other ranks" if waits else "was still running"
        if unexplained and not waits:
            what = "did not arrive where the others waited for it" if call.failures else "has not returned"
        call.failures[rank] = Failure(
            rank, what, traceback=show_frames(stack), symptom=waits or not unexplained, time=time.time_ns()
        )
        _add_what_was_written(call, call.failures[rank])
    if unexplained and call.results and any(failure.symptom for failure in call.failures.values()):
        for rank in call.results.keys() - call.failures.keys():
            what = "had returned while others still waited for it"
            call.failures[rank] = Failure(rank, what, time=call.returned[rank])


def _add_what_was_written(call: Call, failure: Failure) -> None:
    """Put the error in front that the rank wrote down before it died, or hung, while cleaning up."""
    written = call.folder / f"error-{failure.rank}.json"
    if written.exists():
        told = json.loads(written.read_text())["message"]
        where = f"\nwhere it was in the end:\n{failure.traceback}" if failure.traceback else ""
        failure.what = f"raised {told['message']} and then {failure.what}"
        failure.traceback, failure.time = told["extraInfo"]["py_callstack"] + where, written.stat().st_mtime_ns
