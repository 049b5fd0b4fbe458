import base64
import io
import json

import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from ddp_tutorial import plot_losses
from ddp_tutorial.plots import MEAN_COLOR, RANK_COLORS, figure, picture, rank_color


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


def test_each_rank_has_a_colour_of_its_own():
    assert len({rank_color(rank) for rank in range(8)} | {MEAN_COLOR}) == 9
    assert rank_color(8) == RANK_COLORS[0]


def test_a_figure_is_not_shown_a_second_time():
    """What pyplot keeps open, a notebook shows by itself at the end of the cell."""
    drawing, axes = figure(rows=2, columns=2, size=(4, 3))
    assert isinstance(drawing, Figure) and axes.shape == (2, 2)
    assert tuple(drawing.get_size_inches()) == (4, 3)
    assert pyplot.get_fignums() == []


def test_a_picture_is_shown_with_words_and_on_white(monkeypatch):
    outputs = []
    monkeypatch.setattr("IPython.display.display", lambda *shown: outputs.extend(shown))
    drawing, _ = figure(size=(2, 1))
    drawing.set_facecolor("none")  # as a dark style has it
    assert picture(drawing, "two ranks, a < b") is None
    image, caption = outputs
    data, metadata = image._repr_mimebundle_()
    assert metadata["image/png"]["alt"] == "two ranks, a < b"
    assert pyplot.imread(io.BytesIO(base64.b64decode(data["image/png"])))[0, 0].tolist() == [1, 1, 1, 1]
    assert caption.data == "<small>two ranks, a &lt; b</small>"


@pytest.mark.parametrize("ranks", [1, 2, 8, 10])
def test_losses_are_drawn_for_each_rank_and_the_mean(ranks):
    told = history(ranks=ranks)
    left, right = plot_losses(told).axes
    lines = {line.get_label(): line for line in left.lines}
    assert list(lines) == [*(f"rank {rank}" for rank in range(ranks)), "mean of all"]
    for rank in range(ranks):
        line = lines[f"rank {rank}"]
        assert list(line.get_ydata()) == [step["train_loss_by_rank"][rank] for step in told["steps"]]
        assert line.get_color() == rank_color(rank)
    mean = lines["mean of all"]
    assert list(mean.get_ydata()) == [step["train_loss"] for step in told["steps"]]
    assert mean.get_linewidth() > line.get_linewidth()
    assert list(right.lines[0].get_ydata()) == pytest.approx([50, 60])
    assert left.get_title() and right.get_title()
    assert left.get_xlabel() == "step" and right.get_xlabel() == "epoch"


def test_a_picture_can_be_drawn_of_the_file_of_a_run(tmp_path):
    told = history()
    file = tmp_path / "history.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in told["steps"] + told["epochs"]))
    for path in (file, str(file)):
        lines = plot_losses(path).axes[0].lines
        assert list(lines[-1].get_ydata()) == [step["train_loss"] for step in told["steps"]]
    plot_losses(file).savefig(tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("part", ["steps", "epochs"])
def test_a_run_that_was_cut_short_can_be_drawn(part, tmp_path):
    plot_losses(history() | {part: []}).savefig(tmp_path / "loss.png")


def test_a_run_that_went_on_with_more_ranks_has_a_mark_and_each_rank_where_it_was():
    told = history(steps=4, ranks=1)
    told["steps"] = told["steps"][:2] + [dict(step, train_loss_by_rank=[1.0, 2.0]) for step in told["steps"][2:]]
    told["resumed"] = [2]
    axes = plot_losses(told).axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines["went on from a checkpoint"].get_xdata()) == [2.5, 2.5]
    assert str(lines["rank 1"].get_ydata().tolist()) == str([float("nan")] * 2 + [2.0] * 2)
    assert len(lines["rank 0"].get_ydata()) == 4
