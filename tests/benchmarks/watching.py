"""What watching costs: an epoch with history, reports and live view beside one without. python .../watching.py

Each way trains in a notebook's kernel of its own on the 60,000 images of compare.py, the ways alternating. Losses of
every step are kept in all of them; what differs is how often the ranks exchange and report them, and who listens.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(HERE)]

import images  # noqa: E402
import nbformat  # noqa: E402
from nbclient import NotebookClient  # noqa: E402

WAYS = {  # steps between two exchanges; and who listens
    "once an epoch, nobody listens": (10**6, "None"),
    "every 10 steps, nobody listens": (10, "None"),
    "every 10 steps, live view": (10, "LivePlot()"),
    "every step, nobody listens": (1, "None"),
    "every step, live view": (1, "LivePlot()"),
}
CELL = """
import json, sys, tempfile
from dataclasses import replace
sys.path.insert(0, {root!r})
from ddp_tutorial import Config, LivePlot, launch, train
with tempfile.TemporaryDirectory() as out:
    config = replace(Config.snippet(), data={data!r}, epochs={epochs}, report_every={every}, out=out)
    history = launch(train, (config,), world_size={ranks}, on_event={listener})[0]
print("SECONDS", json.dumps([epoch["seconds"] for epoch in history["epochs"]]))
"""


def seconds(data: Path, epochs: int, ranks: int | None, every: int, listener: str) -> float:
    """Return the median seconds of an epoch but the first, trained in a kernel of its own."""
    cell = CELL.format(root=str(ROOT), data=str(data), epochs=epochs, ranks=ranks, every=every, listener=listener)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    NotebookClient(notebook, timeout=3600).execute()
    printed = "".join(output.get("text", "") for output in notebook.cells[0].outputs)
    return statistics.median(json.loads(printed.split("SECONDS ")[-1])[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=None, help="None: one a GPU, two without a GPU")
    parser.add_argument("--data", default=str(ROOT / "runs" / "benchmark" / "data"))
    options = parser.parse_args()
    data = images.make(Path(options.data))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way in list(WAYS)[:: 1 if number % 2 == 0 else -1]:
            times[way].append(seconds(data, options.epochs, options.ranks, *WAYS[way]))
    base = next(iter(times.values()))
    for way, values in times.items():
        ratios = [100 * (value / other - 1) for value, other in zip(values, base)]
        middle = statistics.median(ratios)
        print(f"{way:<34}{statistics.median(values):6.2f} s, {middle:+.1f} % [{min(ratios):+.1f}, {max(ratios):+.1f}]")


if __name__ == "__main__":
    main()
