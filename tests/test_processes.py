"""The ends that only a process of its own can show: an interrupt, a kill, an exit."""

import errno
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support import all_gone, start, wait_until

from ddp_tutorial import Ranks

pytestmark = pytest.mark.launcher

# Says where it is and which processes it has; every rank has a DataLoader worker as well.
SCRIPT = """
import os, sys, time
import torch
from ddp_tutorial import Ranks, launch, process_group, report
from torch.utils.data import DataLoader

def endless():
    worker = iter(DataLoader(range(100), num_workers=1))
    report(pids=[os.getpid(), worker._workers[0].pid])
    with process_group() as env:
        if env.rank == 1:
            time.sleep(1000)
        torch.distributed.barrier()

def tell(event):
    print("ranks", *event["pids"], flush=True)

print("begin", flush=True)
"""
LAUNCH = SCRIPT + "launch(endless, world_size=2, device='cpu', on_event=tell)"


@pytest.fixture
def begin(tmp_path):
    """Start a script and return it, its folder of temporary files, and the processes that it has once it runs."""
    folder = tmp_path / "temp"
    folder.mkdir()
    started = []

    def begin(script, running=True):
        process = start("-c", script, cwd=tmp_path, TMPDIR=str(folder))
        started.append(process)
        assert process.stdout.readline() == "begin\n", process.stderr.read()
        pids = [int(pid) for _ in range(2 * running) for pid in process.stdout.readline().split()[1:]]
        assert len(pids) == 4 * running, process.stderr.read()
        return process, folder, pids

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def nothing_left(folder, pids):
    return all_gone(pids) and wait_until(lambda: not list(folder.iterdir()))


def test_a_second_interrupt_leaves_nothing_behind_either(begin):
    process, folder, pids = begin(LAUNCH)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert nothing_left(folder, pids)


def test_an_interrupt_ends_all_and_the_next_run_works(begin):
    """One process gets it, as a kernel does when its reader presses the stop button."""
    script = f"""{SCRIPT}
ranks = Ranks(world_size=2, device="cpu")
try:
    ranks.run(endless, on_event=tell)
except KeyboardInterrupt:
    print(ranks.run(abs, (-1,)))
"""
    process, folder, pids = begin(script)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert output == "[1, 1]\n", errors
    assert nothing_left(folder, pids)


def test_ranks_do_not_outlive_a_killed_parent(begin):
    process, folder, pids = begin(LAUNCH)
    process.kill()
    process.communicate(timeout=60)
    assert nothing_left(folder, pids)


def test_ranks_that_were_still_starting_do_not_outlive_a_killed_parent(begin):
    process, folder, _ = begin(LAUNCH, running=False)
    assert wait_until(lambda: list(folder.iterdir()), 60)
    time.sleep(0.3)
    process.kill()
    process.communicate(timeout=60)  # waits for all that hold its output open, so for the ranks too
    assert wait_until(lambda: not list(folder.iterdir()))


@pytest.mark.parametrize("end", ["", "raise ValueError"])
def test_ranks_that_nobody_closed_end_with_their_parent(end, begin):
    script = f"""{SCRIPT}
ranks = [Ranks(world_size=1, device="cpu") for _ in range(2)]
for one in ranks:
    print("ranks", *2 * one.run(os.getpid), flush=True)
{end}
"""
    process, folder, pids = begin(script)
    _, errors = process.communicate(timeout=60)
    assert errors.count("Traceback") == bool(end), errors
    assert "leaked" not in errors
    assert nothing_left(folder, pids)


def test_a_missing_folder_of_temporary_files_is_named(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/does/not/exist")
    with pytest.raises(OSError, match="no room for the ranks' files.*set TMPDIR"):
        Ranks(world_size=1, device="cpu").run(os.getpid)


def test_a_full_folder_of_temporary_files_is_named_and_left_as_it_was(temp, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no room for the ranks' files.*No space left.*set TMPDIR"):
        Ranks(world_size=1, device="cpu").run(os.getpid)
    assert list(temp.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")
def test_runs_leave_no_open_file_behind(two):
    two.run(os.getpid)

    def open_files():
        return len(os.listdir("/proc/self/fd"))

    before, before_in_ranks = open_files(), two.run(open_files)
    for _ in range(5):
        two.run(os.getpid)
    assert (open_files(), two.run(open_files)) == (before, before_in_ranks)
