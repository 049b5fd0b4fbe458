"""Train from a shell. Taught in ``notebooks/07_launch_and_plot.ipynb``.

python -m ddp_tutorial --epochs 5                                         every GPU, or two CPU processes
torchrun --standalone --nproc-per-node=2 -m ddp_tutorial --epochs 5       the processes that torchrun makes
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import fields
from pathlib import Path

from .data import load_dataset
from .devices import choose
from .environment import DEVICE
from .failures import LaunchError
from .launch import launch
from .plots import epoch_line, plot_losses
from .reporting import listen
from .training import Config, train


def parse(arguments: list[str] | None = None) -> tuple[Config, argparse.Namespace]:
    """Turn the command line into a :class:`Config` and the rest. Ends with exit code 2 and a sentence if it cannot."""
    default = {field.name: field.default for field in fields(Config)}
    parser = argparse.ArgumentParser(
        prog="python -m ddp_tutorial",
        description="Train a small network on every device with DistributedDataParallel.",
        epilog="Under torchrun the same command line trains in the processes that torchrun made.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--dataset", default=default["dataset"], help="digits (no network needed) or mnist (downloaded)")
    add("--data", default=default["data"], metavar="DIR", help="prepared data; MNIST's own files in DIR/MNIST/raw")
    add("--epochs", type=int, default=default["epochs"], help="passes over the data")
    add("--batch-size", type=int, default=default["batch_size"], help="samples a step on each rank")
    add("--lr", type=float, default=default["lr"], help="learning rate of SGD")
    add("--momentum", type=float, default=default["momentum"], help="momentum of SGD")
    add("--seed", type=int, default=default["seed"], help="seed of weights, order and dropout")
    add("--world-size", type=int, default=None, help="processes; None: one a GPU, two where there is none")
    add("--device", default=None, help="cpu or cuda; None: the GPUs if there are any")
    out = time.strftime("runs/%Y-%m-%d-%H%M%S")
    add("--checkpoint", default=None, metavar="DIR", help="save there, and go on from what is there")
    add("--checkpoint-every", type=int, default=default["checkpoint_every"], help="steps between two checkpoints")
    where = f"folder for history.jsonl, loss.png and model.pt; None: that of --checkpoint, or {out}"
    add("--out", default=None, metavar="DIR", help=where)
    options = parser.parse_args(arguments)
    options.out = options.out or options.checkpoint or out
    try:
        names = [field.name for field in fields(Config) if hasattr(options, field.name)]
        config = Config(**{name: getattr(options, name) for name in names})
        if "RANK" in os.environ:
            if options.world_size is not None:
                raise ValueError("--world-size is for the processes made here; torchrun's own are --nproc-per-node")
        else:
            choose(options.world_size, options.device, None)
    except ValueError as error:
        parser.error(str(error))
    return config, options


def main() -> int:
    config, options = parse()
    progress = Progress()
    try:
        if "RANK" in os.environ:  # torchrun, Slurm or Kubernetes made this process, and its siblings
            if options.device:
                os.environ[DEVICE] = options.device
            listen(progress.hear)
            train(config)
        else:
            load_dataset(config.dataset, config.data)
            launch(train, (config,), world_size=options.world_size, device=options.device, on_event=progress)
    except (LaunchError, RuntimeError, OSError) as error:
        if "RANK" in os.environ:
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        progress.close()
    if progress.last:  # the process that rank 0 reported to
        folder = Path(config.out)
        plot_losses(folder / "history.jsonl").savefig(folder / "loss.png")
        print(f"{progress.last['eval_accuracy']:.2%} of the held-out samples are right")
        print(f"{folder / 'history.jsonl'}\n{folder / 'loss.png'}\n{folder / 'model.pt'}")
    return 0


class Progress:
    """A bar over all steps, and a line an epoch above it."""

    def __init__(self) -> None:
        self.bar, self.last = None, None

    def __call__(self, event: dict) -> None:
        from tqdm import tqdm

        if "total_steps" in event:
            self.bar = tqdm(total=event["total_steps"], unit="step", disable=None)
        elif "resumed" in event:  # a run that goes on brings along what it had
            self.bar.update(len(event["steps"]))
            self.last = (event["epochs"] or [None])[-1]
        elif "step" in event:
            self.bar.update()
        else:
            self.last = event
            tqdm.write(epoch_line(event))

    def hear(self, records: list[dict]) -> None:
        for record in records:
            self(record)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "agg")  # a picture goes to a file here, so no window is needed
    sys.exit(main())
