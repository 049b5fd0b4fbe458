import os
import sys
import traceback
from pathlib import Path

import torch

from ddp_tutorial import exercises
from ddp_tutorial.traces import frames_of, is_library, short_name, show_frames

HERE = Path(__file__)


def frames_of_an_error():
    try:
        torch.ones(2).split(-1)
    except RuntimeError as error:
        return frames_of(traceback.walk_tb(error.__traceback__))


def test_frames_are_plain_and_outermost_first():
    first, *rest = frames_of_an_error()
    assert first[0] == str(HERE) and first[2] == "frames_of_an_error"
    assert rest and all(type(part) in (str, int) for frame in rest for part in frame)


def test_the_lines_of_a_check_are_folded():
    check = Path(exercises.__file__).with_name("capstone.py")
    lines = show_frames([(str(check), 3, "_attempt"), (str(HERE), 1, "mine")]).splitlines()
    assert lines[:2] == ["    ... 1 more in libraries", f"> {HERE.name}, line 1, in mine"]


def test_the_readers_lines_are_marked_and_the_libraries_folded():
    library = os.path.join(os.path.dirname(torch.__file__), "nn", "modules", "module.py")
    frames = [(str(HERE), 1, "train"), (library, 2, "a"), (library, 3, "b"), (library, 4, "c")]
    lines = show_frames(frames).splitlines()
    assert lines[0] == f"> {HERE.name}, line 1, in train"
    assert lines[1].strip() == "import os"
    assert lines[2].strip() == "... 2 more in libraries"
    assert lines[3].startswith("  torch/nn/modules/module.py, line 4, in c")


def test_a_file_that_is_no_longer_there_has_no_source():
    assert show_frames([("/gone/away.py", 3, "f")]) == "> /gone/away.py, line 3, in f"


def test_python_and_installed_packages_are_libraries_the_readers_files_are_not():
    assert all(is_library(file) for file in (torch.__file__, os.__file__, "<frozen importlib._bootstrap>"))
    assert not any(is_library(file) for file in (str(HERE), "/home/me/torch/train.py", "/tmp/ipykernel_7/1.py"))


def test_files_are_named_below_their_folder_on_the_path(monkeypatch):
    monkeypatch.setattr(sys, "path", ["/project", "/project/src"])
    assert short_name("/project/src/package/module.py") == "package/module.py"
    assert short_name("/project/other.py") == "other.py"
    assert short_name("/elsewhere/other.py") == "/elsewhere/other.py"
