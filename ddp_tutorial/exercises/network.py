"""Checks: the size after flattening, an equal start, a network with bugs. Taught in ``notebooks/02_model.ipynb``."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ..cleanup import process_group
from ..model import Net
from . import Exercise


def _by_trying(side, kernel, channels, pool):
    stage = nn.Sequential(nn.Conv2d(1, channels, kernel), nn.MaxPool2d(pool))
    again = nn.Sequential(nn.Conv2d(channels, channels, kernel), nn.MaxPool2d(pool))
    return again(stage(torch.zeros(1, 1, side, side))).numel()


def _flat(side, kernel, channels, pool, lost=1, up=0, power=2):
    for _ in range(2):
        side = (side - kernel + lost + up * (pool - 1)) // pool
    return channels * side**power


def _draw(random, kernels, pool, *over):  # over: what each of the two pools leaves over
    kernel, side = random.choice(kernels), random.randint(3, 6)
    for rest in reversed(over):
        side = side * pool + rest + kernel - 1
    return side, kernel, random.choice([8, 16, 20]), pool


flat_size = Exercise(
    run=lambda answer, *networks: [answer(*layers) for layers in networks],
    right=_by_trying,
    inputs=lambda random: tuple(_draw(random, *of) for of in (([2, 4], 2, 0, 0), ([3, 5], 3, 2, 2), ([3, 4], 3, 0, 2))),
    mistakes={
        "a pool leaves out what does not fill it: which way do you round?": lambda *given: _flat(*given, up=1),
        "at how many places does a kernel of 4 fit on 5 pixels?": lambda *given: _flat(*given, lost=0),
        "the side is right, and an image has more than one side": lambda *given: _flat(*given, power=1),
    },
    shows="the same number as the layers give when an image goes through",
)


def _try_start(answer: Callable, seed: int, before: int) -> dict:
    before += int(os.environ["RANK"])  # the ranks' generators are at different places
    without = torch.rand(8, generator=torch.Generator().manual_seed(before))
    torch.manual_seed(before)
    model = answer(Net, seed)
    drawn = torch.rand(8)  # as dropout would
    with process_group(timeout=5) as env:
        of_all = [torch.empty(8) for _ in range(env.world_size)]
        dist.all_gather(of_all, drawn)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return {"masks differ": not torch.equal(*of_all), "draws on": torch.equal(drawn, without), "weights": weights}


def _fork(build, seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()


def _seed_for_good(build, seed, step=0, again=False):
    torch.manual_seed(seed + step * int(os.environ["RANK"]))
    model = build()
    if again:
        torch.manual_seed(seed + int(os.environ["RANK"]))
    return model


equal_start = Exercise(
    run=_try_start,
    right=_fork,
    inputs=lambda random: (random.randrange(1000), random.randrange(1000, 2000)),
    mistakes={
        "the ranks build different weights: what decides what a rank draws next?": lambda build, seed: build(),
        "each rank has a seed of its own, and so weights of its own": lambda *given: _seed_for_good(*given, step=1),
        "the weights are equal, and so is all that the ranks draw afterwards, their dropout masks too. Where was each "
        "generator before you set it?": _seed_for_good,
        "the masks differ, but each rank draws on from where you have put it, perhaps what its weights were made of. "
        "Where was its generator before the call?": lambda *given: _seed_for_good(*given, again=True),
    },
    shows="equal weights without a message, and each rank draws on as if there had been no call",
    world_size=2,
)


class _Classifier(nn.Module):
    def __init__(self, end=F.log_softmax, relu=False):  # log_softmax: the loss applies it again, which changes nothing
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 4, kernel_size=5), nn.Linear(4 * 12 * 12, 10)
        self.end, self.relu = end, relu

    def forward(self, x):
        x = self.fc(F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1))
        return self.end(F.relu(x) if self.relu else x, dim=1)


def _try_network(answer: Callable, images: torch.Tensor, label: int) -> dict:
    torch.manual_seed(label)
    net, labels = answer(), torch.full((len(images),), label)
    with torch.no_grad():
        first = F.cross_entropy(net(images), labels).item()
        net.fc.weight.zero_()
        net.fc.bias.copy_(20.0 * F.one_hot(labels[0], 10) - 10)  # sure of the right class, whatever the image
        return {"first loss": first, "loss when it is sure and right": F.cross_entropy(net(images), labels).item()}


classifier = Exercise(
    run=_try_network,
    right=_Classifier,
    inputs=lambda random: (torch.randn(8, 1, 28, 28), random.randrange(10)),
    mistakes={
        "the loss cannot come near 0, and two things happen to the logits on their way to it": lambda: _Classifier(
            F.softmax, relu=True
        ),
        "the loss is near 0 for a network that is sure, and the logits are never below 0: what is the last thing that "
        "happens to them?": lambda: _Classifier(relu=True),
        "the loss cannot come near 0: it takes what it gets for logits, and applies a softmax itself": lambda: (
            _Classifier(F.softmax)
        ),
    },
    shows="the loss is that of plain logits, and near 0 for a network that is sure and right",
)
