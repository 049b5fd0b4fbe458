import importlib
import os
import sys

import pytest

from ddp_tutorial import Ranks, launch
from ddp_tutorial.sources import Snapshot, import_roots, own_files

pytestmark = pytest.mark.launcher


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a module of the reader's and import it."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    names = []

    def write(name, text):
        file = folder / (name.replace(".", "/") + ".py")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        names.append(name)
        return file

    yield write
    for name in names:
        for part in (name, name.split(".")[0]):
            sys.modules.pop(part, None)


def test_own_files_are_neither_pythons_nor_installed(write):
    file = write("mine", "")
    importlib.import_module("mine")
    files = own_files()
    assert files[str(file)] == "mine"
    assert not [file for file in files if "site-packages" in file or file == os.__file__]


def test_roots_are_the_folders_that_make_the_imports_work():
    files = {"/a/module.py": "module", "/b/package/__init__.py": "package", "/b/package/part/x.py": "package.part.x"}
    assert import_roots(files) == ["/a", "/b"]


@pytest.mark.parametrize("keep_time", [False, True])
def test_an_edit_of_the_same_length_is_a_change(keep_time, tmp_path):
    """Also one within the same second, in which Python would take the compiled first version for the second."""
    file = tmp_path / "module.py"
    file.write_text("A = 1\n")
    snapshot = Snapshot()
    snapshot.note([str(file)])
    assert snapshot.changed() == []
    before = file.stat()
    file.write_text("A = 2\n")
    if keep_time:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert snapshot.changed() == [str(file)]
    assert snapshot.changed() == [], "told once"


def test_a_file_that_was_only_touched_has_not_changed(tmp_path):
    file = tmp_path / "module.py"
    file.write_text("A = 1\n")
    snapshot = Snapshot()
    snapshot.note([str(file)])
    os.utime(file, (1, 1))
    assert snapshot.changed() == []


def test_a_file_that_went_and_came_back(tmp_path):
    file = tmp_path / "module.py"
    file.write_text("A = 1\n")
    snapshot = Snapshot()
    snapshot.note([str(file)])
    file.unlink()
    assert snapshot.changed() == [str(file)]
    assert snapshot.changed() == []
    file.write_text("A = 1\n")
    assert snapshot.changed() == [str(file)]


def test_ranks_run_the_edited_file_and_the_reader_is_told(write, capsys, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    write("helper", "def version():\n    return 1\n")
    helper = importlib.import_module("helper")

    def version():
        return helper.version(), os.getpid()

    with Ranks(world_size=1, device="cpu") as ranks:
        ((first, pid),) = ranks.run(version)
        assert ranks.run(version) == [(1, pid)], "unchanged: the ranks stay"
        write("helper", "def version():\n    return 2\n")
        capsys.readouterr()
        ((second, new_pid),) = ranks.run(version)
        assert (first, second) == (1, 2)
        assert new_pid != pid
        assert "helper.py has changed since this process imported it" in capsys.readouterr().out
        ranks.run(version)
        assert capsys.readouterr().out == "", "told once"


def test_of_a_file_that_is_gone_there_is_no_new_version(write, two, capsys):
    file = write("gone", "")
    importlib.import_module("gone")
    two.run(os.getpid)
    file.unlink()
    capsys.readouterr()
    two.run(os.getpid)
    assert "has changed" not in capsys.readouterr().out


def test_a_module_that_only_the_ranks_import_is_watched_too(write):
    def version():
        import only_there

        return only_there.VERSION

    write("only_there", "VERSION = 1\n")
    with Ranks(world_size=1, device="cpu") as ranks:
        assert ranks.run(version) == [1]
        write("only_there", "VERSION = 2\n")
        assert ranks.run(version) == [2]
    assert "only_there" not in sys.modules


def test_modules_are_found_after_the_folder_was_changed(write, tmp_path, monkeypatch):
    """As after a %cd: the entry '' of sys.path then means another folder."""
    file = write("package.part", "def answer():\n    return 42\n")
    (file.parent / "__init__.py").write_text("")
    monkeypatch.chdir(file.parent.parent)
    monkeypatch.setattr(sys, "path", ["", *(entry for entry in sys.path if entry != str(file.parent.parent))])
    importlib.invalidate_caches()
    answer = importlib.import_module("package.part").answer
    monkeypatch.chdir(tmp_path)
    assert launch(answer, world_size=1, device="cpu") == [42]
