"""Results and lines in amounts and shapes that break pipes, and a listener that fails."""

import os
import re
import signal
import sys
import threading
import time
import traceback

import pytest
import torch
from support import all_gone
from torch import nn

from ddp_tutorial import LaunchError, process_group, report, wrap

pytestmark = pytest.mark.faults


def lines_of(rank, text):
    start = f"[rank {rank}] "
    return [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]


def test_results_of_100_megabytes_a_rank(two):
    def large():
        return torch.full((25_000_000,), float(os.environ["RANK"]))

    results = two.run(large)
    assert [result.numel() * 4 for result in results] == [100_000_000] * 2
    for rank, result in enumerate(results):
        assert bool((result == rank).all())


def test_results_that_need_gradients(two):
    def compute():
        model = nn.Linear(3, 1)
        loss = model(torch.ones(2, 3)).sum()
        loss.backward()
        return {"loss": loss, "weight": model.weight, "gradient": model.weight.grad, "view": model.weight[0]}

    for result in two.run(compute):
        assert type(result["weight"]) is nn.Parameter and result["weight"].requires_grad
        assert result["gradient"].tolist() == [[2.0, 2.0, 2.0]]
        assert torch.equal(result["view"], result["weight"][0])
        assert isinstance(result["loss"].item(), float)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (threading.Lock, "cannot pickle '_thread.lock'"),
        (lambda: (number for number in range(3)), "cannot pickle 'generator'"),
        (lambda: open(os.devnull), "is not open there"),
    ],
    ids=["lock", "generator", "file"],
)
def test_a_result_that_cannot_be_sent_names_its_rank_and_why(make, why, two):
    def one_returns_it():
        return make() if os.environ["RANK"] == "1" else "fine"

    with pytest.raises(LaunchError) as caught:
        two.run(one_returns_it)
    first = str(caught.value).splitlines()[0]
    assert first.startswith("rank 1 raised TypeError: the result cannot be sent back") and why in first
    assert two.run(abs, (-1,)) == [1, 1]


def test_a_wrapped_model_as_result_names_the_way_out(two):
    def train():
        with process_group() as env:
            return wrap(nn.Linear(1, 1), env)

    with pytest.raises(LaunchError, match=r"rank [01] raised TypeError: the result cannot be sent back.*model\.module"):
        two.run(train)


def test_a_result_that_cannot_be_read_here_names_its_rank(two):
    class Trap:
        def __reduce__(self):
            return int, ("not a number",)

    def one_returns_it():
        return Trap() if os.environ["RANK"] == "1" else "fine"

    with pytest.raises(LaunchError, match="rank 1 returned what cannot be read here .ValueError"):
        two.run(one_returns_it)


def test_thousands_of_lines_a_second_come_whole_and_in_order(two, capsys):
    """More than 20,000 a rank, on both streams, of very different lengths."""

    def flood():
        rank = os.environ["RANK"]
        for number in range(10_000):
            print(f"{rank} {number} {'x' * (number % 200)}.")
            print(f"{rank} {number} error", file=sys.stderr)
        print("y" * 2_000_000)

    began = time.monotonic()
    two.run(flood)
    seconds = time.monotonic() - began
    text = capsys.readouterr().out
    for rank in range(2):
        *lines, last = lines_of(rank, text)
        expected = [
            line
            for number in range(10_000)
            for line in (f"{rank} {number} {'x' * (number % 200)}.", f"{rank} {number} error")
        ]
        assert lines == expected
        assert last == "y" * 2_000_000
    assert len(text.splitlines()) == 2 * 20_001, "nothing else, and no line that two ranks share"
    assert seconds < 60


def test_lines_appear_while_the_ranks_still_run(two, capsys, tmp_path):
    def talk(answer):
        print("first")
        report(step=1)
        while not answer.exists():
            time.sleep(0.01)
        print("second")

    seen = []

    def hear(event):
        seen.append(capsys.readouterr().out)
        if len(seen) == 2:
            (tmp_path / "answer").touch()

    two.run(talk, (tmp_path / "answer",), on_event=hear)
    assert "".join(seen).count("first") == 2 and "second" not in "".join(seen)


def test_a_progress_bar_leaves_its_last_state(two, capsys):
    def bar():
        from tqdm import tqdm

        for _ in tqdm(range(50), desc="epoch", mininterval=0):
            pass
        for percent in range(0, 101, 10):
            print(f"\r{percent} %", end="")
        print()

    two.run(bar)
    text = capsys.readouterr().out
    assert "\r" not in text
    for rank in range(2):
        tqdms, own = lines_of(rank, text)
        assert re.match(r"epoch: 100%.*50/50", tqdms)
        assert own == "100 %"


def test_the_last_words_of_a_killed_rank_are_kept_unfinished_and_not_text(two, capsys):
    def die():
        os.write(1, b"whole\r\nhalf \xff\xfe line")
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000)

    with pytest.raises(LaunchError, match="rank 1 was killed by SIGKILL") as caught:
        two.run(die)
    assert caught.value.failures[0].printed == ["whole", r"half \xff\xfe line"]
    assert lines_of(1, capsys.readouterr().out) == ["whole", r"half \xff\xfe line"]
    assert str(caught.value).splitlines()[-1] == r"  half \xff\xfe line"


def test_thousands_of_records_arrive_in_order(two):
    def tell():
        for number in range(3000):
            report(number=number)
        return "told"

    events = []
    assert two.run(tell, on_event=events.append) == ["told"] * 2
    for rank in range(2):
        assert [event["number"] for event in events if event["rank"] == rank] == list(range(3000))


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), KeyboardInterrupt("mine"), SystemExit("mine")])
def test_an_error_in_on_event_is_the_readers_own_and_leaves_no_rank(error, two):
    def endless():
        with process_group():
            report(pid=os.getpid())
            while True:
                torch.distributed.barrier()

    pids = []

    def hear(event):
        pids.append(event["pid"])
        if len(pids) == 2:
            raise error

    with pytest.raises(type(error)) as caught:
        two.run(endless, on_event=hear)
    assert caught.value is error, "neither wrapped nor replaced"
    assert traceback.extract_tb(error.__traceback__)[-1].name == "hear"
    assert error.__cause__ is None and error.__context__ is None
    assert all_gone(pids, 5)
