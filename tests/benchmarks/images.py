"""60,000 training images and 10,000 held-out ones, of MNIST's size and in MNIST's own files, made from ``digits``.

Each is a scan of scikit-learn's, turned by up to 10 degrees and shifted by up to 10 % at random. No scan is in both
parts, so that accuracy on the held-out images means something.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import torch
import torch.nn.functional as F

from ddp_tutorial import load_dataset


def make(root: Path, train: int = 60_000, held_out: int = 10_000) -> Path:
    """Write the files to ``root/MNIST/raw`` unless they are there, and return ``root``."""
    raw = root / "MNIST" / "raw"
    if (raw / "t10k-labels-idx1-ubyte").exists():
        return root
    raw.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    for scans, count, part in zip(load_dataset("digits", root), (train, held_out), ("train", "t10k")):
        chosen = torch.randint(len(scans), (count,), generator=generator)
        images = torch.cat([moved(scans.images[some].float(), generator) for some in chosen.split(5000)])
        pixels = images.round().clamp(0, 255).to(torch.uint8).numpy().tobytes()
        labels = scans.labels[chosen].to(torch.uint8).numpy().tobytes()
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + pixels)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels)
    return root


def moved(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Turn and shift ``images`` of shape (N, 1, 28, 28), each by amounts of its own."""
    angle = (torch.rand(len(images), generator=generator) * 2 - 1) * math.radians(10)
    shift = (torch.rand(len(images), 2, generator=generator) * 2 - 1) * 0.1 * 2  # the width is 2 units
    cosine, sine = angle.cos(), angle.sin()
    rows = [torch.stack([cosine, -sine, shift[:, 0]], 1), torch.stack([sine, cosine, shift[:, 1]], 1)]
    grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)
