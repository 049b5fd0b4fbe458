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
    for event in events(history(steps=100))[:2]:
        plot(event)
    assert 'max="100"' in shown[0].contents[-1].data


def test_thousands_of_steps_make_two_pictures_a_second_at_most_and_four_bars(shown, monkeypatch):
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
    assert 3 < seconds < 12
    assert 5 <= len(pictures) <= 2 * seconds + 1
    assert len(bar.contents) <= 4 * seconds + 3
    assert pictures[0] < 2000 and "not over yet" in picture.contents[1], "the curve moves before an epoch is over"
    assert pictures[-1] == 6000 and epoch_line(told["epochs"][0]) in picture.contents[-1]


def test_a_long_training_spends_ever_less_on_pictures(shown, monkeypatch):
    """Of a clock of this test's own: each look at it takes 1 ms, each picture 100 ms."""
    told, seconds = history(steps=40_000), 0.0

    def clock(passed=0.001):
        nonlocal seconds
        seconds += passed
        return seconds

    at = []
    monkeypatch.setattr(live.time, "monotonic", clock)
    monkeypatch.setattr(live, "plot_losses", lambda so_far: at.append(clock(0.1)))
    monkeypatch.setattr(live, "image", lambda drawing, alt: alt)
    plot = LivePlot()
    for event in events(told):
        plot(event)
    assert sum(moment < 5 for moment in at) >= 5
    assert 0.1 * sum(20 < moment < seconds - 1 for moment in at) < 0.02 * (seconds - 20)
    gaps = [later - earlier for earlier, later in zip(at, at[1:])]
    assert max(gaps) < 15, "it goes on moving"


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
