"""Each sample to one rank. Taught in ``notebooks/04_sampler.ipynb``."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, default_collate

from .environment import Environment
from .preparation import prepare_digits, prepare_mnist


class Images(Dataset):
    """Images as bytes, handed out a batch at a time.

    ``images`` is uint8 of shape (N, 1, 28, 28), ``labels`` int64 of shape (N,); ``mean`` and ``std`` are those of the
    pixels on the scale 0 to 1.
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, mean: float, std: float) -> None:
        if len(images) != len(labels):
            raise ValueError(f"{len(images)} images and {len(labels)} labels")
        self.images, self.labels, self.mean, self.std = images, labels, mean, std

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        # One indexing operation a batch. A DataLoader that fetches sample by sample spends more time than the network.
        return self.images[indices], self.labels[indices]

    def normalise(self, images: torch.Tensor) -> torch.Tensor:
        """Turn bytes into floats of mean 0 and deviation 1, on the device that the images are on."""
        return images.float().div_(255).sub_(self.mean).div_(self.std)


class Splits(NamedTuple):
    """The samples to train on, and the held-out ones."""

    train: Dataset
    eval: Dataset


def load_dataset(name: str = "digits", root: str | os.PathLike = "data") -> Splits:
    """Return ``"digits"`` (1,797 scans from scikit-learn, no network) or ``"mnist"`` (70,000 images, downloaded).

    The first call prepares ``root/<name>.pt``; later calls, and each rank's own, map that file instead of copying it.
    MNIST's own files are looked for in ``root/MNIST/raw``. Raises ``ValueError`` for an unknown name, ``RuntimeError``
    when MNIST is neither there nor to be had, or damaged.
    """
    prepare = {"digits": prepare_digits, "mnist": prepare_mnist}.get(name)
    if prepare is None:
        raise ValueError(f"there is no data set {name!r}; choose 'digits' or 'mnist'")
    path = Path(root) / f"{name}.pt"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # Under a name of its own, then renamed: nobody ever reads half a file, and two programs can prepare at once.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".preparing-") as folder:
            torch.save(prepare(path.parent), Path(folder) / path.name)
            os.replace(Path(folder) / path.name, path)
    stored = torch.load(path, mmap=True)
    return Splits(*(Images(*stored[part], stored["mean"], stored["std"]) for part in ("train", "eval")))


def train_loader(dataset: Dataset, env: Environment, batch_size: int, seed: int = 0) -> DataLoader:
    """Return this rank's batches of ``batch_size`` samples; call ``.sampler.set_epoch(epoch)`` before each epoch.

    Every rank gets the same number of samples: the sampler repeats a few where they do not divide evenly. Raises
    ``ValueError`` for an empty data set.
    """
    if len(dataset) == 0:
        raise ValueError("the data set to train on is empty")
    sampler = DistributedSampler(dataset, num_replicas=env.world_size, rank=env.rank, shuffle=True, seed=seed)
    return _loader(dataset, env, batch_size, sampler)


def eval_loader(dataset: Dataset, env: Environment, batch_size: int) -> DataLoader:
    """Return this rank's share of ``dataset`` for evaluation: over all ranks, each sample exactly once."""
    return _loader(dataset, env, batch_size, range(env.rank, len(dataset), env.world_size))


def _loader(dataset: Dataset, env: Environment, batch_size: int, sampler) -> DataLoader:
    return DataLoader(dataset, batch_size, sampler=sampler, collate_fn=_collate, pin_memory=env.device.type != "cpu")


def _collate(batch):
    # Images, and a Subset of them, hand out a batch that is whole already; other data sets a list of samples.
    return batch if isinstance(batch, tuple) else default_collate(batch)
