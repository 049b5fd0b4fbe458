"""Programs that do the same work, run alternately and compared: python tests/benchmarks/compare.py

Prints medians with their spread and ratios by round, and writes them and a picture to runs/benchmark/. What ran, on
which machine and under which conditions stands above the table.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(HERE)]

import images  # noqa: E402
import torch  # noqa: E402
from measure import CALLED, FOLDER  # noqa: E402

from ddp_tutorial.plots import figure  # noqa: E402

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node={ranks}"]
PROGRAMS = {
    "usual": [*TORCHRUN, "usual.py"],
    "bare": [*TORCHRUN, "bare.py"],
    "ours": ["ours.py"],
    "accelerate": [*TORCHRUN, "with_accelerate.py"],
    "lightning": ["with_lightning.py"],
}
FIGURES = {  # name, unit, how much of it, and whether a larger one is better
    "samples/s": (0, True),
    "s to first step": (2, False),
    "s to 95 %": (1, False),
    "MB private": (0, False),
    "MB shared": (0, False),
    "% right": (2, True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="which, separated by commas")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each program, each with a seed of its own")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=torch.accelerator.device_count() or 2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", default=str(ROOT / "runs" / "benchmark"))
    options = parser.parse_args()
    names = [name for name in options.programs.split(",") if name in ("usual", "bare", "ours") or installed(name)]
    root = images.make(Path(options.out) / "data")
    conditions(options)
    results: dict[str, list[dict]] = {name: [] for name in names}
    for number in range(options.rounds):
        order = names if number % 2 == 0 else names[::-1]  # so that a slow drift of the machine falls on all
        for name in order:
            results[name].append(run(name, options, root, seed=number))
            print(f"round {number + 1}, {name}: {results[name][-1]['samples/s']:,.0f} samples/s", flush=True)
    print(f"\n{table(results)}")
    Path(options.out, "results.json").write_text(json.dumps(results, indent=1))
    picture(results).savefig(Path(options.out) / "results.png")
    print(f"\n{options.out}/results.json\n{options.out}/results.png")


def installed(name: str) -> bool:
    if importlib.util.find_spec(name) is None:
        print(f"{name} is not installed and left out (pip install -r tests/benchmarks/requirements.txt)")
        return False
    return True


def conditions(options: argparse.Namespace) -> None:
    model = next((line.split(":")[1].strip() for line in cpu_lines() if line.startswith("model name")), "unknown")
    packages = [name for name in ("torch", "torchvision", "accelerate", "lightning") if importlib.util.find_spec(name)]
    print(f"{platform.system()}, {os.cpu_count()} cores, {model}, Python {platform.python_version()}")
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages))
    load = f", load {os.getloadavg()[0]:.1f} before the start" if hasattr(os, "getloadavg") else ""
    print(f"{options.ranks} ranks on {options.device}, one thread each on a CPU, batch 64 a rank, SGD 0.01 and 0.5")
    print(f"60,000 images, {options.epochs} epochs, {options.rounds} rounds, alternating{load}\n", flush=True)


def cpu_lines() -> list[str]:
    file = Path("/proc/cpuinfo")
    return file.read_text().splitlines() if file.exists() else []


def run(name: str, options: argparse.Namespace, root: Path, seed: int) -> dict:
    """Run one program once and return its figures."""
    words = [word.format(ranks=options.ranks) for word in PROGRAMS[name]]
    arguments = [str(options.epochs), str(root), str(seed), options.device, str(options.ranks)]
    with tempfile.TemporaryDirectory() as folder:
        surroundings = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1", FOLDER: folder}
        if options.device == "cpu":
            surroundings["CUDA_VISIBLE_DEVICES"] = ""
        surroundings[CALLED] = str(time.time())
        done = subprocess.run(
            [sys.executable, *words, *arguments], cwd=HERE, env=surroundings, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"{name} failed with exit code {done.returncode}:\n{done.stderr[-4000:]}")
        ranks = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(options.ranks)]
    epochs = ranks[0]["epochs"]
    reached = [epoch["since_call"] for epoch in epochs if epoch["accuracy"] >= 0.95]
    figures = {
        # The first epoch warms up; of one alone there is no other.
        "samples/s": statistics.median(epoch["samples_per_second"] for epoch in epochs[1:] or epochs),
        "s to first step": max(rank["first_step"] for rank in ranks),
        "s to 95 %": reached[0] if reached else float("nan"),
        "% right": 100 * epochs[-1]["accuracy"],
    }
    for kind in ("private", "shared"):
        sizes = [rank["memory"]["after"].get(kind, float("nan")) for rank in ranks]
        figures[f"MB {kind}"] = max(sizes) / 1e6
    return figures


def table(results: dict[str, list[dict]]) -> str:
    """Return medians with [least, most], and below them ratios to the first program, round by round."""
    lines = ["program     " + "".join(f"{name:>24}" for name in FIGURES)]
    for name, rounds in results.items():
        cells = []
        for figure_name, (digits, _) in FIGURES.items():
            values = [one[figure_name] for one in rounds]
            middle, least, most = statistics.median(values), min(values), max(values)
            cells.append(f"{middle:,.{digits}f} [{least:,.{digits}f}, {most:,.{digits}f}]")
        lines.append(f"{name:<12}" + "".join(f"{cell:>24}" for cell in cells))
    for base in [name for name in ("usual", "bare") if name in results]:
        for name in results:
            if name != base:
                ratios = [mine["samples/s"] / other["samples/s"] for mine, other in zip(results[name], results[base])]
                middle = statistics.median(ratios)
                lines.append(f"{name} to {base}, samples/s: {middle:.2f} [{min(ratios):.2f}, {max(ratios):.2f}]")
    return "\n".join(lines)


def picture(results: dict[str, list[dict]]):
    drawing, axes = figure(rows=2, columns=3, size=(11, 5.2))
    for one, (figure_name, (_, larger)) in zip(axes.flat, FIGURES.items()):
        values = [[run[figure_name] for run in rounds] for rounds in results.values()]
        middles = [statistics.median(some) for some in values]
        colors = ["#D55E00" if name == "ours" else "#7F7F7F" for name in results]
        one.barh(list(results), middles, color=colors)
        for row, some in enumerate(values):
            one.plot(some, [row] * len(some), "k.", markersize=4)
        one.invert_yaxis()
        one.set_title(f"{figure_name} ({'more' if larger else 'less'} is better)")
    axes.flat[-1].set_xlim(80, 100)
    return drawing


if __name__ == "__main__":
    main()
