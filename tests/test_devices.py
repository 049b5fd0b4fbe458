import os

import pytest
import torch
from support import devices

from ddp_tutorial import Ranks, launch
from ddp_tutorial.devices import choose, variables, visible_devices

CPU_ONLY = pytest.mark.skipif("cuda" in devices(), reason="for machines without a GPU")
HAS_GPU = pytest.mark.skipif("cuda" not in devices(), reason="needs a GPU")


def test_nothing_said_takes_every_gpu_or_two_cpu_ranks():
    world_size, device, backend, reason = choose(None, None, None)
    if "cuda" in devices():
        assert (world_size, device, backend) == (torch.accelerator.device_count(), "cuda", "nccl")
    else:
        assert (world_size, device, backend) == (2, "cpu", "gloo")
    assert reason


@pytest.mark.parametrize("world_size", [1, 2, 3, 16])
def test_any_number_of_cpu_ranks(world_size):
    assert choose(world_size, "cpu", None)[:3] == (world_size, "cpu", "gloo")
    assert choose(world_size, torch.device("cpu"), "gloo")[:3] == (world_size, "cpu", "gloo")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"world_size": 0}, "world_size.*0"),
        ({"world_size": -1}, "world_size.*-1"),
        ({"world_size": True}, "world_size.*True"),
        ({"world_size": 2.0}, "world_size.*2.0"),
        ({"world_size": "2"}, "world_size.*'2'"),
        ({"device": "gpu"}, "'gpu'"),
        ({"device": "cuda:0"}, "'cuda:0'"),
        ({"device": "meta"}, "meta"),
        ({"backend": "smoke signals", "device": "cpu"}, "smoke signals"),
        ({"backend": 7, "device": "cpu"}, "7"),
        ({"backend": "nccl", "device": "cpu"}, "'nccl'.*gloo"),
        pytest.param({"device": "cuda"}, "no cuda device is visible", marks=CPU_ONLY),
        pytest.param({"device": "cuda", "world_size": 1000}, "1000 ranks need 1000", marks=HAS_GPU),
        ({"timeout": 0}, "timeout.*0"),
        ({"timeout": -5}, "timeout.*-5"),
        ({"timeout": "long"}, "timeout.*'long'"),
        ({"timeout": float("nan")}, "timeout.*nan"),
        ({"timeout": None}, "timeout.*None"),
    ],
)
def test_a_value_that_cannot_work_is_named_before_any_process_starts(values, named, no_processes):
    with pytest.raises(ValueError, match=named):
        launch(os.getpid, **values)
    with pytest.raises(ValueError, match=named):
        Ranks(**values)


@CPU_ONLY
@pytest.mark.parametrize("setting", ["", "-1", "0,0", "7", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "MIG-GPU-x/1/2"])
def test_every_spelling_of_visible_devices_is_left_to_torch(setting, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert choose(None, None, None)[:2] == (2, "cpu")


@HAS_GPU
def test_a_gpu_that_was_hidden_after_cuda_was_used_is_not_counted(monkeypatch):
    """This process keeps the number from then; its ranks do not."""
    torch.ones(1, device="cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_devices("").get("cuda", 0) == 0


def test_what_was_chosen_is_said_once(capsys):
    with Ranks() as ranks:
        for _ in range(2):
            assert len(ranks.run(os.getpid)) == choose(None, None, None)[0]
    said = capsys.readouterr().out
    number = f"{ranks.world_size} rank{'s' if ranks.world_size > 1 else ''}"
    assert said.startswith(f"{number} on {ranks.device} ({ranks.backend})")
    assert said.count("\n") == 1


def test_ranks_get_the_variables_of_torchrun_and_none_of_another_launcher(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another launcher's")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    given = variables(2, "cpu", "gloo", 5.0, 1234, tmp_path)
    assert "TORCHELASTIC_RUN_ID" not in given
    expected = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234"}
    assert expected.items() <= given.items()
    assert given["GLOO_SOCKET_IFNAME"] == "eth7", "what the reader chose stays"
