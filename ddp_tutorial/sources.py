"""Which of the reader's own source files are loaded, and have they changed since?

Taught in ``notebooks/07_launch_and_plot.ipynb``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from .traces import is_library

_not_ours: set[str] = set()  # names of modules that need no second look


def own_files() -> dict[str, str]:
    """Return ``{file: module name}`` of the loaded modules that are neither Python's nor installed packages."""
    found = {}
    for name in sys.modules.keys() - _not_ours:
        file = getattr(sys.modules.get(name), "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py") or is_library(file):
            _not_ours.add(name)
        elif name not in ("__main__", "__mp_main__"):
            found[os.path.abspath(file)] = name
    return found


def import_roots(files: dict[str, str]) -> list[str]:
    """Return the folders that must be on ``sys.path`` for these modules to be found again, after a ``%cd`` as well."""
    roots = {}
    for file, name in files.items():
        depth = name.count(".") + (Path(file).name == "__init__.py")
        roots[str(Path(file).parents[depth])] = None
    return list(roots)


class Snapshot:
    """The content of files when they were loaded, as far as that can be known."""

    def __init__(self) -> None:
        self._known: dict[str, tuple] = {}

    def note(self, files: Iterable[str]) -> None:
        """Take in files not seen before, as they are now."""
        for file in files:
            if file not in self._known:
                self._known[file] = _state(file)

    def changed(self) -> list[str]:
        """Return the files whose content differs from what was noted, and note what is there now."""
        changed = []
        for file, (stamp, digest) in self._known.items():
            if _stamp(file) == stamp:
                continue
            self._known[file] = _state(file)
            if self._known[file][1] != digest:
                changed.append(file)
                # Python compares a compiled file with its source by second and size: an edit as quick and as long as
                # the first version would go unnoticed, and the ranks would run the old one.
                Path(importlib.util.cache_from_source(file)).unlink(missing_ok=True)
        return changed


def _state(file: str) -> tuple:
    stamp = _stamp(file)
    return stamp, hashlib.sha256(Path(file).read_bytes()).digest() if stamp else b""


def _stamp(file: str) -> tuple | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
