"""Who am I, who else is there, how do we talk: the surroundings of one rank.

A rank reads the variables that ``torchrun`` sets (``RANK``, ``LOCAL_RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``,
``MASTER_PORT``), so the same code runs under ``launch``, ``torchrun``, Slurm and Kubernetes. With none of them set it
is a world of one. Taught in ``notebooks/01_environment.ipynb``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module

import torch
import torch.distributed as dist

from .rendezvous import meet, open_store

# ``launch`` sets these for its ranks. They also work as settings under any other launcher.
DEVICE, BACKEND, TIMEOUT = (f"DDP_TUTORIAL_{name}" for name in ("DEVICE", "BACKEND", "TIMEOUT"))


@dataclass(frozen=True)
class Environment:
    """One rank's place in the world."""

    rank: int  # 0 ... world_size - 1, over all machines
    local_rank: int  # 0, 1, ... on this machine: the index of this rank's GPU
    world_size: int
    device: torch.device
    backend: str

    @property
    def is_main(self) -> bool:
        """True on rank 0 alone, the one rank that prints and saves."""
        return self.rank == 0


def default_device(visible: dict[str, int] | None = None) -> tuple[str, str]:
    """Return the type of device that ranks train on here, ``"cuda"`` or ``"cpu"`` for example, and the reason.

    ``visible`` is ``{type: count}``; None takes what this process sees.
    """
    if visible is None:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        visible = {accelerator.type: torch.accelerator.device_count()} if accelerator else {}
    for kind, count in visible.items():
        if count and dist.get_default_backend_for_device(kind) == "gloo":  # Apple's MPS: no all-reduce of tensors there
            return "cpu", f"{kind} has no backend for DDP"
        if count:
            return kind, f"{count} visible"
    return "cpu", "no GPU is visible"


def device_type(device: str | torch.device) -> str:
    """Return the type of ``device``, "cuda" for example; ``ValueError`` if it is unknown or has a number."""
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"there is no device {device!r}; say 'cpu', 'cuda' or another type that torch knows") from None
    if parsed.index is not None:
        raise ValueError(f"device must be a type such as {parsed.type!r}, not {device!r}: local rank r takes device r")
    return parsed.type


def init_environment(
    device: str | None = None, backend: str | None = None, timeout: float | None = None
) -> Environment:
    """Join the default process group and return this rank's :class:`Environment`.

    ``device`` is a type ("cpu", "cuda"), ``backend`` a name that torch knows ("gloo", "nccl"), ``timeout`` the seconds
    that ranks wait for one another, in the rendezvous and in each collective.

    Raises ``ValueError`` for variables that contradict each other or a device that is not there, ``RuntimeError`` if
    the process has a group already, and ``TimeoutError`` that names the ranks which did not arrive.
    """
    if dist.is_initialized():
        raise RuntimeError("this process has a process group already; leave it first (destroy_process_group)")
    rank, local_rank, world_size = _place()
    device = device_type(device or os.environ.get(DEVICE) or default_device()[0])
    backend = backend or os.environ.get(BACKEND) or dist.get_default_backend_for_device(device)
    timeout = timeout or float(os.environ.get(TIMEOUT, 0)) or None
    on_accelerator = device != "cpu"
    if on_accelerator:
        if local_rank >= torch.accelerator.device_count():
            raise ValueError(
                f"rank {rank} needs {device}:{local_rank}, and {torch.accelerator.device_count()} devices are visible"
            )
        # Before any other call on the device: otherwise each rank also opens a context on device 0.
        torch.accelerator.set_device_index(local_rank)
    place = torch.device(device, local_rank) if on_accelerator else torch.device(device)
    limit = timedelta(seconds=timeout) if timeout else None
    store = open_store(rank, world_size, limit or timedelta(minutes=30))
    meet("arrived", store, rank, world_size, limit or timedelta(minutes=30))
    # DDP will import it. Its functions take the group that they find as their default and keep it for ever, so it must
    # not find one: the threads of a group that is kept live on, and can crash Python on its way out.
    import_module("torch.distributed.nn")
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=limit,
        device_id=place if on_accelerator else None,
    )
    # A rank with little to do would be gone while a slower one still connects to it, which then fails.
    meet("connected", store, rank, world_size, limit or timedelta(minutes=30))
    return Environment(rank, local_rank, world_size, place, backend)


def _place() -> tuple[int, int, int]:
    values = {name: os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    missing = [name for name, value in values.items() if value is None]
    if len(missing) == 3:
        return 0, 0, 1
    if missing:
        found = ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)
        raise ValueError(f"{found} is set, but not {', '.join(missing)}: set all three, or none for a world of one")
    try:
        rank, local_rank, world_size = (int(value) for value in values.values())
    except ValueError:
        raise ValueError(f"RANK, LOCAL_RANK and WORLD_SIZE must be whole numbers, not {values}") from None
    if not 0 <= rank < world_size or not 0 <= local_rank < world_size:
        raise ValueError(
            f"RANK={rank} and LOCAL_RANK={local_rank} must lie from 0 to WORLD_SIZE - 1 = {world_size - 1}"
        )
    return rank, local_rank, world_size
