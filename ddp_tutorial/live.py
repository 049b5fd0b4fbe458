"""A bar and curves that move while the ranks train. Taught in ``notebooks/07_launch_and_plot.ipynb``."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from .plots import MEAN_COLOR, epoch_line, image, plot_losses, rank_color

PAUSE = 0.4  # seconds between two drawings, at least; a training reports twice a second


class LivePlot:
    """Give it to ``launch`` as ``on_event``: a bar and the curves move while the ranks train.

    In a notebook one bar and one picture are redrawn in place; elsewhere it prints a line an epoch.
    """

    def __init__(self) -> None:
        self.steps: list[dict] = []
        self.epochs: list[dict] = []
        self.resumed: list[int] = []
        self._start: dict = {}
        self._begun = self._drawn = 0.0
        self._before = 0  # steps of the run that this one goes on from
        self._handles: list[Any] = []

    def __call__(self, event: dict) -> None:
        """Take in one record of a training, as ``report`` sent it."""
        self.hear([event])

    def hear(self, events: list[dict]) -> None:
        """Take in records that came together, and draw once: drawn after the first, the others would be missing."""
        kinds = {self._take_in(event) for event in events}
        if _in_notebook() and any(kinds):
            self._show(last=self._done() and bool(kinds & {"epoch", "resumed"}))

    def _take_in(self, event: dict) -> str:
        if "total_steps" in event:
            self._start, self._before = event, 0
            self._begun, self._drawn = time.monotonic(), 0.0
            self.steps, self.epochs, self.resumed = [], [], []
            return "start"
        if "resumed" in event:  # a run that goes on brings along what it had
            self.steps, self.epochs, self.resumed = event["steps"], event["epochs"], event["resumed"]
            self._before, self._drawn = len(self.steps), 0.0
            return "resumed"
        if "train_loss_by_rank" not in event:  # a record of the reader's own
            return ""
        if "step" in event:
            self.steps.append(event)
            return "step"
        self.epochs.append(event)
        if not _in_notebook():
            print(epoch_line(event), flush=True)
        return "epoch"

    def _done(self) -> bool:
        epochs = self._start.get("epochs")
        if epochs is None:
            return len(self.steps) >= self._start.get("total_steps", 0)
        # Not by steps: a run that went on with another number of ranks has other steps behind it than before it.
        return bool(self.epochs) and self.epochs[-1]["epoch"] >= epochs

    def _show(self, last: bool) -> None:
        from IPython.display import HTML, SVG, display

        now = time.monotonic()
        if not last and now < self._drawn + PAUSE:
            return
        self._drawn = now
        if not self._handles:
            self._handles = [display(HTML(""), display_id=True), display(HTML(""), display_id=True)]
        bar, picture = self._handles
        bar.update(HTML(self._bar()))
        if last and self.steps:
            history = {"steps": self.steps, "epochs": self.epochs, "resumed": self.resumed}
            alt = f"Loss by step and accuracy by epoch; {epoch_line(self.epochs[-1])}"
            picture.update(image(plot_losses(history), alt))
        elif self.steps:
            picture.update(SVG(self._sketch()))

    def _bar(self) -> str:
        done, new = len(self.steps), len(self.steps) - self._before
        total = done if self._done() else max(done, self._start.get("total_steps", 1))
        seconds = time.monotonic() - self._begun
        rate = new * self._start.get("global_batch", 0) / max(seconds, 1e-9)
        left = "" if self._done() or not new else f", {seconds * (total - done) / new:.0f} s left"
        text = f"step {done} of {total}, {rate:,.0f} samples a second{left}"
        if self.epochs:
            text += f"<br>{epoch_line(self.epochs[-1])}"
        return f'<progress value="{done}" max="{total}" style="width: 24em"></progress> {text}'

    def _sketch(self) -> str:
        # Lines of our own: matplotlib takes a tenth of a second of CPU for a picture, which ranks on the CPU lack. They
        # stand in a field of 520 by 150 pixels, whose lower left corner is at (60, 180).
        steps = self.steps[:: len(self.steps) // 300 + 1] + self.steps[-1:]
        ranks = min(len(step["train_loss_by_rank"]) for step in steps)  # a run can go on with another number
        curves = [(rank_color(rank), [step["train_loss_by_rank"][rank] for step in steps]) for rank in range(ranks)]
        curves.append((MEAN_COLOR, [step["train_loss"] for step in steps]))
        top = max((loss for _, losses in curves for loss in losses if math.isfinite(loss)), default=0) or 1
        last, lines = steps[-1]["step"], ""
        for color, losses in curves:
            points = " ".join(
                f"{60 + 520 * step['step'] / last:.0f},{180 - 150 * loss / top:.0f}"
                for step, loss in zip(steps, losses)
                if math.isfinite(loss)
            )
            width = 2 if color == MEAN_COLOR else 1
            lines += f'<polyline fill="none" stroke="{color}" stroke-width="{width}" points="{points}"/>'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="620" height="215" font-family="sans-serif" font-size="13" '
            f'role="img"><title>Training loss until step {last}: {steps[-1]["train_loss"]:.3f} now</title>'
            f'<rect width="620" height="215" fill="white"/><path d="M60 30V180H580" fill="none" stroke="{MEAN_COLOR}"/>'
            f'{lines}<text x="60" y="18">training loss, mean and each rank: {steps[-1]["train_loss"]:.3f} now</text>'
            f'<g text-anchor="end"><text x="54" y="36">{top:.2f}</text><text x="54" y="184">0</text>'
            f'<text x="580" y="200">step {last}</text></g></svg>'
        )


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")
