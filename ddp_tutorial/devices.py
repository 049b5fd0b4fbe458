"""How many ranks, on which devices, talking how: decided before any process starts.

Taught in ``notebooks/07_launch_and_plot.ipynb``.
"""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from .environment import BACKEND, DEVICE, TIMEOUT, default_device, device_type
from .rendezvous import STORE


def choose(world_size: int | None, device: str | None, backend: str | None) -> tuple[int, str, str, str]:
    """Return world size, type of device, backend, and the reason, or raise ``ValueError`` for what cannot work here."""
    if world_size is not None and (type(world_size) is not int or world_size < 1):
        raise ValueError(f"world_size must be a whole number from 1 up, not {world_size!r}")
    if device is not None:
        device, reason = device_type(device), "as asked"
    visible = {} if device == "cpu" else visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"))
    if device is None:
        device, reason = default_device(visible)
    present = visible.get(device, 0)
    if device != "cpu" and not present:
        raise ValueError(f"no {device} device is visible; device='cpu' works everywhere")
    if world_size is None:
        world_size = present or 2
    if device != "cpu" and world_size > present:
        raise ValueError(f"{world_size} ranks need {world_size} {device} devices, and {present} are visible")
    if backend is None:
        backend = dist.get_default_backend_for_device(device)
    if backend not in dist.Backend.backend_list or not dist.is_backend_available(backend):
        raise ValueError(f"there is no backend {backend!r} here; gloo works on the CPU, nccl on NVIDIA GPUs")
    if device not in dist.Backend.backend_capability.get(backend, [device]):
        raise ValueError(f"backend {backend!r} does not work on {device}; gloo does")
    return world_size, device, backend, reason


_at_import = os.environ.get("CUDA_VISIBLE_DEVICES")


@functools.cache
def visible_devices(setting: str | None) -> dict[str, int]:
    """Return ``{type: count}`` of the accelerators that a fresh process sees with ``CUDA_VISIBLE_DEVICES=setting``.

    A process that has used or counted GPUs may keep the count from then, whatever the variable says now; its ranks do
    not. So a new value is tried out in a new process.
    """
    changed = setting != _at_import and torch.accelerator.current_accelerator() is not None
    if torch.cuda.is_initialized() or changed:
        code = "import torch; a = torch.accelerator; print(a.current_accelerator(True), a.device_count())"
        answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        kind, count = answer.split()[-2:]
        return {kind.split(":")[0]: int(count)}
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return {accelerator.type: torch.accelerator.device_count()} if accelerator else {}


def variables(world_size: int, device: str, backend: str, timeout: float, port: int, folder: Path) -> dict[str, str]:
    """Return the environment for ranks: this process's own, with the variables that ``torchrun`` would set."""
    # Variables of another launcher that this process inherited would send the ranks to a place that is not there.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    # Gloo would look the host's name up, which fails or takes seconds on many machines.
    loopback = {"lo", "lo0"} & {name for _, name in socket.if_nameindex()}
    if loopback and "GLOO_SOCKET_IFNAME" not in kept:
        kept["GLOO_SOCKET_IFNAME"] = loopback.pop()
    return kept | {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        DEVICE: device,
        BACKEND: backend,
        TIMEOUT: str(timeout),
        STORE: str(folder),
    }
