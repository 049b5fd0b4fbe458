"""Pictures of a training, in one style. Taught in ``notebooks/07_launch_and_plot.ipynb``.

Runs in the process that launched, never in a rank; matplotlib is imported when the first picture is drawn.
"""

from __future__ import annotations

import io
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from .history import History, read_history

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# One colour a rank, in every picture. Chosen by Okabe and Ito so that colour-blind readers tell them apart.
RANK_COLORS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7F7F7F"]
MEAN_COLOR = "#222222"


def rank_color(rank: int) -> str:
    """Return the colour of ``rank``."""
    return RANK_COLORS[rank % len(RANK_COLORS)]


def figure(rows: int = 1, columns: int = 1, size: tuple[float, float] = (8.0, 3.2)) -> tuple[Figure, Any]:
    """Return a new figure of ``size`` inches and its axes. As the last value of a cell it is shown, once."""
    from matplotlib import pyplot

    with pyplot.rc_context({"font.size": 10, "axes.titlesize": 11, "axes.titlelocation": "left", "savefig.dpi": 90}):
        drawing, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained")
    for one in drawing.axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", alpha=0.25)
    pyplot.close(drawing)  # otherwise a notebook shows it a second time by itself
    return drawing, axes


def plot_losses(history: History | str | os.PathLike) -> Figure:
    """Draw loss by step, the mean bold and each rank's thin, and loss and accuracy by epoch.

    ``history`` is what :func:`train` returned, or the path of a ``history.jsonl``.
    """
    if isinstance(history, str | os.PathLike):
        steps, epochs = read_history(history)
    else:
        steps, epochs = history["steps"], history["epochs"]
    drawing, (left, right) = figure(columns=2, size=(9.5, 3.4))
    _draw_steps(left, steps)
    _draw_epochs(right, epochs)
    return drawing


def _draw_steps(axes: Any, steps: list[dict]) -> None:
    numbers = [step["step"] for step in steps]
    for rank, losses in enumerate(zip(*(step["train_loss_by_rank"] for step in steps))):
        axes.plot(numbers, losses, color=rank_color(rank), linewidth=0.8, alpha=0.8, label=f"rank {rank}")
    axes.plot(numbers, [step["train_loss"] for step in steps], color=MEAN_COLOR, linewidth=2, label="mean of all")
    axes.set(xlabel="step", ylabel="training loss (nats a sample)", ylim=(0, None))
    if steps:
        axes.set_title(
            f"Loss {steps[0]['train_loss']:.2f} at first, {steps[-1]['train_loss']:.2f} at step {numbers[-1]}"
        )
        axes.legend(frameon=False, ncols=2 if len(steps[0]["train_loss_by_rank"]) > 4 else 1)


def _draw_epochs(axes: Any, epochs: list[dict]) -> None:
    numbers = [epoch["epoch"] for epoch in epochs]
    accuracy = [100 * epoch["eval_accuracy"] for epoch in epochs]
    axes.plot(numbers, accuracy, color=MEAN_COLOR, marker="o", markersize=4)
    axes.set(xlabel="epoch", ylabel="held-out samples right (%)", ylim=(None, 100.5))
    axes.xaxis.get_major_locator().set_params(integer=True)
    if epochs:
        axes.set_title(f"{accuracy[-1]:.1f} % right after {numbers[-1]} epochs")


class LivePlot:
    """Give it to ``launch`` as ``on_event``: a bar and the curves move while the ranks train.

    In a notebook one bar and one picture are redrawn in place; elsewhere it prints a line an epoch.
    """

    def __init__(self) -> None:
        self.steps: list[dict] = []
        self.epochs: list[dict] = []
        self._start: dict = {}
        self._begun = self._drawn = self._barred = 0.0
        self._handles: list[Any] = []

    def __call__(self, event: dict) -> None:
        """Take in one record of a training, as ``report`` sent it."""
        if "total_steps" in event:
            self._start, self._begun = event, time.monotonic()
            self.steps, self.epochs = [], []
        elif "step" in event:
            self.steps.append(event)
        elif "eval_accuracy" in event:
            self.epochs.append(event)
        else:
            return
        last = bool(self.steps) and "epoch" in event and "step" not in event and self._done()
        if _in_notebook():
            self._show(last)
        elif "eval_accuracy" in event:
            print(epoch_line(event), flush=True)

    def _done(self) -> bool:
        return len(self.steps) >= self._start.get("total_steps", 0)

    def _show(self, last: bool) -> None:
        from IPython.display import HTML, Image, display

        now = time.monotonic()
        if not self._handles:
            self._handles = [display(HTML(self._bar()), display_id=True), display(HTML(""), display_id=True)]
        if last or now > self._barred + 0.1:
            self._barred = now
            self._handles[0].update(HTML(self._bar()))
        if self.epochs and (last or now > self._drawn + 0.5):  # a picture costs a tenth of a second
            self._drawn = now
            picture = io.BytesIO()
            plot_losses({"steps": self.steps, "epochs": self.epochs}).savefig(picture, format="png")
            alt = f"Loss by step and accuracy by epoch; {epoch_line(self.epochs[-1])}"
            self._handles[1].update(Image(picture.getvalue(), format="png", alt=alt))

    def _bar(self) -> str:
        done, total = len(self.steps), self._start.get("total_steps", 1)
        seconds = time.monotonic() - self._begun
        rate = done * self._start.get("global_batch", 0) / max(seconds, 1e-9)
        left = "" if self._done() or not done else f", {seconds * (total - done) / done:.0f} s left"
        text = f"step {done} of {total}, {rate:,.0f} samples a second{left}"
        if self.epochs:
            text += f"<br>{epoch_line(self.epochs[-1])}"
        return f'<progress value="{done}" max="{total}" style="width: 24em"></progress> {text}'


def epoch_line(epoch: dict) -> str:
    """Say in one line how an epoch went."""
    return (
        f"epoch {epoch['epoch']}: training loss {epoch['train_loss']:.4f}, held-out loss {epoch['eval_loss']:.4f}, "
        f"{epoch['eval_accuracy']:.1%} right, {epoch['samples_per_second']:,.0f} samples/s"
    )


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")
