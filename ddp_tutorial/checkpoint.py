"""Everything that a run needs to go on as if nothing had happened.

Taught in ``notebooks/10_beyond_one_machine.ipynb``.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from .environment import Environment
from .rendezvous import STORE
from .resuming import random_state, rest_of_epoch, set_random_state
from .storage import newest_checkpoint, write_checkpoint

_asked = threading.Event()  # SIGUSR1 came: Slurm sends it, if asked to, before a job's time is over


class Checkpoints:
    """The checkpoints of one run in ``folder``, and where the run stands: ``epoch`` (from 1), ``done``, ``step``.

    ``parts`` are the things to save, by name: whatever has ``state_dict`` and ``load_state_dict``, such as the
    unwrapped model, the optimizer, a scheduler, a scaler. ``settings`` are the numbers that must be the same when the
    run goes on. Rank 0 saves every ``every`` steps, at the end of each epoch and soon after SIGUSR1, and keeps the last
    ``keep`` files, each readable by ``torch.load`` as it is. Without a ``folder`` nothing is saved.
    """

    def __init__(
        self,
        folder: str | os.PathLike | None,
        env: Environment,
        parts: Mapping[str, Any],
        settings: Mapping[str, Any],
        every: int = 50,
        keep: int = 3,
    ) -> None:
        self._folder = Path(folder) if folder else None
        self._env, self._parts, self._settings = env, parts, dict(settings)
        self._every, self._keep = every, keep
        launched = {"TORCHELASTIC_RUN_ID", STORE} & os.environ.keys()  # a shell may end before what it started
        self._parent = os.getppid() if launched else None
        self.epoch, self.done, self.step = 1, 0, 0  # done: how many samples of this epoch all ranks have taken
        _asked.clear()
        if folder and hasattr(signal, "SIGUSR1") and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, lambda *_: _asked.set())

    def load(self) -> bool:
        """Put everything back to the newest checkpoint that any host can read; return False if there is none.

        A collective. With as many ranks as saved it, the run goes on as it would have: one or two ranks on the CPU to
        the bit, more up to the order in which DDP adds gradients. With another number the weights, the optimizer and
        the samples that are left are exact, and the random numbers of the ranks start anew. Raises ``ValueError`` on
        every rank if the checkpoint is from a run with other settings.
        """
        if not self._folder:
            return False
        # Each host looks on its own disk: where disks are not shared, rank 0 may now be on a host that has no file.
        path, state, passed_over = newest_checkpoint(self._folder) if self._env.local_rank == 0 else (None, None, [])
        found: list[Any] = [None] * self._env.world_size
        dist.all_gather_object(found, (state["step"] if state else -1, passed_over))
        if self._env.is_main:
            for line in sorted({line for _, lines in found for line in lines}):
                print(line, flush=True)
        source = max(range(self._env.world_size), key=lambda rank: found[rank][0])
        if found[source][0] < 0:
            return False
        packed: list[Any] = [(str(path), state)]
        dist.broadcast_object_list(packed, src=source)
        self._take(*packed[0])
        return True

    def _take(self, path: str, state: dict) -> None:
        for name, value in self._settings.items():
            if state["settings"].get(name) != value:
                raise ValueError(
                    f"{path} is from a run with {name}={state['settings'].get(name)!r}, and this one has "
                    f"{name}={value!r}: give this run a folder of its own for checkpoints, or the same value"
                )
        for name, part in self._parts.items():
            part.load_state_dict(state["parts"][name])
        self.epoch, self.done, self.step = state["epoch"], state["done"], state["step"]
        if len(state["random"]) == self._env.world_size:
            set_random_state(state["random"][self._env.rank], self._env.device)
        else:  # seeds that no rank has had: the same masks again would be the masks of other samples
            torch.manual_seed(torch.initial_seed() + 1000 * self.step)
        if self._env.is_main:
            print(f"going on from {path}: step {self.step}, epoch {self.epoch}", flush=True)

    def rest_of_epoch(self, loader: DataLoader) -> DataLoader:
        """Return what is left of this epoch in ``loader``: all of it, unless the run was interrupted within it."""
        return rest_of_epoch(loader, self._env, self.done)

    def end_step(self, count: int) -> None:
        """Note a step of ``count`` samples on each rank, and save if it is time to, or if SIGUSR1 came."""
        self.done += count * self._env.world_size
        self.step += 1
        if self._folder and (self.step % self._every == 0 or self._asked_on_any_rank()):
            self.save()

    def end_epoch(self) -> None:
        """Note that the epoch is over, evaluation and all, and save."""
        self.epoch, self.done = self.epoch + 1, 0
        if self._folder:
            self.save()

    def save(self) -> None:
        """Save everything now. A collective: each rank brings its random numbers, and rank 0 writes."""
        # torchrun was killed, and whoever starts the run again uses the same files.
        if self._parent and os.getppid() != self._parent:
            raise RuntimeError("the process that started this rank is gone, so it saves no more checkpoints and ends")
        _asked.clear()
        random: list[Any] = [None] * self._env.world_size
        dist.all_gather_object(random, random_state(self._env.device))
        parts = {name: part.state_dict() for name, part in self._parts.items()}  # the history's is a collective too
        if self._env.is_main:
            state = {"epoch": self.epoch, "done": self.done, "step": self.step, "settings": self._settings}
            write_checkpoint(self._folder, self.step, state | {"random": random, "parts": parts}, self._keep)

    def _asked_on_any_rank(self) -> bool:
        if self.step % 10:  # a signal can wait for ten steps; asking one another costs something
            return False
        asked = torch.tensor(int(_asked.is_set()), device=self._env.device)
        dist.all_reduce(asked, op=dist.ReduceOp.MAX)  # all ranks decide alike: saving is a collective
        return bool(asked.item())
