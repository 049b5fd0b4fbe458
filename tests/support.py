"""Small tools that several tests use."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ddp_tutorial"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
OF_A_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def devices() -> list[str]:
    """Return the types of device to test on: the CPU, and the accelerator of this machine if DDP works on it."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return ["cpu", "cuda"] if accelerator is not None and accelerator.type == "cuda" else ["cpu"]


def environment(**variables: str) -> dict[str, str]:
    """Return the variables for a fresh Python that finds the package and takes one thread."""
    kept = {name: value for name, value in os.environ.items() if name not in OF_A_LAUNCHER}
    return kept | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | variables


def python(*arguments: str, cwd: Path, timeout: float = 120, **variables: str) -> subprocess.CompletedProcess:
    """Run Python with ``arguments`` in ``cwd`` and return what it printed, within ``timeout`` seconds."""
    with start(*arguments, cwd=cwd, **variables) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def start(*arguments: str, cwd: Path, **variables: str) -> subprocess.Popen:
    """Start Python with ``arguments`` in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A suite that a shell runs in its background ignores interrupts, and would pass that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def alive(pid: int) -> bool:
    """True while process ``pid`` runs; one that has ended and whose parent has not asked yet does not."""
    try:
        os.kill(pid, 0)
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return state != "Z" or int(fields[16]) > 1  # its threads end after its main one
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self").exists()


def wait_until(condition, seconds: float = 15) -> bool:
    """Return whether ``condition()`` became true within ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def all_gone(pids: Iterable[int], seconds: float = 15) -> bool:
    """Return whether all processes ``pids`` ended within ``seconds``."""
    return wait_until(lambda: not any(alive(pid) for pid in pids), seconds)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def write_mnist(folder: Path, train: int = 64, held_out: int = 32) -> Path:
    """Write a small MNIST in MNIST's own format to ``folder/MNIST/raw`` and return that folder."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    for part, count in (("train", train), ("t10k", held_out)):
        labels = torch.arange(count, dtype=torch.uint8) % 10
        images = torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8, generator=generator)
        pixels, classes = bytes(images.flatten().tolist()), bytes(labels.tolist())
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + pixels)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + classes)
    return raw


class Few:
    """A data set of ``count`` random images, as a list of pairs would be."""

    def __init__(self, count):
        generator = torch.Generator().manual_seed(count)
        self.inputs = torch.randn(count, 1, 28, 28, generator=generator)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        if not 0 <= index < len(self):
            raise IndexError
        return self.inputs[index], index % 10
