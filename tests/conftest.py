"""What every test shares: the root on ``sys.path``, a bound on its time, data, and warm ranks."""

import os
import signal
import sys
import tempfile

import pytest
import torch.distributed as dist
from support import OF_A_LAUNCHER, ROOT, devices

sys.path.insert(0, str(ROOT))
os.environ.setdefault("MPLBACKEND", "agg")
for name in OF_A_LAUNCHER:
    os.environ.pop(name, None)

from ddp_tutorial import Ranks, load_dataset  # noqa: E402


@pytest.fixture(autouse=True)
def bounded():
    """End a test that hangs, with a traceback of where it hung, and leave no process group to the next one."""

    def stop(*_):
        raise TimeoutError("the test took longer than 180 s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(180)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A folder in which ``digits`` is prepared."""
    folder = tmp_path_factory.mktemp("data")
    load_dataset("digits", folder)
    return folder


@pytest.fixture(scope="session")
def two():
    """Two warm ranks on the CPU."""
    with Ranks(world_size=2, device="cpu", timeout=60) as ranks:
        yield ranks


@pytest.fixture(scope="session", params=devices())
def ranks(request):
    """Warm ranks on each type of device of this machine: two on the CPU, one for each GPU."""
    if request.param == "cpu":
        yield request.getfixturevalue("two")
        return
    with Ranks(device=request.param, timeout=60) as ranks:
        yield ranks


@pytest.fixture
def temp(tmp_path, monkeypatch):
    """An empty folder that this process takes for the system's folder of temporary files."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def no_processes(monkeypatch):
    """Fail if a process is started."""

    def spawn(*_, **__):
        pytest.fail("a process was started")

    monkeypatch.setattr("torch.multiprocessing.spawn", spawn)


def pytest_collection_modifyitems(items):
    """The count of what all the launches left comes last."""
    items.sort(key=lambda item: "test_leaks" in item.nodeid)
