"""What watching costs: steps with history, a report each and live view beside steps without. python .../watching.py

In one training, in a notebook's kernel, blocks of steps that are watched alternate with blocks that are not, on the
60,000 images of compare.py. Neighbouring blocks share whatever the machine is busy with, so their ratio is far steadier
than that of two trainings. Where it is still too noisy, the two places where watching takes time are steadier: the
thread of rank 0, and the kernel's CPU while the ranks train.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(HERE)]

import images  # noqa: E402
import nbformat  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from nbclient import NotebookClient  # noqa: E402

from ddp_tutorial import Net, load_dataset, process_group, report, train_loader, wrap  # noqa: E402
from ddp_tutorial.evaluation import to_device  # noqa: E402
from ddp_tutorial.recorder import Recorder  # noqa: E402

CELL = """
import json, sys, time
sys.path[:0] = {path!r}
from ddp_tutorial import LivePlot, launch
from watching import blocks, idle

live, clock = LivePlot(), []

def hear(event):
    clock.append((time.monotonic(), time.process_time()))
    live(event)

def share():
    (began, before), (ended, after) = clock[0], clock[-1]
    return (after - before) / (ended - began)

pairs, inside = launch(blocks, {arguments!r}, world_size={ranks}, on_event=hear)[0]
watching = share()
clock.clear()
launch(idle, (5.0,), world_size={ranks}, on_event=lambda event: clock.append((time.monotonic(), time.process_time())))
print("RESULT", json.dumps([pairs, inside, watching - share()]))
"""


def blocks(data: str, pairs: int, steps: int, out: str) -> tuple[list[list[float]], float]:
    """In a rank: the seconds of each pair of blocks of steps, not watched and watched, and those in the recorder."""
    with process_group() as env:
        loader = train_loader(load_dataset("mnist", data).train, env, 64, seed=0)
        model = wrap(Net(), env)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
        recorder = Recorder(env, {"batch_size": 64}, (pairs + 1) * steps, out)
        recorder.start_anew()
        recorder.start_epoch(1)
        batches, inside, left = endless(loader), 0.0, time.perf_counter()

        def block(watched: bool) -> float:
            nonlocal inside, left
            dist.barrier()
            began = time.perf_counter()
            if watched:  # the recorder's clock stands still in between, or it would exchange too seldom
                recorder._exchange._last += began - left
            for _ in range(steps):
                inputs, targets = to_device(*next(batches), loader, env)
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs), targets)
                loss.backward()
                optimizer.step()
                if watched:
                    entered = time.perf_counter()
                    recorder.step(loss, len(targets))
                    inside += time.perf_counter() - entered
            if env.device.type == "cuda":
                torch.cuda.synchronize()
            ended = time.perf_counter()
            left = ended if watched else left
            return ended - began

        block(True)  # warm
        chance, seconds, inside = random.Random(0), [], 0.0
        for _ in range(pairs):
            order = chance.sample([False, True], 2)  # equal on all ranks
            seconds.append([value for _, value in sorted((watched, block(watched)) for watched in order)])
        recorder.end_training()
        return seconds, inside


def idle(seconds: float) -> None:
    """In a rank: begin and end, with nothing to watch in between."""
    report(begun=True)
    time.sleep(seconds)
    report(ended=True)


def endless(loader):
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def measure(arguments: tuple, ranks: int | None) -> tuple[list[list[float]], float, float]:
    """Run :func:`blocks` from a kernel of its own; return its result and the kernel's CPU seconds a second
    beyond those of a launch in which nothing happens."""
    cell = CELL.format(path=[str(ROOT), str(HERE)], arguments=arguments, ranks=ranks)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    NotebookClient(notebook, timeout=3600).execute()
    printed = "".join(output.get("text", "") for output in notebook.cells[0].outputs)
    return json.loads(printed.split("RESULT ")[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=60, help="steps of a block")
    parser.add_argument("--ranks", type=int, default=None, help="None: one a GPU, two without a GPU")
    parser.add_argument("--data", default=str(ROOT / "runs" / "benchmark" / "data"))
    options = parser.parse_args()
    data = images.make(Path(options.data))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    arguments = (str(data), options.pairs, options.steps, str(data.parent / "watching"))
    pairs, inside, kernel = measure(arguments, options.ranks)
    ratios = [100 * (watched / alone - 1) for alone, watched in pairs]
    lower, middle, upper = statistics.quantiles(ratios, n=4)
    error = 1.25 * statistics.stdev(ratios) / len(ratios) ** 0.5  # of a median, where values are normal
    step = 1e3 * statistics.median(alone for alone, _ in pairs) / options.steps
    share = 100 * inside / sum(watched for _, watched in pairs)
    print(
        f"{os.cpu_count()} cores, torch {torch.__version__}; "
        f"{len(pairs)} pairs of {options.steps} steps of {step:.1f} ms\n"
        f"watched, beside not watched: {middle:+.1f} % ± {error:.1f} "
        f"(half of the pairs: {lower:+.1f} to {upper:+.1f})\n"
        # The kernel hears of watched blocks alone, which are half of its time.
        f"of a watched step: {share:.2f} % in the thread of rank 0, {200 * kernel:.2f} % of one core in the kernel"
    )


if __name__ == "__main__":
    main()
