import os
import pickle
import re
import signal
import sys
import time

import pytest
import torch
import torch.distributed as dist
from support import all_gone

from ddp_tutorial import LaunchError, process_group, report
from ddp_tutorial.failures import Failure, describe, from_description, from_exit

pytestmark = pytest.mark.launcher


def failure_of(ranks, fn, args=()):
    """Return the error of a launch, after which no rank of it may be left."""
    pids = []

    def tell_pid(*args):
        report(pid=os.getpid())
        return fn(*args)

    with pytest.raises(LaunchError) as caught:
        ranks.run(tell_pid, args, on_event=lambda event: pids.append(event["pid"]))
    assert all_gone(pids)
    return caught.value


class OwnError(Exception):
    """Needs two arguments, so it would not survive pickling."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")


def raise_inside_the_group(how):
    """Rank 1 raises; rank 0 waits in a collective and suffers from rank 1's leaving."""
    if how == "process_group":
        with process_group() as env:
            if env.rank == 1:
                print("about to fail")
                raise OwnError(7, "bad batch")
            dist.barrier()
        return
    dist.init_process_group("gloo")
    try:
        if dist.get_rank() == 1:
            print("about to fail")
            raise OwnError(7, "bad batch")
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            if how == "bare finally, wrapped by the victim":
                raise ValueError("training failed") from error
            raise
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("how", ["process_group", "bare finally", "bare finally, wrapped by the victim"])
def test_the_cause_comes_first_also_when_cleaning_up_makes_others_fail(how, two):
    error = failure_of(two, raise_inside_the_group, (how,))
    cause, *others = error.failures
    assert (cause.rank, cause.type, cause.symptom) == (1, "OwnError", False)
    assert [(other.rank, other.symptom) for other in others] == [(0, True)]
    text = str(error)
    assert text.splitlines()[0].startswith("rank 1 raised") and "7: bad batch" in text.splitlines()[0]
    assert 'raise OwnError(7, "bad batch")' in cause.traceback and "raise_inside_the_group" in cause.traceback
    assert text.index("7: bad batch") < text.index("What the other ranks met")
    assert cause.printed[-1] == "about to fail"


def test_all_ranks_failing_are_all_listed(two):
    def fail():
        raise ValueError(f"on {os.environ['RANK']}")

    error = failure_of(two, fail)
    assert sorted((failure.rank, failure.what) for failure in error.failures) == [
        (rank, f"raised ValueError: on {rank}") for rank in range(2)
    ]


def in_a_group(rank_1_does, *args):
    with process_group(timeout=5) as env:
        if env.rank == 1:
            rank_1_does(*args)
        else:
            dist.barrier()


def raise_interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("leave", "args", "said"),
    [
        (sys.exit, (0,), "sys.exit.*0"),
        (sys.exit, ("nothing to do",), "nothing to do"),
        (os._exit, (0,), "exit code 0 and without a result"),
        (raise_interrupt, (), "KeyboardInterrupt"),
    ],
)
def test_a_rank_that_leaves_quietly_is_a_failure(leave, args, said, two):
    assert re.match(f"rank 1 .*{said}", str(failure_of(two, in_a_group, (leave, *args))))


def test_a_killed_rank_is_named_with_the_usual_reason(two):
    error = failure_of(two, in_a_group, (lambda: os.kill(os.getpid(), signal.SIGKILL),))
    assert str(error).startswith("rank 1 was killed by SIGKILL: often the system was out of memory")


@pytest.fixture
def hasty(two, monkeypatch):
    """The warm ranks, with a time limit of 2 s."""
    monkeypatch.setattr(two, "timeout", 2.0)
    return two


def test_a_rank_that_never_arrives_is_named_with_the_place_where_it_is(hasty):
    def one_sleeps():
        if os.environ["RANK"] == "1":
            time.sleep(1000)
        with process_group():
            pass

    error = failure_of(hasty, one_sleeps)
    assert str(error).startswith("rank 1 did not arrive")
    assert "time.sleep(1000)" in error.failures[0].traceback
    assert error.failures[1].type == "TimeoutError" and "rank 1, which did not arrive" in error.failures[1].what


def test_a_rank_that_computes_for_ever_is_named(hasty):
    def one_computes():
        with process_group() as env:
            while env.rank == 1:
                pass
            dist.barrier()

    error = failure_of(hasty, one_computes)
    assert error.failures[0].rank == 1
    assert "while env.rank == 1" in error.failures[0].traceback or "pass" in error.failures[0].traceback


def test_a_rank_that_returned_early_is_named(hasty):
    def one_returns():
        with process_group() as env:
            if env.rank == 0:
                dist.barrier()
        return env.rank

    assert str(failure_of(hasty, one_returns)).startswith("rank 1 had returned while others still waited for it")


def test_a_script_that_names_no_timeout_is_bounded_as_well(hasty):
    def script():
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1))
        else:
            time.sleep(1000)

    assert str(failure_of(hasty, script)).startswith("rank 1 did not arrive")


def test_a_rank_that_ignores_sigterm_is_ended(two):
    def stubborn():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with process_group() as env:
            if env.rank == 1:
                raise ValueError("the cause")
            time.sleep(1000)

    assert failure_of(two, stubborn).failures[0].what == "raised ValueError: the cause"


def told_of(fn):
    """Return the failure that a launcher would tell of ``fn``."""
    try:
        fn()
    except Exception as error:
        return from_description(0, describe(error))


def test_what_led_to_an_error_is_told():
    def fail():
        try:
            {}["missing"]
        except KeyError as error:
            raise ValueError("no such sample") from error

    failure = told_of(fail)
    assert failure.what == "raised ValueError: no such sample"
    assert failure.traceback.index("KeyError: 'missing'") < failure.traceback.index("which led to")


def test_an_error_in_library_code_shows_the_readers_line():
    failure = told_of(lambda: torch.nn.Linear(2, 2)(torch.ones(3)))
    assert "torch.nn.Linear(2, 2)(torch.ones(3))" in failure.traceback
    assert "more in libraries" in failure.traceback


def test_an_error_that_cannot_be_printed_is_still_an_error():
    class Unspeakable(RuntimeError):
        def __str__(self):
            raise ZeroDivisionError

    def fail():
        raise Unspeakable

    assert told_of(fail).type == "Unspeakable"


def test_a_launch_error_survives_pickling():
    error = LaunchError([Failure(1, "was killed", printed=["a"]), Failure(0, "raised", symptom=True)])
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) and copy.failures == error.failures


def test_consequences_come_after_causes_and_later_after_earlier():
    def failure(rank, time, symptom=False):
        return Failure(rank, "failed", time=time, symptom=symptom)

    error = LaunchError([failure(0, 1, True), failure(1, 30), failure(2, 20), failure(3, 2, True)])
    assert [one.rank for one in error.failures] == [2, 1, 0, 3]


@pytest.mark.parametrize(
    ("error", "symptom"),
    [
        (ValueError("bad"), False),
        (RuntimeError("CUDA out of memory"), False),
        (RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"), True),
        (RuntimeError("NCCL communicator was aborted"), True),
        (ValueError("loss is NCCL"), False),
        (TimeoutError("rank 0 waited"), True),
        (torch.distributed.DistNetworkError("gone"), True),
    ],
)
def test_errors_that_another_rank_caused_are_told_from_others(error, symptom):
    try:
        raise error
    except Exception as raised:
        told = describe(raised)
    assert told["symptom"] == symptom
    failure = from_description(2, told)
    assert (failure.rank, failure.type) == (2, type(error).__name__)
    assert str(error) in failure.what


@pytest.mark.parametrize(
    ("code", "said"), [(0, "exit code 0"), (1, "exit code 1"), (-9, "SIGKILL"), (-11, "SIGSEGV"), (-200, "signal 200")]
)
def test_an_exit_is_put_into_words(code, said):
    assert said in from_exit(0, code).what
