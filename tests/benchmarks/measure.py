"""What every program of the benchmark measures, in the same way, from inside each rank."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

FOLDER, CALLED = "BENCHMARK_FOLDER", "BENCHMARK_CALLED"  # set by compare.py: where results go, when it called


class Probe:
    """Notes when the first step ended, how fast and how good each epoch was, and what memory it took."""

    def __init__(self, rank: int) -> None:
        self.rank, self.called = rank, float(os.environ[CALLED])
        self.first_step = None
        self.epochs: list[dict] = []
        self.memory = {"before": memory()}
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, *_) -> None:
        if self.first_step is None:
            self.first_step = time.time() - self.called

    def epoch(self, samples_per_second: float, accuracy: float) -> None:
        """Note an epoch: samples a second of all ranks while training, the fraction of held-out images right."""
        since = time.time() - self.called
        self.epochs.append({"samples_per_second": samples_per_second, "accuracy": accuracy, "since_call": since})

    def finish(self) -> None:
        self.memory["after"] = memory()
        told = {"rank": self.rank, "first_step": self.first_step, "epochs": self.epochs, "memory": self.memory}
        told["torch"] = torch.__version__
        Path(os.environ[FOLDER], f"{self.rank}.json").write_text(json.dumps(told))


def memory() -> dict[str, int]:
    """Return this process's bytes of memory: its own, and those that it shares with others (Linux; else empty)."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return {}
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
    private = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return {"private": private, "shared": sizes["Shared_Clean"] + sizes["Shared_Dirty"]}
