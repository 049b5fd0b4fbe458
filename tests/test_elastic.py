"""``torchrun`` brings a run back: a rank, all ranks or torchrun itself killed; a host that leaves, one that joins."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from support import TORCHRUN, all_gone, free_port, python, start, wait_until
from test_checkpoint import same_run

from ddp_tutorial.history import read_history

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux, to find the ranks of a torchrun"),
]
RUN = ("-m", "ddp_tutorial", "--device", "cpu", "--epochs", "6", "--checkpoint-every", "7")
STEPS = 6 * 12


@pytest.fixture(scope="module")
def through(data, tmp_path_factory):
    """The folder of the run that nobody interrupted."""
    folder = tmp_path_factory.mktemp("through")
    result = python(*TORCHRUN, *RUN, "--data", data, "--out", "run", cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder / "run"


def ranks_of(torchrun):
    """Return the process ids of the ranks that ``torchrun`` has now, by global rank."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == torchrun.pid:
                variables = dict(
                    line.split("=", 1) for line in (folder / "environ").read_text().split("\0") if "=" in line
                )
                found[int(variables["RANK"])] = int(folder.name)
        except (OSError, ValueError, KeyError):  # not a process, or one that has ended
            continue
    return found


def steps_of(folder):
    file = folder / "history.jsonl"
    return len(read_history(file)["steps"]) if file.exists() else 0


def kill(pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def finish(process, seconds=120):
    """Return what ``process`` printed, once it has ended as it should."""
    try:
        out, errors = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    return out


@pytest.mark.parametrize("victims", ["rank 0", "rank 1", "all ranks"])
def test_killed_ranks_come_back_from_the_last_checkpoint(victims, through, data, tmp_path):
    command = (*TORCHRUN, "--max-restarts=3", *RUN, "--data", data, "--checkpoint", "run")
    process = start(*command, cwd=tmp_path)
    chance = random.Random(victims)
    for _ in range(2):
        at = steps_of(tmp_path / "run") + chance.randint(10, 20)
        assert wait_until(lambda at=at: steps_of(tmp_path / "run") >= at, 60)
        pids = ranks_of(process)
        kill(pids.values() if victims == "all ranks" else [pids[int(victims[-1])]])
        assert all_gone(pids.values(), 40)
    out = finish(process)
    assert out.count("going on from run/step-") == 2
    assert same_run(through, tmp_path / "run")
    assert len(read_history(tmp_path / "run" / "history.jsonl")["resumed"]) == 2


@pytest.mark.parametrize("seed", range(2))
def test_torchrun_itself_is_killed_and_called_again(seed, through, data, tmp_path):
    """The ranks that it leaves behind notice with their next checkpoint, and do not write into the run that goes on."""
    command = (*TORCHRUN, *RUN, "--data", data, "--checkpoint", "run")
    process, chance = start(*command, cwd=tmp_path), random.Random(seed)
    assert wait_until(lambda: steps_of(tmp_path / "run") >= chance.randint(1, STEPS - 20), 60)
    time.sleep(chance.random() / 5)
    orphans = ranks_of(process)
    process.kill()
    process.wait()
    again = start(*command, cwd=tmp_path)
    assert all_gone(orphans.values(), 60)
    finish(again)
    process.communicate(timeout=10)
    assert same_run(through, tmp_path / "run")


def host(port, data, folder, meets_here=False):
    """Start what would be called on a host of its own; the first one holds the store in which all meet.

    Without TORCH_DISABLE_SHARE_RDZV_TCP_STORE a host that joins later waits in vain for the address of the store that
    torchrun (2.14) keeps from the start before, and all fail after a minute.
    """
    patience = "keep_alive_interval=1,last_call_timeout=3"  # seconds: 5 and 30 otherwise, 45 in all before it goes on
    conf = f"--rdzv-conf=is_host={int(meets_here)},{patience}"
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", conf)
    command = ("-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", *meeting)
    run = (*RUN[:-4], "--epochs", "30", "--batch-size", "8", "--lr", "0.01", "--checkpoint-every", "20")
    words = (*command, "--local-addr=127.0.0.1", *run, "--data", data, "--checkpoint", "run")
    return start(*words, cwd=folder, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")


def world_sizes(folder):
    file = folder / "run" / "history.jsonl"
    if not file.exists():
        return []
    return [len(step["train_loss_by_rank"]) for step in read_history(file)["steps"]]


def test_a_host_that_leaves_and_one_that_joins(data, tmp_path):
    """Two, one, two ranks: the run goes on each time, from the weights that it had, and ends."""
    port = free_port()
    first = host(port, data, tmp_path, meets_here=True)
    second = host(port, data, tmp_path)
    third = None
    try:
        assert wait_until(lambda: world_sizes(tmp_path).count(2) >= 30, 90)
        kill([second.pid, *ranks_of(second).values()])
        assert wait_until(lambda: world_sizes(tmp_path)[-1:] == [1], 90)
        third = host(port, data, tmp_path)
        assert wait_until(lambda: world_sizes(tmp_path)[-1:] == [2], 90)
        finish(first)
        finish(third)
    finally:
        for process in (first, second, third):
            if process is not None and process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            if process is not None:
                process.communicate(timeout=20)
    sizes, history = world_sizes(tmp_path), read_history(tmp_path / "run" / "history.jsonl")
    changes = [size for index, size in enumerate(sizes) if index == 0 or sizes[index - 1] != size]
    assert changes == [2, 1, 2]
    assert len(history["epochs"]) == 30
    assert history["epochs"][-1]["eval_accuracy"] > 0.85
