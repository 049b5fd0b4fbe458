"""A bar and curves that move while the ranks train. Taught in ``notebooks/07_launch_and_plot.ipynb``."""

from __future__ import annotations

import sys
import time
from typing import Any

from .plots import epoch_line, image, plot_losses


class LivePlot:
    """Give it to ``launch`` as ``on_event``: a bar and the curves move while the ranks train.

    In a notebook one bar and one picture are redrawn in place; elsewhere it prints a line an epoch.
    """

    def __init__(self) -> None:
        self.steps: list[dict] = []
        self.epochs: list[dict] = []
        self.resumed: list[int] = []
        self._start: dict = {}
        self._begun = self._drawn = self._barred = self._cost = 0.0
        self._handles: list[Any] = []

    def __call__(self, event: dict) -> None:
        """Take in one record of a training, as ``report`` sent it."""
        if "total_steps" in event:
            self._start = event
            self._begun = self._drawn = time.monotonic()
            self.steps, self.epochs, self.resumed = [], [], []
        elif "resumed" in event:  # a run that goes on brings along what it had
            self.steps, self.epochs, self.resumed = event["steps"], event["epochs"], event["resumed"]
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
        from IPython.display import HTML, display

        now = time.monotonic()
        if not self._handles:
            self._handles = [display(HTML(self._bar()), display_id=True), display(HTML(""), display_id=True)]
        if last or now > self._barred + 0.25:
            self._barred = now
            self._handles[0].update(HTML(self._bar()))
        # A picture costs a tenth of a second, which CPU ranks would rather have. Two a second at first, as a short run
        # shall move too; then ever fewer, until they take a hundredth of the time.
        pause = max(0.5, min(0.3 * (now - self._begun), 100 * self._cost))
        if self.steps and (last or now > self._drawn + pause):
            said = epoch_line(self.epochs[-1]) if self.epochs else "the first epoch is not over yet"
            alt = f"Loss by step and accuracy by epoch; {said}"
            history = {"steps": self.steps, "epochs": self.epochs, "resumed": self.resumed}
            self._handles[1].update(image(plot_losses(history), alt))
            self._drawn = time.monotonic()
            self._cost = self._drawn - now

    def _bar(self) -> str:
        done, total = len(self.steps), self._start.get("total_steps", 1)
        seconds = time.monotonic() - self._begun
        rate = done * self._start.get("global_batch", 0) / max(seconds, 1e-9)
        left = "" if self._done() or not done else f", {seconds * (total - done) / done:.0f} s left"
        text = f"step {done} of {total}, {rate:,.0f} samples a second{left}"
        if self.epochs:
            text += f"<br>{epoch_line(self.epochs[-1])}"
        return f'<progress value="{done}" max="{total}" style="width: 24em"></progress> {text}'


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")
