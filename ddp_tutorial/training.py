"""The loop, the global loss, evaluation. Taught in ``notebooks/05_training_loop.ipynb``."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from .checkpoint import Checkpoints
from .cleanup import process_group
from .data import Splits, eval_loader, load_dataset, train_loader
from .environment import Environment
from .evaluation import evaluate, to_device
from .history import History
from .model import Net
from .recorder import Recorder
from .wrap import assert_replicas_agree, wrap

_SAME = ("dataset", "batch_size", "lr", "momentum", "dropout", "seed")  # what a run that goes on must not change


@dataclass(frozen=True)
class Config:
    """Every number of a training. Equal on all ranks. Raises ``ValueError`` for a value that cannot work."""

    dataset: str = "digits"
    data: str = "data"  # the folder of the prepared data, and of MNIST's own files
    epochs: int = 20
    batch_size: int = 64  # per rank: the global batch is batch_size * world_size
    lr: float = 0.03
    momentum: float = 0.9
    dropout: float = 0.1
    seed: int = 0
    out: str | None = None  # a folder for history.jsonl and model.pt, written by rank 0
    checkpoint: str | None = None  # a folder for checkpoints; a run that finds some there goes on from the last
    checkpoint_every: int = 50  # steps between two checkpoints; the end of each epoch has one as well

    def __post_init__(self) -> None:
        for name in ("data", "out", "checkpoint"):  # a Path is welcome, and becomes a string, which JSON can hold
            if getattr(self, name) is not None:
                object.__setattr__(self, name, os.fspath(getattr(self, name)))
        if self.dataset not in ("digits", "mnist"):
            raise ValueError(f"dataset must be 'digits' or 'mnist', not {self.dataset!r}")
        for name in ("epochs", "batch_size", "checkpoint_every"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number from 1 up, not {value!r}")
        if type(self.seed) is not int or not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be a whole number from 0 to 2**32 - 1, not {self.seed!r}")
        for name, top in (("lr", float("inf")), ("momentum", 1), ("dropout", 1)):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < top:
                raise ValueError(f"{name} must be a number from 0 to {top} (not included), not {value!r}")

    @classmethod
    def snippet(cls) -> Config:
        """Return the numbers of the snippet that is copied everywhere: MNIST, rate 0.01, momentum 0.5, dropout 0.5."""
        return cls(dataset="mnist", epochs=10, lr=0.01, momentum=0.5, dropout=0.5)


def train(config: Config = Config(), model: nn.Module | None = None, data: Splits | None = None) -> History:
    """Train ``model`` (``Net`` if none is given) on all ranks and return the history, the same on each rank.

    Run it in each rank: ``launch(train, (Config(epochs=3),))`` or ``torchrun``. ``data`` takes any two map-style data
    sets of (input, class) pairs as ``(train, eval)``. With ``config.checkpoint`` it saves as it goes, and goes on from
    there. Raises ``AssertionError`` if the replicas disagree at the end, ``ValueError`` for a foreign run's checkpoint.
    """
    with process_group() as env:
        # A function of its own: when it returns, its model lets go of the group, which can then end.
        return _train(config, model, data, env)


def _train(config: Config, model: nn.Module | None, data: Splits | None, env: Environment) -> History:
    data = Splits(*data) if data is not None else _load_once_per_machine(config, env)
    torch.manual_seed(config.seed)  # equal on all ranks: the weights
    model = wrap(Net(config.dropout) if model is None else model, env)
    torch.manual_seed(config.seed + 1 + env.rank)  # different on each: dropout masks
    loader = train_loader(data.train, env, config.batch_size, config.seed)
    held_out = eval_loader(data.eval, env, batch_size=1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=config.momentum)
    recorder = Recorder(env, asdict(config), config.epochs * len(loader), config.out)
    checkpoints = Checkpoints(
        config.checkpoint,
        env,
        parts={"model": model.module, "optimizer": optimizer, "history": recorder},
        settings={name: getattr(config, name) for name in _SAME} | {"samples": len(data.train)},
        every=config.checkpoint_every,
    )
    if not checkpoints.load():  # only now: a run that is refused must not empty the file of the other one
        recorder.start_anew()
    for epoch in range(checkpoints.epoch, config.epochs + 1):
        loader.sampler.set_epoch(epoch)  # without it, every epoch repeats the order of the first
        recorder.start_epoch(epoch)
        model.train()
        for inputs, targets in checkpoints.rest_of_epoch(loader):
            inputs, targets = to_device(inputs, targets, loader, env)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()  # gradients are averaged over the ranks in here
            optimizer.step()
            recorder.step(loss, len(targets))
            checkpoints.end_step(len(targets))
        recorder.end_training()
        recorder.end_epoch(*evaluate(model, held_out, env))
        checkpoints.end_epoch()
    assert_replicas_agree(model)
    recorder.save(model.module)
    return recorder.history


def _load_once_per_machine(config: Config, env: Environment) -> Splits:
    if env.local_rank == 0:  # the other ranks would download and write the same files at the same time
        load_dataset(config.dataset, config.data)
    dist.barrier()
    return load_dataset(config.dataset, config.data)
