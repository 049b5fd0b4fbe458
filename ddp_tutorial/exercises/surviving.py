"""Checks: what is left of an epoch, and a file that is whole.

Taught in ``notebooks/10_beyond_one_machine.ipynb``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import torch
from torch.utils.data import DistributedSampler, TensorDataset

from ..data import train_loader
from ..environment import Environment
from ..resuming import rest_of_epoch
from . import Exercise


def _shares(answer, n, seed, epoch, done, ranks):
    return [[int(sample) for sample in answer(n, seed, epoch, done, ranks, rank)] for rank in range(ranks)]


def _as_the_package_does(n, seed, epoch, done, ranks, rank):
    env = Environment(rank, rank, ranks, torch.device("cpu"), "gloo")
    loader = train_loader(TensorDataset(torch.arange(n)), env, 1, seed)
    loader.sampler.set_epoch(epoch)
    return rest_of_epoch(loader, env, done).sampler


def _rest(n, seed, epoch, done, ranks, rank, own=None, pad=True, told=True):
    sampler = DistributedSampler(range(n), 1, 0, seed=seed)
    sampler.set_epoch(epoch * told)
    order = list(sampler)
    if own is not None:  # deal the whole epoch, then let each rank skip some of its own
        return (order + order[: -n % ranks])[rank::ranks][own(done, ranks) :]
    rest = order[done:]
    return (rest + order[: -len(rest) % ranks if pad else 0])[rank::ranks]


def _an_interruption(random):
    done, ranks = 2 * random.choice([4, 5, 7, 8]), 3  # the done samples of two ranks do not divide by three
    n = done + 3 * random.randint(6, 9) + random.choice([1, 2])
    return n, random.randrange(1000), random.randint(1, 9), done, ranks


rest = Exercise(
    run=_shares,
    right=_as_the_package_does,
    inputs=_an_interruption,
    mistakes={
        "Each rank skips all that the ranks have done together, from its own share. Who takes those in between?": (
            lambda *given: _rest(*given, own=lambda done, ranks: done)
        ),
        "Each rank skips its part of what is done. How many does that skip in all, if it does not divide evenly?": (
            lambda *given: _rest(*given, own=lambda done, ranks: done // ranks)
        ),
        "Some ranks get a sample more, and so a step more.": lambda *given: _rest(*given, pad=False),
        "It is the rest of another epoch. What does the order depend on besides the seed?": (
            lambda *given: _rest(*given, told=False)
        ),
    },
    shows="with what was done before, each sample is taken, and no more of them twice than the padding needs",
)


def _written(answer, old, new):
    seen = {}

    def write(to):
        to = Path(to)
        to.write_text(new[:5])
        seen["the file, while the new one is written"] = path.read_text() if path.exists() else None
        seen["made in the same folder"] = path.parent.resolve() in to.resolve().parents
        if fails:
            raise OSError("no space left")
        to.write_text(new)
        seen["inode"] = to.stat().st_ino

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        for fails in (False, True):
            path.write_text(old)
            try:
                answer(path, write)
            except OSError as error:
                seen["the error that came through"] = str(error)
            case = "after an error" if fails else "after all went well"
            seen[f"the file {case}"] = path.read_text() if path.exists() else None
            seen[f"other files {case}"] = len(list(Path(folder).iterdir())) - path.exists()
            if not fails:
                seen["it is the very file that was written"] = seen.pop("inode", None) == path.stat().st_ino
    return seen


def _write(path, write, folder=None, first=lambda path: None, tidy=True, put=os.replace):
    new = Path(folder or path.parent) / f"{path.name}.{os.getpid()}"
    first(path)
    try:
        write(new)
        put(new, path)
    except BaseException:
        if tidy:
            new.unlink(missing_ok=True)
        raise


whole_file = Exercise(
    run=_written,
    right=_write,
    inputs=lambda random: tuple(f"{kind} {random.random()} {'.' * random.randint(5, 50)}" for kind in ("old", "new")),
    mistakes={
        "Half of a file stands under that name for a while, and the old one is lost.": lambda path, write: write(path),
        "For a while there is no file at all: what if the process is killed just then?": (
            lambda path, write: _write(path, write, first=Path.unlink)
        ),
        "After an error the half of the new file is still there.": lambda path, write: _write(path, write, tidy=False),
        "A rename is only a rename within one disk. Where is the new file made?": (
            lambda path, write: _write(path, write, folder=tempfile.gettempdir(), put=shutil.move)
        ),
        "It is copied to its place, which takes as long as writing it. What takes no time?": (
            lambda path, write: _write(path, write, put=lambda new, path: (shutil.copy(new, path), new.unlink()))
        ),
    },
    shows="at each moment, and after an error, there is one whole file under that name",
)
