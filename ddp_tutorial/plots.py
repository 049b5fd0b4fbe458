"""Pictures of a training, in one style. Taught in ``notebooks/07_launch_and_plot.ipynb``.

Runs in the process that launched, never in a rank; matplotlib is imported when the first picture is drawn.
"""

from __future__ import annotations

import html
import io
import os
from typing import TYPE_CHECKING, Any

from .history import History, read_history

if TYPE_CHECKING:
    from IPython.display import Image
    from matplotlib.figure import Figure

# One colour a rank, in every picture. Chosen by Okabe and Ito so that colour-blind readers tell them apart.
RANK_COLORS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7F7F7F"]
MEAN_COLOR = "#222222"


def rank_color(rank: int) -> str:
    """Return the colour of ``rank``."""
    return RANK_COLORS[rank % len(RANK_COLORS)]


def figure(rows: int = 1, columns: int = 1, size: tuple[float, float] = (8.0, 3.2)) -> tuple[Figure, Any]:
    """Return a new figure of ``size`` inches and its axes, to be drawn on and then shown by :func:`picture`."""
    from matplotlib import pyplot

    with pyplot.rc_context({"font.size": 10, "axes.titlesize": 11}):
        drawing, axes = pyplot.subplots(rows, columns, figsize=size, dpi=90, layout="constrained")
    for one in drawing.axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", alpha=0.25)
        one.set_axisbelow(True)
    pyplot.close(drawing)  # otherwise a notebook shows it a second time by itself
    return drawing, axes


def picture(drawing: Figure, alt: str) -> None:
    """Show ``drawing`` below the cell, and ``alt`` as its caption: what it shows, for those who cannot see it.

    The caption is text of its own because JupyterLab leaves out the alternative text that an image brings along.
    """
    from IPython.display import HTML, display

    display(image(drawing, alt), HTML(f"<small>{html.escape(alt)}</small>"))


def image(drawing: Figure, alt: str) -> Image:
    """Return ``drawing`` as an image with the alternative text ``alt``."""
    from IPython.display import Image

    file = io.BytesIO()
    # White, not transparent: black text on the page of a dark theme could not be read.
    drawing.savefig(file, format="png", bbox_inches="tight", facecolor="white")
    return Image(file.getvalue(), format="png", alt=alt)


def plot_losses(history: History | str | os.PathLike) -> Figure:
    """Draw loss by step, the mean bold and each rank's thin, and loss and accuracy by epoch.

    A dashed line marks where the run went on from a checkpoint.

    ``history`` is what :func:`train` returned, or the path of a ``history.jsonl``.
    """
    if isinstance(history, str | os.PathLike):
        history = read_history(history)
    drawing, (left, right) = figure(columns=2, size=(9.5, 3.4))
    _draw_steps(left, history["steps"], history["resumed"])
    _draw_epochs(right, history["epochs"])
    return drawing


def _draw_steps(axes: Any, steps: list[dict], resumed: list[int]) -> None:
    numbers = [step["step"] for step in steps]
    by_rank = [step["train_loss_by_rank"] for step in steps]
    for rank in range(max(map(len, by_rank), default=0)):  # a run can go on with another number of ranks
        losses = [some[rank] if rank < len(some) else float("nan") for some in by_rank]
        axes.plot(numbers, losses, color=rank_color(rank), linewidth=0.8, alpha=0.8, label=f"rank {rank}")
    axes.plot(numbers, [step["train_loss"] for step in steps], color=MEAN_COLOR, linewidth=2, label="mean of all")
    for index, step in enumerate(resumed):
        label = None if index else "went on from a checkpoint"
        axes.axvline(step + 0.5, color=MEAN_COLOR, linewidth=1, linestyle="--", label=label)
    axes.set(xlabel="step", ylabel="training loss (nats a sample)", ylim=(0, None))
    if steps:
        axes.set_title(
            f"Loss {steps[0]['train_loss']:.2f} at first, {steps[-1]['train_loss']:.2f} at step {numbers[-1]}"
        )
        # A frame without a line: otherwise the dashed mark can run through the words.
        axes.legend(framealpha=0.9, edgecolor="none", ncols=2 if len(by_rank[0]) > 4 else 1)


def _draw_epochs(axes: Any, epochs: list[dict]) -> None:
    numbers = [epoch["epoch"] for epoch in epochs]
    accuracy = [100 * epoch["eval_accuracy"] for epoch in epochs]
    axes.plot(numbers, accuracy, color=MEAN_COLOR, marker="o", markersize=4)
    axes.set(xlabel="epoch", ylabel="held-out samples right (%)", ylim=(None, 100.5))
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    if epochs:
        axes.set_xlim(min(numbers) - 0.5, max(numbers) + 0.5)  # one epoch alone would otherwise be drawn from 0.96 on
        axes.set_title(f"{accuracy[-1]:.1f} % right after {numbers[-1]} {'epoch' if numbers[-1] == 1 else 'epochs'}")


def epoch_line(epoch: dict) -> str:
    """Say in one line how an epoch went."""
    return (
        f"epoch {epoch['epoch']}: training loss {epoch['train_loss']:.4f}, held-out loss {epoch['eval_loss']:.4f}, "
        f"{epoch['eval_accuracy']:.1%} right, {epoch['samples_per_second']:,.0f} samples/s"
    )
