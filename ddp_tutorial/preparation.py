"""From a source of data to one dictionary of tensors, made once. Taught in ``notebooks/04_sampler.ipynb``.

Each function returns ``{"train": (images, labels), "eval": (images, labels), "mean": ..., "std": ...}``. Images are
uint8 of shape (N, 1, 28, 28), labels int64 of shape (N,), mean and deviation those of the training pixels from 0 to 1.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F


def prepare_digits(root: Path) -> dict:
    """Enlarge scikit-learn's scans of 8 x 8 pixels to 28 x 28, and hold 360 of the 1,797 out."""
    from sklearn.datasets import load_digits

    scans = load_digits()  # 8 x 8 pixels from 0 to 16
    images = torch.from_numpy(scans.images).float().unsqueeze(1) * (255 / 16)
    images = F.pad(F.interpolate(images, size=(20, 20), mode="bilinear"), (4, 4, 4, 4)).round().to(torch.uint8)
    labels = torch.from_numpy(scans.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))  # the same split for everybody
    held_out, rest = order[:360], order[360:]
    pixels = images[rest].float() / 255
    parts = {"train": (images[rest], labels[rest]), "eval": (images[held_out], labels[held_out])}
    return {**parts, "mean": pixels.mean().item(), "std": pixels.std().item()}


def prepare_mnist(root: Path) -> dict:
    """Read MNIST's files below ``root``, downloaded if they are not there. ``RuntimeError`` if that cannot be."""
    from torchvision.datasets import MNIST

    raw = root / "MNIST" / "raw"
    try:
        train, held_out = (MNIST(root, train=part, download=True) for part in (True, False))
        if any(len(part.data) != len(part.targets) for part in (train, held_out)):
            raise ValueError("there must be as many images as labels")
    except Exception as error:  # torchvision raises one kind for a missing network, several for damaged files
        reason = " ".join(str(error).split())
        names = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
        if all((raw / name).exists() for name in names):
            raise RuntimeError(f"the files in {raw} are damaged ({reason}): delete them and try again") from error
        raise RuntimeError(
            f"MNIST is not in {raw} and could not be downloaded ({reason}). Without a network use 'digits' instead"
        ) from error
    parts = {"train": train, "eval": held_out}
    return {part: (each.data.unsqueeze(1), each.targets) for part, each in parts.items()} | {
        "mean": 0.1307,
        "std": 0.3081,
    }
