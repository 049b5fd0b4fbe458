"""After many launches, some of them failing, this process is what it was. Runs last, so that all tests count."""

import collections
import gc
import os
import sys
import threading

import psutil
import pytest
import torch
import torch.distributed as dist

from ddp_tutorial import LaunchError, Ranks, launch, process_group

pytestmark = [pytest.mark.faults, pytest.mark.skipif(sys.platform != "linux", reason="counts in /proc")]


def works():
    with process_group() as env:
        total = torch.tensor(env.rank + 1)
        dist.all_reduce(total)
        print("a line")
        return total.item()


def makes_its_own_group():
    dist.init_process_group("gloo")
    total = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(total)
    return total.item()  # and leaves it open


def raises():
    with process_group() as env:
        if env.rank == 1:
            raise ValueError("on purpose")
        dist.barrier()


def dies():
    with process_group() as env:
        if env.rank == 1:
            os._exit(1)
        dist.barrier()


def state(folder):
    gc.collect()
    process = psutil.Process()
    children = process.children(recursive=True)
    return {
        "variables": dict(os.environ),
        "folder": os.getcwd(),
        "path": sys.path[:],
        "temporary files": sorted(os.listdir(folder)),
        "shared memory": sorted(name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{os.getpid()}_")),
        "zombies": [child.pid for child in children if child.status() == psutil.STATUS_ZOMBIE],
        "processes": [child.pid for child in children if "resource_tracker" not in " ".join(_command(child))],
        "sockets": len(process.net_connections(kind="all")),
        "descriptors": collections.Counter(_kind(fd) for fd in os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


def _command(child):
    try:
        return child.cmdline()
    except psutil.Error:
        return []


def _kind(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").split(":")[0]
    except OSError:  # that of the listing itself
        return "closed"


def fails(call, fn):
    with pytest.raises(LaunchError, match="^rank 1 "):
        call(fn)


def test_after_50_launches_nothing_is_left(temp):
    def cold(fn):
        return launch(fn, world_size=2, device="cpu", timeout=30)

    # Made once and kept: multiprocessing's resource tracker, and a pipe for signals of torch's store.
    cold(works)
    cold(makes_its_own_group)
    before = state(temp)
    with Ranks(world_size=2, device="cpu", timeout=30) as ranks:
        for number in range(40):
            if number % 10 == 9:
                fails(ranks.run, raises if number % 4 == 1 else dies)
            else:
                assert ranks.run(makes_its_own_group if number % 2 else works) == [3, 3]
            if number % 10 == 4:
                assert cold(works) == [3, 3]
                fails(cold, dies if number % 4 else raises)
    assert state(temp) == before


def test_after_all_tests_no_process_of_a_launch_is_left_but_the_warm_ranks(two):
    pids = set(two.run(os.getpid))
    children = {child.pid: child for child in psutil.Process().children(recursive=True)}
    spawned = {pid for pid, child in children.items() if "spawn_main" in " ".join(_command(child))}
    assert not spawned - pids, "ranks of a test that are still there"
    zombies = [pid for pid, child in children.items() if child.status() == psutil.STATUS_ZOMBIE]
    assert not zombies
