from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support import free_port

from ddp_tutorial import init_environment, process_group, rendezvous
from ddp_tutorial.environment import TIMEOUT
from ddp_tutorial.rendezvous import STORE


def set_all(monkeypatch, **variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize(
    ("world_size", "named"), [(2, "rank 1, which did not arrive"), (4, "ranks 1, 2, 3, which did not arrive")]
)
def test_a_rank_that_never_arrives_is_named(world_size, named, tmp_path, monkeypatch):
    set_all(monkeypatch, RANK=0, LOCAL_RANK=0, WORLD_SIZE=world_size, **{STORE: tmp_path, TIMEOUT: 0.5})
    with pytest.raises(TimeoutError, match=f"rank 0 of {world_size} waited 0.5 s for {named}"):
        init_environment(device="cpu")
    assert not dist.is_initialized()


def test_a_rank_that_never_arrives_is_named_where_rank_0_hosts_the_store(monkeypatch):
    """As under Slurm and on Kubernetes, where no launcher hosts it."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    set_all(monkeypatch, RANK=0, LOCAL_RANK=0, WORLD_SIZE=3, **address)
    with pytest.raises(TimeoutError, match="ranks 1, 2, which did not arrive"):
        init_environment(device="cpu", timeout=1)


def test_a_process_can_join_again_after_leaving(two):
    def join_three_times():
        for _ in range(3):
            with process_group() as env:
                total = torch.tensor(env.rank + 1)
                dist.all_reduce(total)
        return total.item()

    assert two.run(join_three_times) == [3, 3]


class TestTheStoreOfTorchrun:
    """It outlives the ranks that torchrun starts anew, and what the last ones wrote is still in it."""

    @staticmethod
    def meet(store, world_size, seconds=10, absent=()):
        def one(rank):
            return rendezvous._fresh_name(store, rank, world_size, timedelta(seconds=seconds))

        with ThreadPoolExecutor(world_size) as pool:
            return [pool.submit(one, rank) for rank in range(world_size) if rank not in absent]

    def test_each_start_has_a_name_of_its_own_and_all_its_ranks_share_it(self):
        store, names = dist.HashStore(), []
        for world_size in (3, 3, 2, 4, 1):  # a host left, two joined
            found = {future.result() for future in self.meet(store, world_size)}
            assert len(found) == 1
            names += found
        assert len(set(names)) == 5

    def test_a_rank_of_the_last_start_does_not_stand_in_for_one_that_is_missing(self):
        store = dist.HashStore()
        self.meet(store, 3)
        first, second = self.meet(store, 3, seconds=1, absent=[2])
        with pytest.raises(TimeoutError, match="rank 0 of 3 waited 1 s for rank 2, which did not arrive"):
            first.result()
        assert second.result()  # the others have met, and `meet` will tell them who is missing

    def test_ranks_wait_for_rank_0(self):
        store = dist.HashStore()
        self.meet(store, 2)
        (second,) = self.meet(store, 2, seconds=1, absent=[0])
        with pytest.raises(TimeoutError, match="rank 1 of 2 waited 1 s for rank 0, which did not arrive"):
            second.result()
