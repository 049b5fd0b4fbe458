"""A cell that takes too long under nbmake: the test fails in time, and nothing of its launch is left."""

import os
import subprocess
import sys
import time

import nbformat
import pytest
from support import ROOT, all_gone, wait_until

pytestmark = pytest.mark.faults

CELLS = [
    f"""
import os, pathlib, sys, time
sys.path.insert(0, {str(ROOT)!r})
from torch.utils.data import DataLoader
from ddp_tutorial import Ranks, launch, process_group
here = pathlib.Path(os.environ["TMPDIR"])
""",
    """
def hang(name):
    with process_group() as env:
        worker = iter(DataLoader(range(1000), num_workers=1))
        pids = f"{os.getpid()} {worker._workers[0].pid}"
        (here / f"new-{name}-{env.rank}").write_text(pids)
        os.replace(here / f"new-{name}-{env.rank}", here / f"pids-{name}-{env.rank}")
        while True:
            time.sleep(0.1)

def idle():
    (here / f"pids-idle-{os.environ['RANK']}").write_text(str(os.getpid()))

ranks = Ranks(world_size=2, device="cpu")
ranks.run(idle)
""",
    "launch(hang, ('busy',), world_size=2, device='cpu')",
]


def test_a_cell_that_hangs_is_ended_with_its_ranks(tmp_path):
    temp = tmp_path / "temp"
    temp.mkdir()
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in CELLS])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, tmp_path / "hangs.ipynb")
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--nbmake", "--nbmake-timeout=15", "-q"]
    began = time.monotonic()
    run = subprocess.run(
        [*command, str(tmp_path / "hangs.ipynb")],
        cwd=tmp_path,
        env=kept | {"TMPDIR": str(temp), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    seconds = time.monotonic() - began
    assert run.returncode == 1 and "timed out" in run.stdout.lower(), run.stdout + run.stderr
    pids = [int(pid) for file in temp.glob("pids-*") for pid in file.read_text().split()]
    assert len(pids) == 2 + 2 * 2, "both groups had begun: idle ranks, and busy ones with a worker each"
    assert all_gone(pids, 15)
    assert wait_until(lambda: not list(temp.glob("ddp_tutorial-*")), 15)
    assert not list(temp.glob("pytorch-errorfile-*"))
    assert seconds < 100
