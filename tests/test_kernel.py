"""Launching from a live Jupyter kernel: stopping, restarting and killing it leaves nothing behind."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager

pytestmark = pytest.mark.faults

ROOT = Path(__file__).resolve().parents[1]
SETUP = f"""
import os, pathlib, sys, time
sys.path.insert(0, {str(ROOT)!r})
import torch
from ddp_tutorial import *
ranks = Ranks(world_size=2, device="cpu", timeout=60)
here = pathlib.Path(os.environ["TMPDIR"])

def busy():
    with process_group() as env:
        (here / f"pid-{{env.rank}}").write_text(str(os.getpid()))
        while True:
            torch.distributed.barrier()

def stuck():
    with process_group() as env:
        (here / f"pid-{{env.rank}}").write_text(str(os.getpid()))
        if env.rank == 1:
            time.sleep(1000)
        torch.distributed.barrier()

def with_loader_workers():
    with process_group() as env:
        loader = torch.utils.data.DataLoader(list(range(10_000_000)), num_workers=1)
        batches = iter(loader)
        next(batches)
        worker = batches._workers[0].pid
        (here / f"worker-{{env.rank}}").write_text(str(worker))
        (here / f"pid-{{env.rank}}").write_text(str(os.getpid()))
        time.sleep(1000)
"""


class Kernel:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manager = KernelManager(kernel_name="python3")
        # The interpreter of the tests, whatever kernel the user has installed under that name.
        self.manager.kernel_spec.argv[0] = sys.executable
        environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        self.manager.start_kernel(env={**environ, "TMPDIR": str(folder)}, cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        assert self.run(SETUP)["status"] == "ok"

    def start(self, code: str) -> str:
        return self.client.execute(code)

    def answer(self, message: str, seconds: float = 60) -> dict:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            reply = self.client.get_shell_msg(timeout=seconds)
            if reply["parent_header"].get("msg_id") == message:
                return reply["content"]
        raise TimeoutError(message)

    def run(self, code: str) -> dict:
        return self.answer(self.start(code))

    def pids(self, kind: str = "pid", count: int = 2, seconds: float = 60) -> list[int]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = sorted(self.folder.glob(f"{kind}-*"))
            if len(found) == count and all(path.read_text() for path in found):
                return [int(path.read_text()) for path in found]
            time.sleep(0.1)
        raise TimeoutError("the ranks did not start")

    def forget_pids(self) -> None:
        for path in [*self.folder.glob("pid-*"), *self.folder.glob("worker-*")]:
            path.unlink()


@pytest.fixture
def kernel(tmp_path):
    kernel = Kernel(tmp_path)
    yield kernel
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel(now=True)


def alive(pid: int) -> bool:
    """A zombie counts as alive: somebody still has to collect it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One whose parent is gone is init's to collect, which is not everywhere a quick init.
    stat = Path(f"/proc/{pid}/stat")
    try:
        state, parent = stat.read_text().rpartition(")")[2].split()[:2]
    except FileNotFoundError:
        return stat.parent.parent.exists() and not Path("/proc/self").exists()
    return not (state == "Z" and parent == "1")


def wait_until_gone(pids: list[int], folder: Path, seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    left: list = [True]
    while left and time.monotonic() < end:
        left = [pid for pid in pids if alive(pid)] + list(folder.glob("ddp_tutorial-*"))
        time.sleep(0.1)
    assert not left


def press_stop(kernel: Kernel) -> None:
    kernel.manager.interrupt_kernel()


def press_stop_twice(kernel: Kernel) -> None:
    kernel.manager.interrupt_kernel()
    time.sleep(0.05)
    kernel.manager.interrupt_kernel()


def interrupt_the_process_alone(kernel: Kernel) -> None:
    os.kill(kernel.manager.provisioner.pid, signal.SIGINT)


@pytest.mark.parametrize("stop", [press_stop, press_stop_twice, interrupt_the_process_alone])
@pytest.mark.parametrize("what", ["ranks.run(busy)", "launch(stuck, world_size=2, device='cpu')"])
def test_stopping_a_cell_leaves_nothing_and_the_next_launch_works(kernel, stop, what):
    message = kernel.start(what)
    pids = kernel.pids()
    stop(kernel)
    answer = kernel.answer(message, 20)
    assert answer["status"] == "error" and answer["ename"] == "KeyboardInterrupt"
    wait_until_gone(pids, kernel.folder)
    time.sleep(0.5)  # the second press may have come when the cell had ended
    assert kernel.run("assert ranks.run(lambda: 5) == [5, 5]")["status"] == "ok"


def test_stopping_while_the_ranks_still_start(kernel):
    message = kernel.start("launch(busy, world_size=2, device='cpu')")
    time.sleep(0.7)
    press_stop(kernel)
    assert kernel.answer(message, 20)["ename"] == "KeyboardInterrupt"
    wait_until_gone([], kernel.folder)


def test_data_loader_workers_end_with_their_rank(kernel):
    message = kernel.start("ranks.run(with_loader_workers)")
    pids = kernel.pids() + kernel.pids("worker")
    press_stop(kernel)
    assert kernel.answer(message, 20)["ename"] == "KeyboardInterrupt"
    wait_until_gone(pids, kernel.folder)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("what", ["busy", "stuck", "with_loader_workers"])
def test_killing_the_kernel_ends_its_ranks(kernel, how, what):
    kernel.start(f"ranks.run({what})")
    pids = kernel.pids() + (kernel.pids("worker") if what == "with_loader_workers" else [])
    os.kill(kernel.manager.provisioner.pid, how)
    wait_until_gone(pids, kernel.folder)


@pytest.mark.parametrize("now", [True, False])
def test_restarting_the_kernel_ends_idle_and_busy_ranks(kernel, now):
    assert (
        kernel.run("""
def who():
    (here / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
ranks.run(who)
""")["status"]
        == "ok"
    )
    idle = kernel.pids()
    kernel.forget_pids()
    kernel.start("launch(stuck, world_size=2, device='cpu')")
    busy = kernel.pids()
    kernel.manager.restart_kernel(now=now)
    wait_until_gone(idle + busy, kernel.folder)
