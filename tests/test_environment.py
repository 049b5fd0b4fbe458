import time

import pytest
import torch
import torch.distributed as dist
from support import devices, free_port

from ddp_tutorial import Environment, init_environment, process_group
from ddp_tutorial.environment import DEVICE, TIMEOUT, default_device
from ddp_tutorial.rendezvous import STORE


def set_all(monkeypatch, **variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


def test_without_variables_it_is_a_world_of_one():
    env = init_environment(device="cpu")
    assert env == Environment(0, 0, 1, torch.device("cpu"), "gloo")
    assert env.is_main
    assert dist.get_world_size() == 1


def test_the_variables_of_torchrun_are_read(monkeypatch):
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    set_all(monkeypatch, RANK=0, LOCAL_RANK=0, WORLD_SIZE=1, **address)
    assert init_environment(device="cpu") == Environment(0, 0, 1, torch.device("cpu"), "gloo")


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "RANK=2"),
        ({"RANK": "-1", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "RANK=-1"),
        ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 is set, but not RANK, LOCAL_RANK"),
        ({"RANK": "0"}, "RANK=0 is set, but not LOCAL_RANK, WORLD_SIZE"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "not LOCAL_RANK"),
        ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        ({"RANK": "one", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "RANK.*one"),
        ({"RANK": "0", "LOCAL_RANK": "2", "WORLD_SIZE": "2"}, "LOCAL_RANK=2"),
    ],
)
def test_contradictory_variables_are_named(variables, named, monkeypatch):
    set_all(monkeypatch, **variables)
    with pytest.raises(ValueError, match=named):
        init_environment(device="cpu", timeout=5)
    assert not dist.is_initialized()


def test_an_argument_counts_more_than_a_variable(tmp_path, monkeypatch):
    set_all(monkeypatch, RANK=0, LOCAL_RANK=0, WORLD_SIZE=2, **{STORE: tmp_path, TIMEOUT: 1000, DEVICE: "cuda"})
    started = time.monotonic()
    with pytest.raises(TimeoutError, match="waited 0.5 s"):
        init_environment(device="cpu", timeout=0.5)
    assert time.monotonic() - started < 100


def test_joining_twice_is_refused():
    init_environment(device="cpu")
    with pytest.raises(RuntimeError, match="already"):
        init_environment(device="cpu")


@pytest.mark.skipif("cuda" in devices(), reason="this machine has the device")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="cuda"):
        init_environment(device="cuda")
    assert not dist.is_initialized()


def test_the_default_device_is_the_one_with_a_backend():
    device, reason = default_device()
    assert device == devices()[-1]
    assert reason


def where_am_i():
    with process_group() as env:
        return env, dist.get_rank(), dist.get_world_size(), dist.get_backend()


def test_each_rank_knows_its_place(ranks):
    for rank, (env, *seen) in enumerate(ranks.run(where_am_i)):
        place = torch.device("cpu") if ranks.device == "cpu" else torch.device(ranks.device, rank)
        assert env == Environment(rank, rank, ranks.world_size, place, ranks.backend)
        assert seen == [rank, ranks.world_size, ranks.backend]
        assert env.is_main == (rank == 0)
