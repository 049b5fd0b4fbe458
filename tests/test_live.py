import re
from xml.etree import ElementTree

import pytest

from ddp_tutorial import LivePlot, live
from ddp_tutorial.plots import epoch_line


def history(steps=4, ranks=2, epochs=2):
    losses = [[2.0 / step + 0.1 * rank for rank in range(ranks)] for step in range(1, steps + 1)]
    return {
        "resumed": [],
        "steps": [
            {"step": number, "epoch": 1, "train_loss": sum(loss) / ranks, "train_loss_by_rank": loss}
            for number, loss in enumerate(losses, start=1)
        ],
        "epochs": [
            {
                "epoch": number,
                "train_loss": 1.0,
                "train_loss_by_rank": [1.0] * ranks,
                "eval_loss": 0.5,
                "eval_accuracy": 0.4 + number / 10,
                "seconds": 1.5,
                "samples_per_second": 1000.0,
            }
            for number in range(1, epochs + 1)
        ],
    }


def events(told):
    start = {"total_steps": len(told["steps"]), "world_size": 2, "global_batch": 128, "device": "cpu"}
    return [{"rank": 0, **event} for event in [start, *told["steps"], *told["epochs"][:1]]]


def test_outside_a_notebook_a_live_plot_prints_a_line_an_epoch(capsys):
    plot = LivePlot()
    for event in [{"rank": 1, "own": "record"}, *events(history())]:
        plot(event)
    assert capsys.readouterr().out == epoch_line(history()["epochs"][0]) + "\n"


class Handle:
    """Stands for what ``display(..., display_id=True)`` returns."""

    def __init__(self, shown, content):
        self.shown, self.contents = shown, [content]
        shown.append(self)

    def update(self, content):
        self.contents.append(content)


@pytest.fixture
def shown(monkeypatch):
    """What a notebook would show."""
    display = pytest.importorskip("IPython.display")
    handles = []
    monkeypatch.setattr(live, "_in_notebook", lambda: True)
    monkeypatch.setattr(display, "display", lambda content, display_id: Handle(handles, content))
    return handles


def test_in_a_notebook_one_bar_and_one_picture_are_redrawn_in_place(shown):
    plot = LivePlot()
    for _ in range(2):  # the same object again shows the second training in the place of the first
        for event in events(history()):
            plot(event)
        bar, picture = shown
        assert 'value="4" max="4"' in bar.contents[-1].data
        assert epoch_line(history()["epochs"][0]) in bar.contents[-1].data
        assert picture.contents[-1].data.startswith(b"\x89PNG")


def test_a_training_that_failed_early_leaves_a_bar_where_it_stopped(shown):
    plot = LivePlot()
    start, step, *_ = events(history(steps=100))
    plot(start)
    assert 'value="0" max="100"' in shown[0].contents[-1].data
    plot._drawn = 0  # it is time to draw again
    plot(step)
    assert 'value="1" max="100"' in shown[0].contents[-1].data


def test_records_that_came_together_are_drawn_together(shown):
    start, *steps, epoch = events(history(steps=100))
    plot = LivePlot()
    plot(start)
    for first in (0, 30, 60):
        plot._drawn = 0  # it is time to draw again
        plot.hear(steps[first : first + 30])
        assert f'value="{first + 30}" max="100"' in shown[0].contents[-1].data
        assert f">step {first + 30}<" in shown[1].contents[-1].data
    plot.hear([*steps[90:], epoch])
    assert 'value="100" max="100"' in shown[0].contents[-1].data
    assert shown[1].contents[-1].data.startswith(b"\x89PNG")


def test_records_of_the_readers_own_are_no_losses(shown):
    plot = LivePlot()
    for event in [*events(history())[:1], {"rank": 0, "step": 1, "loss": 0.5}, {"rank": 1, "eval_accuracy": 0.5}]:
        plot(event)
    assert (plot.steps, plot.epochs) == ([], [])


def test_thousands_of_steps_make_few_drawings_and_matplotlib_draws_once(shown, monkeypatch):
    """matplotlib takes a tenth of a second of CPU, which ranks on the CPU lack: it draws when they are done."""
    told, clock = history(steps=6000), iter(range(10**9))
    monkeypatch.setattr(live.time, "monotonic", lambda: next(clock) / 2000)  # asked once or twice for each step
    pictures = []
    monkeypatch.setattr(live, "plot_losses", lambda so_far: pictures.append(len(so_far["steps"])))
    monkeypatch.setattr(live, "image", lambda drawing, alt: alt)
    plot = LivePlot()
    for event in events(told):
        plot(event)
    seconds = next(clock) / 2000
    bar, picture = shown
    *sketches, final = picture.contents[1:]
    assert 2 < seconds < 12
    assert seconds <= len(sketches) <= seconds / live.PAUSE + 1
    assert seconds <= len(bar.contents) <= seconds / live.PAUSE + 3
    assert int(re.search(r">step (\d+)<", sketches[0].data)[1]) < 2000, "the curve moves before an epoch is over"
    assert pictures == [6000] and epoch_line(told["epochs"][0]) in final


def sketch(shown, told):
    """Return the text of the drawing of a run that goes on after ``told``, as SVG."""
    plot = LivePlot()
    plot({"rank": 0, "total_steps": 10**6, "global_batch": 128})
    plot({"rank": 0, "steps": told["steps"], "epochs": [], "resumed": [len(told["steps"])]})
    return shown[1].contents[-1].data


def curves(text):
    """Return the points of each line of a drawing, the mean last, in pixels from its upper left corner."""
    lines = ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}polyline")
    return [[tuple(map(int, point.split(","))) for point in line.get("points").split()] for line in lines]


def test_while_it_trains_each_rank_has_a_line_and_so_has_their_mean(shown):
    steps = history(steps=100)["steps"]
    by_rank = list(zip(*(step["train_loss_by_rank"] for step in steps)))
    highest = by_rank[1][0]
    lines = curves(sketch(shown, {"steps": steps}))
    for points, losses in zip(lines, [*by_rank, [step["train_loss"] for step in steps]], strict=True):
        assert [x for x, _ in points[:100]] == [round(60 + 5.2 * number) for number in range(1, 101)]
        assert [y for _, y in points[:100]] == [round(180 - 150 * loss / highest) for loss in losses]


def test_however_long_the_run_a_drawing_while_it_trains_stays_small(shown):
    text = sketch(shown, history(steps=20_000, ranks=4))
    assert len(text) < 20_000
    assert [250 < len(points) <= 301 for points in curves(text)] == [True] * 5
    assert {points[-1][0] for points in curves(text)} == {580}


def test_losses_that_are_not_finite_and_ranks_that_came_later_are_left_out_while_it_trains(shown):
    told = history(steps=4)
    told["steps"][1] |= {"train_loss": float("nan"), "train_loss_by_rank": [float("inf"), 1.0]}
    told["steps"][0]["train_loss_by_rank"] = [0.5]
    one, mean = curves(sketch(shown, told))
    assert [x for x, _ in one[:3]] == [x for x, _ in mean[:3]] == [190, 450, 580]


def test_a_run_that_goes_on_shows_what_it_had(shown):
    told = history(steps=4)
    start, *rest = events(told)
    plot = LivePlot()
    plot(start)
    plot({"rank": 0, "steps": told["steps"][:3], "epochs": [], "resumed": [3]})
    for event in rest[3:]:
        plot(event)
    assert 'value="4" max="4"' in shown[0].contents[-1].data
    assert plot.resumed == [3]


def test_a_run_that_goes_on_with_other_ranks_ends_with_its_last_epoch(shown):
    """Its steps say nothing: a step of two ranks takes twice the samples that one of a single rank does."""
    told = history(steps=30, epochs=2)
    plot = LivePlot()
    plot({"rank": 0, "total_steps": 60, "epochs": 2, "global_batch": 64})
    plot({"rank": 0, "steps": told["steps"][:20], "epochs": told["epochs"][:1], "resumed": [20]})
    assert 'value="20" max="60"' in shown[0].contents[-1].data
    plot.hear([*told["steps"][20:], told["epochs"][1]])
    assert 'value="30" max="30"' in shown[0].contents[-1].data and "s left" not in shown[0].contents[-1].data
    assert shown[1].contents[-1].data.startswith(b"\x89PNG")


def test_a_run_that_was_over_shows_its_picture(shown):
    told = history(steps=4, epochs=2)
    plot = LivePlot()
    plot({"rank": 0, "total_steps": 4, "epochs": 2, "global_batch": 64})
    plot({"rank": 0, "steps": told["steps"], "epochs": told["epochs"], "resumed": [4]})
    assert shown[1].contents[-1].data.startswith(b"\x89PNG")


def test_what_is_left_of_a_run_that_goes_on_is_told_from_its_own_pace(shown, monkeypatch):
    told, now = history(steps=90), 100.0
    monkeypatch.setattr(live.time, "monotonic", lambda: now)
    plot = LivePlot()
    plot({"rank": 0, "total_steps": 100, "epochs": 2, "global_batch": 64})
    plot({"rank": 0, "steps": told["steps"][:80], "epochs": told["epochs"][:1], "resumed": [80]})
    now += 5
    plot.hear(told["steps"][80:])
    assert "step 90 of 100, 128 samples a second, 5 s left" in shown[0].contents[-1].data
