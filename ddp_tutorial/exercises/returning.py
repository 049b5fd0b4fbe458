"""Check: a training that goes on after an interruption. Taught in ``notebooks/10_beyond_one_machine.ipynb``."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ..cleanup import process_group
from ..wrap import wrap
from . import Exercise


def _through_and_interrupted(answer, seed):
    torch.manual_seed(seed)
    data = torch.randn(6, 8, 3), torch.randn(6, 8, 1)

    def one_epoch(model, optimizer, epoch):
        for inputs, targets in zip(*(part[2 * epoch : 2 * epoch + 2] for part in data)):
            optimizer.zero_grad()
            F.mse_loss(model(inputs), targets).backward()
            optimizer.step()

    def weights_after(*ends):
        folder = [tempfile.mkdtemp()] if env.is_main else [None]
        dist.broadcast_object_list(folder)
        for epochs in ends:
            torch.manual_seed(seed)
            model = answer(Path(folder[0]), epochs, one_epoch, env)
            weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
            dist.barrier()  # rank 0 may still be writing
        shutil.rmtree(folder[0], ignore_errors=True)
        return weights

    with process_group(timeout=5) as env:
        return {"went through": weights_after(3), "interrupted after two of three epochs": weights_after(2, 3)}


def _resume(folder, epochs, one_epoch, env, optimizer_too=True, next_epoch=1, loads=lambda env: True):
    model = wrap(nn.Linear(3, 1), env)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    file, first = folder / "checkpoint.pt", 0
    if file.exists():
        state = torch.load(file)
        first = state["epoch"] + next_epoch
        if loads(env):
            model.module.load_state_dict(state["model"])
            if optimizer_too:
                optimizer.load_state_dict(state["optimizer"])
    for epoch in range(first, epochs):
        one_epoch(model, optimizer, epoch)
        if env.is_main:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, file)
    return model


def _without_a_file(folder, epochs, one_epoch, env):
    model = wrap(nn.Linear(3, 1), env)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(epochs):
        one_epoch(model, optimizer, epoch)
    return model


resume = Exercise(
    run=_through_and_interrupted,
    right=_without_a_file,
    inputs=lambda random: (random.randrange(100_000),),
    mistakes={
        "Two things are wrong: count the epochs of both runs together, and ask what SGD with momentum remembers.": (
            lambda *given: _resume(*given, optimizer_too=False, next_epoch=0)
        ),
        "The epochs are right now. What does SGD with momentum remember from step to step?": (
            lambda *given: _resume(*given, optimizer_too=False)
        ),
        "The optimizer is right now. Which epoch does the second run begin with, and was that one done?": (
            lambda *given: _resume(*given, next_epoch=0)
        ),
        "Rank 0 goes on from the file and rank 1 from fresh weights: nothing is broadcast after the wrapping.": (
            lambda *given: _resume(*given, loads=lambda env: env.is_main)
        ),
    },
    shows="interrupted or not, both ranks end with the same weights",
    world_size=2,
)
