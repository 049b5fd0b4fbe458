"""The history of a training, filled while it runs. Taught in ``notebooks/05_training_loop.ipynb``."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from .environment import Environment
from .exchange import LossExchange
from .history import History, write_records
from .reporting import report, report_all


class Recorder:
    """Keeps a history, the same on all ranks, of what they lose and find; rank 0 passes it on while they train.

    ``out`` is a folder: rank 0 writes each record to ``out/history.jsonl`` as it comes, and the weights at the end.
    """

    def __init__(self, env: Environment, config: dict, total_steps: int, out: str | None) -> None:
        self._env, self._exchange, self._epoch = env, LossExchange(env), 0
        batch = config["batch_size"] * env.world_size
        place = {"world_size": env.world_size, "global_batch": batch, "device": env.device.type}
        self.history = History(config=config, **place, steps=[], epochs=[], resumed=[])
        self._out = Path(out) if out and env.is_main else None
        if self._out:
            self._out.mkdir(parents=True, exist_ok=True)
        if env.is_main:
            report(total_steps=total_steps, epochs=config.get("epochs"), **place)

    def start_anew(self) -> None:
        """Forget what an earlier run has left in ``out``."""
        if self._out:
            write_records(self._out / "history.jsonl", [], append=False)

    def start_epoch(self, epoch: int) -> None:
        if epoch != self._epoch:  # otherwise it is the rest of an epoch that was interrupted
            self._epoch, self._seconds = epoch, 0.0
            self._sums = [[0.0, 0.0] for _ in range(self._env.world_size)]  # by rank: of losses, of samples
        self._exchange.start_clock()
        self._started = time.perf_counter()

    def step(self, loss: torch.Tensor, count: int) -> None:
        """Note the mean ``loss`` of this rank's ``count`` samples; it stays on the device until it is exchanged."""
        self._add(self._exchange.add(loss, count))

    def end_training(self) -> None:
        """Exchange what is left of this epoch's losses and stop its clock."""
        self._add(self._exchange.flush())
        elapsed = self._seconds + time.perf_counter() - self._started
        seconds = torch.tensor(elapsed, device=self._env.device, dtype=torch.float64)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)  # an epoch lasts as long as on its slowest rank
        self._seconds = seconds.item()

    def end_epoch(self, eval_loss: float, eval_accuracy: float) -> None:
        record = {"epoch": self._epoch, **self._mean(self._sums), "eval_loss": eval_loss}
        samples = sum(count for _, count in self._sums)
        record |= {"eval_accuracy": eval_accuracy, "seconds": self._seconds}
        self._keep("epochs", [record | {"samples_per_second": samples / self._seconds}])

    def save(self, module: nn.Module) -> None:
        """Write the weights of ``module`` to ``out/model.pt``, on rank 0, for ``torch.load`` as it is."""
        if self._out:
            weights = {name: tensor.cpu() for name, tensor in module.state_dict().items()}
            # Under another name first: whoever kills the run now still has the file of the run before.
            torch.save(weights, self._out / "model.pt.new")
            os.replace(self._out / "model.pt.new", self._out / "model.pt")

    def state_dict(self) -> dict:
        """Return what a checkpoint needs of the history. A collective: it exchanges the losses that wait."""
        self._add(self._exchange.flush())
        seconds = self._seconds + time.perf_counter() - self._started
        kept = {name: self.history[name] for name in ("steps", "epochs", "resumed")}
        return kept | {"epoch": self._epoch, "sums": self._sums, "seconds": seconds}

    def load_state_dict(self, state: dict) -> None:
        """Go on from ``state``, as :meth:`state_dict` returned it, perhaps with another number of ranks."""
        self._epoch, self._seconds = state["epoch"], state["seconds"]
        new = self._env.world_size - len(state["sums"])
        self._sums = [list(row) for row in state["sums"]] + [[0.0, 0.0] for _ in range(new)]
        kept = {name: list(state[name]) for name in ("steps", "epochs", "resumed")}
        kept["resumed"].append(len(kept["steps"]))
        self.history.update(kept)
        if self._env.is_main:
            report(**kept)
        if self._out:
            records = sorted(kept["steps"] + kept["epochs"], key=lambda record: (record["epoch"], "step" not in record))
            records += [{"resumed": step} for step in kept["resumed"]]
            write_records(self._out / "history.jsonl", records, append=False)

    def _add(self, steps: list[list[list[float]]]) -> None:
        if not steps:
            return
        records = []
        for rows in steps:
            for own, (loss, count) in zip(self._sums, rows):
                own[0], own[1] = own[0] + loss, own[1] + count
            number = len(self.history["steps"]) + len(records) + 1
            records.append({"step": number, "epoch": self._epoch, **self._mean(rows)})
        self._keep("steps", records)

    @staticmethod
    def _mean(rows: list[list[float]]) -> dict:
        loss, count = map(sum, zip(*rows))
        by_rank = [own / number if number else math.nan for own, number in rows]
        return {"train_loss": loss / count if count else math.nan, "train_loss_by_rank": by_rank}

    def _keep(self, kind: str, records: list[dict]) -> None:
        self.history[kind].extend(records)
        if self._env.is_main:
            report_all(records)
        if self._out:
            write_records(self._out / "history.jsonl", records)
