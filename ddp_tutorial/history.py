"""What a training leaves behind: its losses, measured without making a step wait.

Taught in ``notebooks/05_training_loop.ipynb``.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TypedDict

import torch
import torch.distributed as dist
from torch import nn

from .environment import Environment
from .reporting import report


class History(TypedDict):
    """What a training returns: plain numbers, which pickle, turn into JSON, and pass ``torch.load`` as it is.

    A step is ``{step, epoch, train_loss, train_loss_by_rank}``; an epoch is ``{epoch, train_loss, train_loss_by_rank,
    eval_loss, eval_accuracy, seconds, samples_per_second}``. Losses are means over samples, accuracy is a fraction,
    seconds are those of training alone, samples a second those of all ranks together.
    """

    config: dict
    world_size: int
    global_batch: int
    device: str
    steps: list[dict]
    epochs: list[dict]


class Recorder:
    """Collects each rank's losses on its device, exchanges them every ``every`` steps, and has rank 0 pass them on.

    ``out`` is a folder: rank 0 writes each record to ``out/history.jsonl`` as it comes, and the weights at the end.
    """

    def __init__(self, env: Environment, config: dict, every: int, total_steps: int, out: str | None) -> None:
        self._env, self._every = env, every
        self._losses: list[torch.Tensor] = []
        self._counts: list[int] = []
        batch = config["batch_size"] * env.world_size
        self.history = History(
            config=config, world_size=env.world_size, global_batch=batch, device=env.device.type, steps=[], epochs=[]
        )
        self._out = Path(out) if out and env.is_main else None
        if self._out:
            self._out.mkdir(parents=True, exist_ok=True)
            (self._out / "history.jsonl").write_text("")
        if env.is_main:
            report(total_steps=total_steps, world_size=env.world_size, global_batch=batch, device=env.device.type)

    def start_epoch(self, epoch: int) -> None:
        self._epoch, self._seconds = epoch, 0.0
        self._sums = torch.zeros(self._env.world_size, 2, dtype=torch.float64)
        self._started = time.perf_counter()

    def step(self, loss: torch.Tensor, count: int) -> None:
        """Note the mean ``loss`` of this rank's ``count`` samples; it stays on the device until the next exchange."""
        # No .item() here: it would make every step wait until the device has finished it.
        self._losses.append(loss.detach())
        self._counts.append(count)
        if len(self._losses) == self._every:
            self._exchange()

    def end_training(self) -> None:
        """Exchange what is left of this epoch's losses and stop its clock."""
        if self._losses:
            self._exchange()
        seconds = torch.tensor(time.perf_counter() - self._started, device=self._env.device, dtype=torch.float64)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)  # an epoch lasts as long as on its slowest rank
        self._seconds = seconds.item()

    def end_epoch(self, eval_loss: float, eval_accuracy: float) -> None:
        record = {"epoch": self._epoch, **self._mean(self._sums), "eval_loss": eval_loss}
        samples = self._sums[:, 1].sum().item()
        record |= {"eval_accuracy": eval_accuracy, "seconds": self._seconds}
        self._keep("epochs", record | {"samples_per_second": samples / self._seconds})

    def save(self, module: nn.Module) -> None:
        """Write the weights of ``module`` to ``out/model.pt``, on rank 0, for ``torch.load`` as it is."""
        if self._out:
            weights = {name: tensor.cpu() for name, tensor in module.state_dict().items()}
            # Under another name first: whoever kills the run now still has the file of the run before.
            torch.save(weights, self._out / "model.pt.new")
            os.replace(self._out / "model.pt.new", self._out / "model.pt")

    def _exchange(self) -> None:
        counts = torch.tensor(self._counts, device=self._env.device, dtype=torch.float64)
        mine = torch.stack([torch.stack(self._losses).double() * counts, counts], dim=1)  # (steps, 2): sum and count
        self._losses, self._counts = [], []
        everyone = [torch.empty_like(mine) for _ in range(self._env.world_size)]
        dist.all_gather(everyone, mine)
        for sums in torch.stack(everyone, dim=1).cpu():  # one transfer; per step (world_size, 2)
            self._sums += sums
            self._keep("steps", {"step": len(self.history["steps"]) + 1, "epoch": self._epoch, **self._mean(sums)})

    @staticmethod
    def _mean(sums: torch.Tensor) -> dict:
        total, count = sums.sum(dim=0).tolist()
        return {"train_loss": total / count, "train_loss_by_rank": (sums[:, 0] / sums[:, 1]).tolist()}

    def _keep(self, kind: str, record: dict) -> None:
        self.history[kind].append(record)
        if self._env.is_main:
            report(**record)
        if self._out:
            with open(self._out / "history.jsonl", "a") as file:
                file.write(json.dumps(record) + "\n")


def read_history(path: str | os.PathLike) -> tuple[list[dict], list[dict]]:
    """Return the ``(steps, epochs)`` of a ``history.jsonl``."""
    records = [json.loads(line) for line in Path(path).read_text().splitlines()]
    return [r for r in records if "step" in r], [r for r in records if "step" not in r]
