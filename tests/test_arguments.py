"""What is asked for and cannot be, and what is taken when nothing is asked for."""

import ast
import inspect
import json
import multiprocessing
import os
import socket
import threading

import pytest
import torch
import torch.distributed as dist
from support import ROOT, devices
from torch import nn

from ddp_tutorial import Ranks, launch, process_group, wrap
from ddp_tutorial import devices as choice

CPU_ONLY = pytest.mark.skipif("cuda" in devices(), reason="for machines without a GPU")
NBMAKES_LIMIT = 300  # seconds for a cell


@CPU_ONLY
def test_nccl_without_a_gpu_is_refused_with_the_way_out(no_processes):
    """It is the backend alone that is asked for, as in code written for a machine with GPUs."""
    with pytest.raises(ValueError, match="'nccl'.*gloo"):
        launch(os.getpid, backend="nccl")


@pytest.fixture
def gpus(monkeypatch):
    """Pretend that this process counts ``here`` GPUs and a fresh one ``fresh``."""

    def pretend(here, fresh):
        seen = torch.device("cuda") if here else None
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: seen)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: here)
        monkeypatch.setattr(choice, "visible_devices", lambda setting: {"cuda": fresh} if fresh else {})
        monkeypatch.setattr(dist, "is_backend_available", lambda name: True)

    return pretend


def test_more_ranks_than_gpus_are_refused_with_both_numbers(gpus, no_processes):
    gpus(1, 1)
    with pytest.raises(ValueError, match="2 ranks need 2 cuda devices, and 1 are visible"):
        launch(os.getpid, world_size=2, device="cuda", backend="nccl")


@pytest.mark.parametrize(
    ("here", "fresh", "expected"),
    [
        (2, 2, (2, "cuda", "nccl", "2 visible")),
        (2, 1, (1, "cuda", "nccl", "1 visible")),
        (2, 0, (2, "cpu", "gloo", "no GPU is visible")),
        (0, 2, (2, "cuda", "nccl", "2 visible")),
    ],
)
def test_the_default_is_what_a_fresh_process_sees(here, fresh, expected, gpus):
    """``CUDA_VISIBLE_DEVICES`` was set in a cell after torch had counted; the ranks start with the new value."""
    gpus(here, fresh)
    assert choice.choose(None, None, None) == expected


@CPU_ONLY
def test_a_process_that_has_used_cuda_asks_a_fresh_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert choice.visible_devices.__wrapped__("anything").get("cuda", 0) == 0


@pytest.mark.launcher
@CPU_ONLY
@pytest.mark.parametrize("setting", ["", "-1", "0,0", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "MIG-GPU-x/1/2"])
def test_with_any_visible_devices_an_empty_call_runs_and_says_on_what_and_why(setting, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert launch(os.getenv, ("CUDA_VISIBLE_DEVICES",)) == [setting] * 2
    assert capsys.readouterr().out == "2 ranks on cpu (gloo): no GPU is visible\n"


@CPU_ONLY
def test_a_value_set_in_a_cell_reaches_warm_ranks(two, monkeypatch):
    """As ``os.environ[...] = "1"`` after the first launch."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert two.run(os.getenv, ("CUDA_VISIBLE_DEVICES",)) == ["1"] * 2


def unsendable():
    queue = multiprocessing.get_context("spawn").Queue()
    queue.cancel_join_thread()
    return {
        "lock of multiprocessing": multiprocessing.get_context("spawn").Lock(),
        "queue of multiprocessing": queue,
        "thread": threading.Thread(target=print),
        "socket": socket.socket(),
        "data loader's iterator": iter(torch.utils.data.DataLoader([1, 2])),
        "store": dist.HashStore(),
        "event": threading.Event(),
    }


@pytest.mark.parametrize("name", unsendable())
def test_what_belongs_to_this_process_is_named_before_any_process_starts(name, no_processes):
    def work(*_):
        pass

    value = unsendable()[name]
    with pytest.raises(TypeError, match="argument 1 of 'work' cannot be sent to the ranks.*inside the function"):
        launch(work, (0, {"deep": [value]}), world_size=2, device="cpu")
    if isinstance(value, socket.socket):
        value.close()


def test_what_a_function_refers_to_is_refused_with_the_functions_name(tmp_path, no_processes):
    """A cell's function takes the cell's global names with it."""
    with open(tmp_path / "log.txt", "w") as log:

        def writes():
            log.write("a line")

        with pytest.raises(TypeError, match="the function 'writes' cannot be sent.*log.txt.*send its name"):
            launch(writes, world_size=2, device="cpu")
    with process_group(device="cpu") as env:
        model = wrap(nn.Linear(1, 1), env)

        def trains():
            model(torch.ones(1, 1))

        with pytest.raises(TypeError, match="the function 'trains' cannot be sent.*model.module"):
            launch(trains, world_size=2, device="cpu")


def test_a_wrong_number_of_arguments_is_an_error_with_the_functions_name(two):
    def work(a, b):
        pass

    with pytest.raises(RuntimeError, match="rank [01] raised TypeError: .*work.*missing 1 required .*'b'"):
        two.run(work, (1,))


def test_launches_are_bounded_below_the_limit_of_nbmake():
    for callable_ in (launch, Ranks):
        assert inspect.signature(callable_).parameters["timeout"].default <= NBMAKES_LIMIT / 2


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_what_a_notebook_launches_is_bounded_too(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert "timeout" not in notebook["metadata"].get("execution", {}), "it would count more than --nbmake-timeout"
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and not source.startswith("%%"):
            lines = ["" if line.startswith(("%", "!")) else line for line in source.splitlines()]
            for node in ast.walk(ast.parse("\n".join(lines))):
                if isinstance(node, ast.keyword) and node.arg == "timeout" and isinstance(node.value, ast.Constant):
                    assert node.value.value <= NBMAKES_LIMIT / 2, source
