"""What went wrong, on which rank, and what came of it. Taught in ``notebooks/07_launch_and_plot.ipynb``."""

from __future__ import annotations

import os
import re
import signal
import time
import traceback
from dataclasses import dataclass, field

import torch.distributed as dist

from .traces import frames_of, show_frames

# What a rank raises because another one has left, or has not come. Gloo and NCCL use RuntimeError for it.
_OF_ANOTHER_RANK = re.compile(
    r"gloo|NCCL|[Cc]onnection (closed|reset|refused)|Broken pipe|Socket [Tt]imeout|Application timeout"
    r"|failed to pass monitoredBarrier"
)
_USUAL_REASON = {
    "SIGKILL": ": often the system was out of memory; try a smaller batch, fewer ranks or fewer workers",
    "SIGSEGV": ": a crash in compiled code, an extension module for example",
    "SIGABRT": ": compiled code gave up; its reason is in the lines printed last",
    "SIGBUS": ": often shared memory was full; in a container give it more (--shm-size)",
}


@dataclass
class Failure:
    """How one rank failed. ``time`` is in nanoseconds since 1970; ``symptom`` says that another rank caused it."""

    rank: int
    what: str  # the rest of a sentence: "raised ValueError: ...", "was killed by SIGKILL ..."
    type: str = ""  # the name of the exception's class
    traceback: str = ""
    time: int = field(default_factory=time.time_ns)
    symptom: bool = False
    in_cleanup: bool = False  # a symptom that came while the rank dealt with an error of its own
    printed: list[str] = field(default_factory=list)  # the last lines that the rank printed


class LaunchError(RuntimeError):
    """A rank failed. The message starts with the one that failed first; ``failures`` has all, the cause in front."""

    def __init__(self, failures: list[Failure]) -> None:
        self.failures = sorted(failures, key=lambda failure: (failure.symptom, not failure.in_cleanup, failure.time))
        super().__init__(self.failures)

    def __str__(self) -> str:
        cause, *others = self.failures
        parts = [f"rank {cause.rank} {cause.what}"]
        if cause.traceback:
            parts.append(cause.traceback)
        if others:
            parts.append("What the other ranks met:")
            for other in others:
                seconds = (other.time - cause.time) / 1e9
                when = f"{abs(seconds):.1f} s {'later' if seconds >= 0 else 'earlier'}"
                own = [line[2:] for line in other.traceback.splitlines() if line.startswith("> ")]
                where = f", at {own[-1]}" if own else ""
                parts.append(f"  rank {other.rank} {_one_line(other.what)} ({when}{where})")
        if cause.printed:
            parts.append(f"The last lines that rank {cause.rank} printed:")
            parts += [f"  {line}" for line in cause.printed]
        return "\n".join(parts)


def describe(error: BaseException) -> dict:
    """Turn an exception into plain values, in the rank, where its class and its traceback exist."""
    links, seen, link, symptoms = [], set(), error, []
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        text = "".join(traceback.format_exception_only(type(link), link)).strip()
        of_another = isinstance(link, RuntimeError) and bool(_OF_ANOTHER_RANK.search(text))
        symptoms.append(of_another or isinstance(link, dist.DistError | TimeoutError))
        links.append((text, frames_of(traceback.walk_tb(link.__traceback__))))
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    # Its own time is that of writing it down: cleaning up, which comes after, is what makes the other ranks fail.
    written = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    moment = os.stat(written).st_mtime_ns if os.path.exists(written) else time.time_ns()
    # A timeout while an error of this rank's own was dealt with: more likely the culprit than a plain timeout is, but
    # not for sure. The error may have been a harmless one.
    kind = {"symptom": any(symptoms), "in_cleanup": any(symptoms) and not symptoms[-1]}
    return {"type": type(error).__name__, "links": links[::-1], "time": moment, **kind}


def from_description(rank: int, told: dict) -> Failure:
    """Make a :class:`Failure` of what :func:`describe` returned, in the parent, where the cells' sources are."""
    *before, (text, frames) = told["links"]
    parts = [f"{show_frames(earlier)}\n  {earlier_text}\nwhich led to:" for earlier_text, earlier in before]
    trace = "\n".join([*parts, show_frames(frames)])
    what = f"left by sys.exit ({text})" if told["type"] == "SystemExit" else f"raised {text}"
    if told["in_cleanup"]:
        what = f"raised {before[0][0]} and then {text}"
    return Failure(rank, what, told["type"], trace, told["time"], told["symptom"], told["in_cleanup"])


def from_exit(rank: int, code: int) -> Failure:
    """Make a :class:`Failure` of an exit without a result; a negative ``code`` is a signal's number."""
    if code >= 0:
        return Failure(rank, f"left with exit code {code} and without a result (os._exit, or a crash in a library)")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return Failure(rank, f"was killed by {name}{_USUAL_REASON.get(name, '')}")


def _one_line(text: str) -> str:
    text = " ".join(re.sub(r"\[\S+:\d+\] ", "", text).split())  # the line in Gloo's own source helps nobody
    return text if len(text) < 100 else text[:97] + "..."
