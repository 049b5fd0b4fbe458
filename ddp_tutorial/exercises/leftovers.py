"""An exercise on leaving nothing behind. Taught in ``notebooks/06_cleanup.ipynb``."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch.distributed as dist

from ..cleanup import leave, process_group
from ..environment import init_environment
from . import Exercise


def traces(answer, name, before):
    cases = {
        "good day": (before, ""),
        "error in the block": (None, "sample 17"),
        "error, folder already gone": (None, "sample 18", True),
    }
    return {case: traces_of(answer, name, *details) for case, details in cases.items()}


def traces_of(answer, name, before, broken, removed=False):
    if before is not None:
        os.environ[name] = before
    folder, inside, caught = "", None, None
    try:
        with answer(name, "inside") as folder:
            inside = found(name, folder)
            if removed and inside["folder"] is True:
                shutil.rmtree(folder)
            if broken:
                raise ValueError(broken)
    except Exception as error:
        caught = f"{type(error).__name__}: {error if type(error) is ValueError else 'another error than the first'}"
    after = found(name, folder)
    leave()
    os.environ.pop(name, None)
    if after["folder"] is True:
        shutil.rmtree(folder, ignore_errors=True)
    return {"inside": inside, "caught": caught, "after": after}


def found(name, folder):
    exists = os.path.isdir(folder) if isinstance(folder, str | os.PathLike) else "not a path"
    return {"group": dist.is_initialized(), "variable": os.environ.get(name), "folder": exists}


@contextmanager
def stacked(name, value):
    with ExitStack() as stack:
        stack.enter_context(process_group())
        stack.enter_context(mock.patch.dict(os.environ, {name: value}))
        yield stack.enter_context(tempfile.TemporaryDirectory())


@contextmanager
def by_hand(name, value, good_day=False, swallow=False, restore=True, careful=True):
    def tidy():
        leave()
        del os.environ[name]
        if restore and before is not None:
            os.environ[name] = before
        shutil.rmtree(folder, ignore_errors=careful)

    init_environment()
    before, folder, os.environ[name] = os.environ.get(name), tempfile.mkdtemp(), value
    try:
        yield folder
    except Exception:
        if not good_day:
            tidy()
        if not swallow:
            raise
    else:
        tidy()


@contextmanager
def in_blocks(name, value, tidy=True, gone=None, path=True):
    before = os.environ.get(name, gone)
    with process_group() as env, tempfile.TemporaryDirectory() as folder:
        os.environ[name] = value
        failed = True
        try:
            yield folder if path else env
            failed = False
        finally:
            if tidy or not failed:
                os.environ[name] = before
                if before == "":
                    del os.environ[name]


workplace = Exercise(
    run=traces,
    right=stacked,
    inputs=lambda random: (f"DDP_EXERCISE_{random.randrange(1000)}", f"as before {random.randrange(1000)}"),
    mistakes={
        "On a good day nothing stays behind; after an error it all does. Which clause of try runs on both?": (
            lambda *given: by_hand(*given, good_day=True)
        ),
        "Nothing stays behind, but the error is gone as well: whoever wrote the block takes it for a success.": (
            lambda *given: by_hand(*given, swallow=True)
        ),
        "The variable had a value before, and has none now. What do you have to remember before you set it?": (
            lambda *given: by_hand(*given, restore=False)
        ),
        "The block had removed the folder, and your cleanup raised over it: that error hides the first one.": (
            lambda *given: by_hand(*given, careful=False)
        ),
        "After an error the variable is not put back; all the rest is. Which clause of try runs on both days?": (
            lambda *given: in_blocks(*given, tidy=False)
        ),
        "The variable had no value before, and None is not one: restoring it raised, over the first error.": in_blocks,
        "The block gets something else than a path.": lambda *given: in_blocks(*given, gone="", path=False),
    },
    shows="no group, no folder, the variable as it was, on a good day and on two bad ones; and the error came through",
    world_size=2,
)
