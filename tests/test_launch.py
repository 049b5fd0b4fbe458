import functools
import multiprocessing
import os
import socket
import sys
import time

import pytest
import torch
import torch.distributed as dist
from support import all_gone, devices, python
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ddp_tutorial import launch, process_group

pytestmark = pytest.mark.launcher


def sum_of_ranks(offset=0):
    """A function of a module: it travels by reference."""
    with process_group() as env:
        total = torch.tensor(env.rank + offset, device=env.device)
        dist.all_reduce(total)
        return env.rank, total.item()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_launch_returns_what_each_rank_returned_in_order_and_leaves_nothing(world_size, temp, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, ""])
    before = dict(os.environ), list(sys.path), os.getcwd(), multiprocessing.get_start_method(allow_none=True)

    def work(offset):
        time.sleep(0.2 * (world_size - int(os.environ["RANK"])))  # the last rank is done first
        return sum_of_ranks(offset), os.getpid()

    results = launch(work, (1,), world_size=world_size, device="cpu")
    total = sum(range(1, world_size + 1))
    assert [result for result, _ in results] == [(rank, total) for rank in range(world_size)]
    assert all_gone(pid for _, pid in results)
    assert list(temp.iterdir()) == []
    assert before == (
        dict(os.environ),
        list(sys.path),
        os.getcwd(),
        multiprocessing.get_start_method(allow_none=True),
    )


def test_a_failing_launch_leaves_nothing(temp):
    def fail():
        raise ValueError

    before = set(multiprocessing.active_children())
    with pytest.raises(RuntimeError):
        launch(fail, world_size=1, device="cpu")
    assert list(temp.iterdir()) == []
    assert set(multiprocessing.active_children()) == before


def test_functions_of_every_kind(two):
    factor = 3

    class Scale:
        def __call__(self, x):
            return factor * x

    def local(x):
        return factor * x

    functions = [local, lambda x: factor * x, Scale(), Scale().__call__, functools.partial(pow, 3), factor.__mul__]
    assert [two.run(fn, (1,)) for fn in functions] == [[3, 3]] * len(functions)
    assert two.run(sum_of_ranks, [5]) == [(0, 11), (1, 11)]


def test_a_model_is_copied_not_shared(two):
    """Handed over as torch.multiprocessing does it, each of two steps of 1 would be taken by both ranks."""

    def step(model):
        model(torch.ones(1, 1)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        return model

    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 10.0)
    results = two.run(step, (model,))
    assert [result.weight.item() for result in results] == [9.0, 9.0]
    assert model.weight.item() == 10.0


@pytest.mark.parametrize("device", devices())
def test_tensors_on_a_device_travel_both_ways(device, two):
    tensor = torch.arange(3.0, device=device)
    for result in two.run(lambda x: x + 1, (tensor,)):
        assert result.tolist() == [1.0, 2.0, 3.0]


def test_large_arguments_and_results(two):
    """More than a pipe holds: both sides would wait for each other."""
    sent = torch.arange(5_000_000, dtype=torch.float32)
    for result in two.run(lambda x: x.flip(0), (sent,)):
        assert torch.equal(result, sent.flip(0))


def test_cpu_ranks_share_the_cores(two, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    alone, *_ = launch(torch.get_num_threads, world_size=1, device="cpu")
    assert two.run(torch.get_num_threads) == [max(1, alone // 2)] * 2


def test_ranks_see_the_folder_the_path_and_the_variables_of_the_caller(two, tmp_path, monkeypatch):
    def surroundings():
        return os.getcwd(), sys.path[0], os.environ["GREETING"]

    for greeting in ("hello", "goodbye"):
        folder = tmp_path / f"folder of {greeting}"
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("GREETING", greeting)
        monkeypatch.setattr(sys, "path", [f"from {greeting}", *sys.path])
        expected = str(folder), str(folder / f"from {greeting}"), greeting
        assert two.run(surroundings) == [expected] * 2


def test_variables_of_another_launcher_do_no_harm(two, monkeypatch):
    """As a kernel on a cluster inherits them."""
    inherited = {"RANK": "7", "LOCAL_RANK": "7", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "3"}
    inherited |= {"MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "1"}
    for name, value in inherited.items():
        monkeypatch.setenv(name, value)
    assert two.run(sum_of_ranks) == [(0, 1), (1, 1)]
    assert {name: os.environ[name] for name in inherited} == inherited


@pytest.mark.parametrize("port", [29500, 12355])
def test_a_port_that_is_taken_does_no_harm(port, two):
    try:
        server = socket.create_server(("127.0.0.1", port))
    except OSError:  # somebody else has taken it, which is as good
        server = socket.socket()
    with server:
        assert two.run(sum_of_ranks) == [(0, 1), (1, 1)]


def test_ranks_find_one_another_without_a_name_lookup(two, monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    loopback = next(name for _, name in socket.if_nameindex() if name in ("lo", "lo0"))
    assert two.run(os.getenv, ("GLOO_SOCKET_IFNAME",)) == [loopback] * 2


def test_a_rank_can_have_data_loader_workers(two):
    def load():
        loader = DataLoader(TensorDataset(torch.arange(4)), batch_size=2, num_workers=1)
        return [batch.tolist() for (batch,) in loader]

    assert two.run(load) == [[[0, 1], [2, 3]]] * 2


UNGUARDED = """
import sys
from ddp_tutorial import launch
print("begin")
def square(x):
    return x * x
print(launch(square, (4,), world_size=1, device="cpu"))
"""


@pytest.mark.parametrize("arguments", [["script.py"], ["-m", "script"]])
def test_a_script_needs_no_guard_and_runs_once(arguments, tmp_path):
    """multiprocessing runs the file of ``__main__`` again in each process, unless it is kept from it."""
    (tmp_path / "script.py").write_text(UNGUARDED)
    result = python(*arguments, cwd=tmp_path)
    assert (result.stdout, result.stderr, result.returncode) == ("begin\n[16]\n", "", 0)
