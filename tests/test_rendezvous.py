import pytest
import torch
import torch.distributed as dist
from support import free_port

from ddp_tutorial import init_environment, process_group
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
