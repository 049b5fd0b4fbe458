"""The notebooks run from any folder, offline, with an empty home, twice, and in a path with a space in it."""

import os
import shutil
import subprocess
import sys

import pytest
from support import ROOT

pytestmark = pytest.mark.launcher


@pytest.fixture
def copy(tmp_path):
    """A copy of what git tracks, below a folder with a space in its name."""
    folder = tmp_path / "a folder with spaces"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.splitlines():
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def test_a_notebook_that_writes_a_module_runs_twice_elsewhere(copy, tmp_path):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    modules = {path.name: path.read_bytes() for path in (copy / "ddp_tutorial").glob("*.py")}
    before = sorted(path.relative_to(copy) for path in copy.rglob("*") if path.is_file())
    # A proxy that nobody listens at: whoever reaches for the network fails at once.
    offline = {f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https", "all")}
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_CURRENT_TEST")}
    environ = kept | offline | {"HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    notebook = copy / "notebooks" / "02_model.ipynb"
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "--nbmake", "-p", "no:cacheprovider", str(notebook)],
            cwd=elsewhere,
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert run.returncode == 0, run.stdout + run.stderr
    assert modules == {path.name: path.read_bytes() for path in (copy / "ddp_tutorial").glob("*.py")}
    after = sorted(path.relative_to(copy) for path in copy.rglob("*") if path.is_file())
    new = [path for path in after if path not in before and path.parts[0] not in ("data", "runs")]
    assert not new, "a run leaves nothing but what git ignores"
