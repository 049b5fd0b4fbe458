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
    # A good day, then an error in the block, then one after the block has removed its folder itself.
    cases = [(before, ""), (None, "sample 17"), (None, "sample 18", True)]
    return [traces_of(answer, name, *case) for case in cases]


def traces_of(answer, name, before, broken, removed=False):
    if before is not None:
        os.environ[name] = before
    folder, inside, caught = "", None, None
    try:
        with answer(name, "inside") as folder:
            inside = {"group": dist.is_initialized(), "variable": os.environ.get(name), "folder": os.path.isdir(folder)}
            if removed:
                shutil.rmtree(folder)
            if broken:
                raise ValueError(broken)
    except Exception as error:
        caught = f"{type(error).__name__}: {error if type(error) is ValueError else 'another error than the first'}"
    after = {"group": dist.is_initialized(), "variable": os.environ.get(name), "folder": os.path.isdir(folder)}
    leave()
    os.environ.pop(name, None)
    shutil.rmtree(folder, ignore_errors=True)
    return {"inside": inside, "caught": caught, "after": after}


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
    },
    shows="no group, no folder, the variable as it was, on a good day and on two bad ones; and the error came through",
    world_size=2,
)
