import math
import time

import pytest
import torch

from ddp_tutorial import report
from ddp_tutorial.reporting import listen, report_all


@pytest.fixture
def heard():
    records = []
    listen(records.extend)
    yield records
    listen(None)


def test_whoever_listens_gets_plain_json_values(heard):
    report(step=1, loss=0.5, name="é", parts=(1, [2, {"three": None}]), done=True)
    assert heard == [{"step": 1, "loss": 0.5, "name": "é", "parts": [1, [2, {"three": None}]], "done": True}]


def test_a_later_change_of_a_value_changes_no_record(heard):
    values = [1]
    report(values=values)
    values.append(2)
    assert heard == [{"values": [1]}]


def test_losses_that_are_no_number_pass(heard):
    report(loss=math.nan, best=math.inf)
    assert math.isnan(heard[0]["loss"]) and heard[0]["best"] == math.inf


@pytest.mark.parametrize("value", [torch.ones(1), {1, 2}, object(), b"bytes"])
@pytest.mark.parametrize("listening", [False, True])
def test_other_values_are_refused_also_where_nobody_listens(value, listening, request):
    if listening:
        request.getfixturevalue("heard")
    with pytest.raises(TypeError, match=r"plain numbers.*\.item\(\)"):
        report(loss=value)


def test_where_nobody_listens_a_report_does_nothing():
    report(step=1)


def test_records_arrive_while_the_ranks_run_in_order_and_with_their_rank(two, tmp_path):
    def count(answer):
        for step in range(3):
            report(step=step)
        while not answer.exists():  # made by whoever hears of the last step
            time.sleep(0.01)

    events = []

    def hear(event):
        events.append(event)
        if len(events) == 6:
            (tmp_path / "answer").touch()

    two.run(count, (tmp_path / "answer",), on_event=hear)
    for rank in range(2):
        assert [event for event in events if event["rank"] == rank] == [{"rank": rank, "step": s} for s in range(3)]


def test_several_records_of_one_message_arrive_in_order_one_by_one_or_together(two):
    def tell():
        report_all([{"step": step} for step in range(3)])

    class Together(list):
        def hear(self, events):
            self.append(events)

    one_by_one, together = [], Together()
    two.run(tell, on_event=one_by_one.append)
    two.run(tell, on_event=together)
    assert sorted(together, key=lambda events: events[0]["rank"]) == [
        [{"rank": rank, "step": step} for step in range(3)] for rank in range(2)
    ]
    assert sorted(one_by_one, key=lambda event: event["rank"]) == [
        {"rank": rank, "step": step} for rank in range(2) for step in range(3)
    ]


def test_without_on_event_records_are_dropped(two):
    def tell():
        report(step=1)
        return "told"

    assert two.run(tell) == ["told"] * 2


def test_what_was_printed_before_a_report_appears_before_it(two, capsys):
    def talk():
        print("first")
        report(step=1)

    two.run(talk, on_event=lambda event: print(f"event of {event['rank']}"))
    lines = capsys.readouterr().out.splitlines()
    for rank in range(2):
        assert lines.index(f"[rank {rank}] first") < lines.index(f"event of {rank}")


def test_an_error_in_on_event_ends_the_launch(two):
    def endless():
        report(step=1)
        time.sleep(1000)

    def hear(event):
        raise ZeroDivisionError("in on_event")

    with pytest.raises(ZeroDivisionError, match="in on_event"):
        two.run(endless, on_event=hear)
    assert two.run(abs, (-1,)) == [1, 1]
