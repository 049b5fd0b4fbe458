"""The network: two convolutions and two linear layers, 21,840 parameters. Taught in ``notebooks/02_model.ipynb``."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    """A small convolutional network for images of 28 x 28 pixels and ten classes.

    ``forward`` takes floats of shape (N, 1, 28, 28) and returns logits of shape (N, 10). It applies no softmax:
    ``CrossEntropyLoss`` does that itself. ``dropout`` is the probability of both dropout layers.
    """

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.conv2_drop = nn.Dropout2d(dropout)
        self.fc1 = nn.Linear(320, 50)
        self.fc1_drop = nn.Dropout(dropout)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))  # (N, 10, 12, 12)
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2))  # (N, 20, 4, 4)
        # flatten, not view(-1, 320): view fails on channels_last, the layout that makes convolutions faster.
        x = x.flatten(1)  # (N, 320)
        x = self.fc1_drop(F.relu(self.fc1(x)))
        return self.fc2(x)
