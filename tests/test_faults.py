"""Every way in which a rank can fail, each judged by the first line of the message, its order, its data and its time.

``pytest tests/test_faults.py -m stress`` does each of them twenty times.
"""

import ctypes
import os
import re
import signal
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
from support import all_gone
from torch import nn

from ddp_tutorial import LaunchError, Ranks, process_group, report, wrap

pytestmark = pytest.mark.faults

TIMEOUT = 3.0


class Locked(Exception):
    def __init__(self):
        super().__init__("has a lock")
        self.lock = threading.Lock()


def waiting(fault):
    """Return a function in which rank 1 does ``fault`` while the others wait in a collective."""

    def work():
        tell_pid()
        with process_group() as env:
            if env.rank == 1:
                print("last words")
                fault()
            dist.barrier()
            while True:  # a rank that is not waited for any more would return
                dist.barrier()

    return work


def tell_pid():
    report(pid=os.getpid())


def raises():
    raise ValueError("the cause")


def raises_what_cannot_be_pickled():
    raise Locked


def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def crashes():
    ctypes.string_at(0)


def is_stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def holds_the_interpreter():
    ctypes.PyDLL(None).sleep(1000)  # no other thread of the rank can run


def loops():
    while True:
        pass


def ignores_everything_and_sleeps():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(1000)


def before_the_group():
    if os.environ["RANK"] == "1":
        raise ValueError("the cause")
    tell_pid()
    with process_group():
        pass


def inside_a_collective():
    """Rank 0 waits for gradients that DDP sends while ``backward`` still runs."""
    tell_pid()
    with process_group() as env:
        model = wrap(nn.Linear(2, 2), env)

        def hook(gradient):
            print("last words")
            raise ValueError("the cause")

        loss = model(torch.ones(1, 2)).sum()
        if env.rank == 1:
            next(model.parameters()).register_hook(hook)
        loss.backward()
        dist.barrier()


def refused_by_a_collective():
    tell_pid()
    with process_group() as env:
        dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BXOR if env.rank == 1 else dist.ReduceOp.SUM)


def raises_in_the_cleanup():
    tell_pid()
    with process_group() as env:
        try:
            if env.rank == 1:
                raise ValueError("the cause")
            dist.barrier()
        finally:
            {}["not there"]


def waits_for_others_in_the_cleanup():
    tell_pid()
    dist.init_process_group("gloo")
    try:
        if dist.get_rank() == 1:
            print("last words")
            raise ValueError("the cause")
        dist.all_reduce(torch.ones(1))
    finally:
        dist.barrier()
        dist.destroy_process_group()


def never_arrives_where_another_handles_an_error():
    """Python ties rank 0's timeout to the error that it was handling, which is not the cause."""
    tell_pid()
    with process_group() as env:
        if env.rank == 1:
            time.sleep(1000)
        try:
            {}["nothing saved yet"]
        except KeyError:
            dist.barrier()


def fails_and_then(cleans_up):
    tell_pid()
    try:
        with process_group() as env:
            if env.rank == 1:
                print("last words")
                raise ValueError("the cause")
            dist.barrier()
    finally:
        if os.environ["RANK"] == "1":
            cleans_up()


def hangs_while_cleaning_up():
    fails_and_then(lambda: time.sleep(1000))


def dies_while_cleaning_up():
    fails_and_then(is_killed)


def returns_early():
    tell_pid()
    with process_group() as env:
        print("last words")
        if env.rank == 0:
            dist.barrier()
        return env.rank


CAUSE = "raised ValueError: the cause"
NOT_THERE = "did not arrive where the others waited for it"

# What is launched, and what the first line says after "rank 1 ".
FAULTS = {
    "raises before the group": (before_the_group, f"{CAUSE}$"),
    "raises while others wait": (waiting(raises), f"{CAUSE}$"),
    "raises inside a collective": (inside_a_collective, f"{CAUSE}$"),
    "a collective refuses": (refused_by_a_collective, "raised RuntimeError: Cannot use ReduceOp.BXOR"),
    "raises what cannot be pickled": (waiting(raises_what_cannot_be_pickled), "raised .*Locked: has a lock$"),
    "raises again in the cleanup": (raises_in_the_cleanup, "raised KeyError: 'not there'$"),
    "a collective in the cleanup": (waits_for_others_in_the_cleanup, f"{CAUSE} and then RuntimeError: "),
    "hangs while cleaning up": (hangs_while_cleaning_up, f"{CAUSE} and then {NOT_THERE}$"),
    "dies while cleaning up": (dies_while_cleaning_up, f"{CAUSE} and then was killed by SIGKILL"),
    "another handles an error": (never_arrives_where_another_handles_an_error, f"{NOT_THERE}$"),
    "sys.exit": (waiting(lambda: sys.exit(0)), "left by sys.exit .*0"),
    "os._exit": (waiting(lambda: os._exit(0)), "left with exit code 0 and without a result"),
    "killed": (waiting(is_killed), "was killed by SIGKILL: often the system was out of memory"),
    "a crash": (waiting(crashes), "was killed by SIGSEGV: a crash in compiled code"),
    "stopped": (waiting(is_stopped), f"{NOT_THERE}$"),
    "holds the interpreter": (waiting(holds_the_interpreter), f"{NOT_THERE}$"),
    "loops for ever": (waiting(loops), f"{NOT_THERE}$"),
    "ignores signals and sleeps": (waiting(ignores_everything_and_sleeps), f"{NOT_THERE}$"),
    "returns early": (returns_early, "had returned while others still waited for it$"),
}
# Held by test_failures.py; here for the twenty repetitions.
HELD_ELSEWHERE = {"raises while others wait", "sys.exit", "os._exit", "killed", "loops for ever", "returns early"}
# Without a frame to show, or the library's alone.
WITHOUT_TRACEBACK = {"sys.exit", "os._exit", "killed", "a crash", "stopped", "holds the interpreter", "returns early"}


@pytest.fixture(scope="module")
def pair():
    with Ranks(world_size=2, device="cpu", timeout=TIMEOUT) as ranks:
        yield ranks


def judge(pair, name, capsys):
    work, said = FAULTS[name]
    pair.run(os.getpid)  # so that no start counts
    capsys.readouterr()
    pids, began = [], time.monotonic()
    with pytest.raises(LaunchError) as caught:
        pair.run(work, on_event=lambda event: pids.append(event["pid"]))
    seconds = time.monotonic() - began
    text, failures = str(caught.value), caught.value.failures
    first, *rest = text.splitlines()
    assert re.match(f"rank 1 {said}", first), text
    assert seconds < TIMEOUT + 10, text
    assert all_gone(pids, 5)

    cause, *others = failures
    assert (cause.rank, [other.rank for other in others]) == (1, [0]), "the same as data"
    assert cause.what.splitlines()[0] == first.removeprefix("rank 1 ")
    assert "worker.py" not in text, "the launcher's own frames say nothing"
    if name not in WITHOUT_TRACEBACK:
        assert cause.traceback and cause.traceback in text
        assert "test_faults.py" in cause.traceback
    if cause.traceback and "and then" not in cause.what:
        assert f"\n> {os.path.basename(__file__)}, line " in f"\n{cause.traceback}", "the reader's lines are marked"
    assert rest.index("What the other ranks met:") == len(rest) - 2 - (len(cause.printed) + bool(cause.printed))
    assert rest[rest.index("What the other ranks met:") + 1].startswith("  rank 0 ")
    if "last words" in capsys.readouterr().out:
        assert cause.printed[-1] == "last words"
        assert text.endswith("The last lines that rank 1 printed:\n  last words")


def pytest_generate_tests(metafunc):
    """Each fault once, but for those that other tests hold; with ``-m stress``, all of them twenty times."""
    if "fault" in metafunc.fixturenames:
        stress = "stress" in metafunc.config.getoption("markexpr")
        names = [name for name in FAULTS if stress or name not in HELD_ELSEWHERE]
        marks = [pytest.mark.stress] if stress else []
        metafunc.parametrize("fault", [pytest.param(name, marks=marks) for name in names * (20 if stress else 1)])


def test_a_fault_is_told_by_its_first_line(fault, pair, capsys):
    judge(pair, fault, capsys)


def test_of_three_ranks_the_one_that_failed_is_named_and_both_others_are_listed():
    def work(culprit):
        with process_group() as env:
            if env.rank == culprit:
                raise ValueError("the cause")
            dist.barrier()

    with Ranks(world_size=3, device="cpu", timeout=TIMEOUT) as ranks:
        with pytest.raises(LaunchError) as caught:
            ranks.run(work, (2,))
    assert str(caught.value).startswith("rank 2 raised ValueError: the cause\n")
    assert [failure.rank for failure in caught.value.failures][0] == 2
    assert sorted(failure.rank for failure in caught.value.failures) == [0, 1, 2]
    assert [failure.symptom for failure in caught.value.failures] == [False, True, True]


def test_the_ranks_that_did_not_arrive_are_all_named():
    def work():
        if os.environ["RANK"] != "0":
            time.sleep(1000)
        with process_group():
            pass

    with Ranks(world_size=3, device="cpu", timeout=1) as ranks:
        with pytest.raises(LaunchError) as caught:
            ranks.run(work)
    text = str(caught.value)
    assert re.match("rank [12] did not arrive where the others waited for it\n", text)
    assert "ranks 1, 2, which did not arrive" in " ".join(failure.what for failure in caught.value.failures)
    assert {failure.rank for failure in caught.value.failures[:2]} == {1, 2}


def test_an_error_text_of_many_lines_is_kept_whole_in_the_data_and_short_for_the_others(pair):
    def work():
        with process_group() as env:
            if env.rank == 1:
                raise ValueError("first line\n" + "second line\n" * 50)
            dist.barrier()

    with pytest.raises(LaunchError) as caught:
        pair.run(work)
    assert str(caught.value).splitlines()[0] == "rank 1 raised ValueError: first line"
    assert caught.value.failures[0].what.count("second line") == 50
