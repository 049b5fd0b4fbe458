import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from support import all_gone

from ddp_tutorial import Ranks, process_group

pytestmark = pytest.mark.launcher


def sum_of_ranks(offset=0):
    """A function of a module: it travels by reference."""
    with process_group() as env:
        total = torch.tensor(env.rank + offset, device=env.device)
        dist.all_reduce(total)
        return env.rank, total.item()


def test_ranks_stay_up_between_runs(two):
    pids = two.run(os.getpid)
    assert two.run(os.getpid) == pids
    assert len({os.getpid(), *pids}) == 3


def test_closed_ranks_are_gone_and_start_again(temp):
    ranks = Ranks(world_size=1, device="cpu")
    assert list(temp.iterdir()) == [], "nothing starts before the first run"
    first = ranks.run(os.getpid)
    ranks.close()
    ranks.close()
    assert all_gone(first) and list(temp.iterdir()) == []
    with ranks:
        second = ranks.run(os.getpid)
    assert second != first
    assert all_gone(second) and list(temp.iterdir()) == []


def test_ranks_outlive_the_thread_that_started_them():
    """Linux tells a process when the thread that started it ends, and torch has it stop then."""
    with Ranks(world_size=1, device="cpu") as ranks, ThreadPoolExecutor(1) as thread:
        pids = thread.submit(ranks.run, os.getpid).result()
        thread.shutdown()
        assert ranks.run(os.getpid) == pids


def test_forgotten_ranks_are_ended(temp):
    ranks = Ranks(world_size=1, device="cpu")
    pids = ranks.run(os.getpid)
    del ranks
    assert all_gone(pids) and list(temp.iterdir()) == []


def test_a_rank_that_died_between_runs_is_replaced(two):
    pids = two.run(os.getpid)
    os.kill(pids[1], 9)
    assert all_gone(pids[1:])
    new = two.run(os.getpid)
    assert not set(new) & set(pids)
    assert all_gone(pids)


def test_a_setting_that_is_read_at_start_restarts_the_ranks(two, monkeypatch):
    def settings():
        return os.getpid(), torch.get_num_threads()

    before = two.run(settings)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    after = two.run(settings)
    assert not {pid for pid, _ in after} & {pid for pid, _ in before}
    assert [threads for _, threads in after] == [2, 2]


def test_two_groups_run_side_by_side(two):
    with Ranks(world_size=1, device="cpu") as other:
        assert other.run(sum_of_ranks) == [(0, 0)]
        assert two.run(sum_of_ranks) == [(0, 1), (1, 1)]
        assert other.run(sum_of_ranks) == [(0, 0)]
