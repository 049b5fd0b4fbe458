import functools
import io
import os
import pickle
import sys
import threading

import pytest
import torch
from support import devices
from torch import nn

from ddp_tutorial import launch, process_group, wrap
from ddp_tutorial.sending import dumps, pack


def there_and_back(value):
    return pickle.loads(dumps(value))


@pytest.mark.parametrize(
    "value", [None, 3, "é", [1, {"a": (2.5, None)}], b"x" * 1_000_000, {1, 2}, torch.device("cpu"), torch.float16]
)
def test_plain_values_travel(value):
    assert there_and_back(value) == value


def test_functions_and_classes_travel_wherever_they_were_defined():
    factor = 3

    class Doubled(int):
        def double(self):
            return Doubled(2 * self)

    assert there_and_back(lambda x: factor * x)(2) == 6
    assert there_and_back(functools.partial(pow, 2))(5) == 32
    assert there_and_back(Doubled(4)).double() == 8
    assert there_and_back(os.path.join) is os.path.join


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("grad", [False, True])
def test_tensors_travel_as_cpu_tensors(device, grad):
    tensor = torch.arange(4.0, device=device).requires_grad_(grad)
    parameter = nn.Parameter(tensor.detach(), requires_grad=grad)
    for sent in (tensor, tensor[::2], parameter):
        received = there_and_back(sent)
        assert received.device.type == "cpu"
        assert received.requires_grad == grad
        assert type(received) is type(sent)
        assert torch.equal(received, sent.cpu())


def test_what_is_received_is_a_copy():
    model = nn.Linear(2, 2)
    received = there_and_back(model)
    nn.init.zeros_(received.weight)
    assert model.weight.abs().sum() > 0


@pytest.mark.parametrize(
    ("unsendable", "why"),
    [
        (threading.Lock(), "lock"),
        ((number for number in range(3)), "generator"),
        (sys._getframe(), "frame"),
    ],
    ids=["lock", "generator", "frame"],
)
def test_the_argument_that_cannot_be_sent_is_named_before_any_process_starts(unsendable, why, no_processes):
    def work(*_):
        pass

    with pytest.raises(TypeError, match=rf"argument 1 of 'work' cannot be sent.*{why}.*inside the function"):
        launch(work, ("fine", [unsendable]), world_size=2, device="cpu")


def test_a_function_that_cannot_be_sent_is_named(no_processes):
    lock = threading.Lock()

    def locked():
        return lock

    with pytest.raises(TypeError, match="the function 'locked' cannot be sent"):
        launch(locked, world_size=2, device="cpu")


def test_an_open_file_is_refused_with_its_name(tmp_path):
    """cloudpickle would send its content, and what a rank writes to it would go nowhere."""
    with (
        open(tmp_path / "log.txt", "w") as file,
        pytest.raises(TypeError, match="argument 0 .*log.txt.*not open there; send its name"),
    ):
        pack(print, (file,))
    assert there_and_back(io.StringIO("text")).getvalue() == "text"


def test_what_belongs_to_this_process_is_refused():
    with process_group(device="cpu") as env:
        model = wrap(nn.Linear(1, 1), env)
        with pytest.raises(TypeError, match="argument 0.*model.module"):
            pack(print, (model,))
        with pytest.raises(TypeError, match="argument 1.*process group"):
            pack(print, (1, {"group": torch.distributed.group.WORLD}))


@pytest.mark.parametrize(("call", "named"), [(print(end=""), "NoneType"), (nn.Linear, None), ("train", "str")])
def test_only_something_callable_can_be_launched(call, named, no_processes):
    if named is None:
        pack(call, (1, 1))
        return
    with pytest.raises(TypeError, match=f"fn must be a function, not {named}"):
        launch(call, world_size=2, device="cpu")


@pytest.mark.parametrize("args", [3, "text", {"a": 1}, torch.ones(2)])
def test_arguments_must_be_a_tuple(args, no_processes):
    with pytest.raises(TypeError, match=f"args must be a tuple, not {type(args).__name__}.*write \\(value,\\)"):
        launch(print, args, world_size=2, device="cpu")


def test_a_result_that_cannot_be_sent_back_is_named(two):
    from ddp_tutorial import LaunchError

    with pytest.raises(LaunchError, match="the result cannot be sent back.*lock"):
        two.run(threading.Lock)
