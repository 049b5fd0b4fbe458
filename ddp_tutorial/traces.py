"""A stack as a reader wants to see it: their own lines marked, the libraries' folded away.

Taught in ``notebooks/07_launch_and_plot.ipynb``.
"""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from collections.abc import Iterable
from types import FrameType

Frame = tuple[str, int, str]  # file, line, function
_STANDARD_LIBRARY = os.path.dirname(os.__file__)
_HERE = os.path.dirname(os.path.abspath(__file__))
_CHECKS = os.path.join(
    _HERE, "exercises", ""
)  # they call the reader's function, and their lines show what they look for


def frames_of(walk: Iterable[tuple[FrameType, int]]) -> list[Frame]:
    """Return plain frames of ``walk``, outermost first, from the function that was launched on.

    ``walk`` yields what ``traceback.walk_tb`` does. The frames of the worker that called the function, and what is
    above them, say nothing to a reader.
    """
    stack = traceback.StackSummary.extract(walk, lookup_lines=False)
    start = max((i + 1 for i, f in enumerate(stack) if f.filename == os.path.join(_HERE, "worker.py")), default=0)
    return [(f.filename, f.lineno or 0, f.name) for f in stack[start:]]


def show_frames(frames: list[Frame]) -> str:
    """Lay out ``frames``, the innermost last: the reader's lines with ``>``, a run of library lines as one."""
    lines, folded = [], 0
    for index, (filename, number, name) in enumerate(frames):
        library = is_library(filename) or filename.startswith(_CHECKS)
        if library and index < len(frames) - 1:
            folded += 1
            continue
        if folded:
            lines.append(f"    ... {folded} more in libraries")
            folded = 0
        lines.append(f"{' ' if library else '>'} {short_name(filename)}, line {number}, in {name}")
        if source := linecache.getline(filename, number).strip():
            lines.append(f"      {source}")
    return "\n".join(lines)


def is_library(filename: str) -> bool:
    """True for files of Python itself and of installed packages."""
    installed = {"site-packages", "dist-packages"} & set(filename.replace("\\", "/").split("/"))
    return bool(installed) or filename.startswith((_STANDARD_LIBRARY, "<frozen", "<string"))


def short_name(filename: str) -> str:
    """Return the name a reader knows a file by: the cell it came from, or its path below its folder on ``sys.path``."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    cell = shell.compile.format_code_name(filename) if shell else None
    if cell:
        return " ".join(cell)
    folders = (os.path.join(os.path.abspath(entry), "") for entry in sys.path)
    return filename[max((len(folder) for folder in folders if filename.startswith(folder)), default=0) :]
