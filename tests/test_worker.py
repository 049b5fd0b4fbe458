import io
import os
import random
import signal
import sys

import pytest
import torch
import torch.distributed as dist

from ddp_tutorial import launch, process_group


def leave_a_mess():
    os.environ["LEFT_BEHIND"] = "yes"
    os.chdir("/")
    sys.path.insert(0, "/left/behind")
    sys.stdout = io.StringIO()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    torch.set_num_threads(7)
    torch.manual_seed(0)
    random.seed(0)
    dist.init_process_group("gloo")


def state():
    return {
        "variables": {name for name in os.environ if not name.startswith("TORCHELASTIC")},
        "folder": os.getcwd(),
        "path": sys.path[:],
        "type": torch.ones(1).dtype,
        "device": torch.ones(1).device,
        "gradients": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "in a group": dist.is_initialized(),
    }


def test_a_run_finds_nothing_of_the_run_before(two):
    before = two.run(state)
    two.run(leave_a_mess)
    assert two.run(state) == before
    assert before[0]["in a group"] is False


def test_what_a_rank_prints_appears_after_another_function_took_its_output(two, capsys):
    two.run(leave_a_mess)
    two.run(print, ("here",))
    assert sorted(capsys.readouterr().out.splitlines()) == ["[rank 0] here", "[rank 1] here"]


def test_random_numbers_differ_between_runs_and_ranks(two):
    """A seed set in one cell must not decide what another cell draws."""

    def draw():
        return torch.rand(1).item(), random.random()

    def seed():
        torch.manual_seed(0)
        random.seed(0)

    drawn = []
    for _ in range(2):
        two.run(seed)
        drawn += two.run(draw)
    assert len({number for pair in drawn for number in pair}) == 8


def test_a_group_left_open_is_no_obstacle_to_the_next(two):
    two.run(leave_a_mess)

    def join():
        with process_group() as env:
            return env.rank

    assert two.run(join) == [0, 1]


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"])
def test_a_rank_has_the_variables_of_torchrun(name, two):
    expected = {"RANK": ["0", "1"], "LOCAL_RANK": ["0", "1"], "MASTER_ADDR": ["127.0.0.1"] * 2}
    assert two.run(os.getenv, (name,)) == expected.get(name, ["2", "2"])


def test_a_rank_imports_no_plotting_and_no_data_package():
    """What a rank imports, every launch waits for."""
    heavy = {"matplotlib", "sklearn", "torchvision", "IPython", "pytest"}

    def imported():
        return sorted(heavy & sys.modules.keys())

    assert launch(imported, world_size=1, device="cpu") == [[]]


def test_an_interrupt_does_not_reach_a_rank(two):
    """The launching process alone decides what it means."""

    def interrupt_itself():
        os.kill(os.getpid(), signal.SIGINT)
        return "still here"

    assert two.run(interrupt_itself) == ["still here"] * 2
