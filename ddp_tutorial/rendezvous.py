"""Where ranks meet: a store that all of them can write to. Taught in ``notebooks/01_environment.ipynb``."""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from datetime import timedelta

import torch.distributed as dist

STORE = "DDP_TUTORIAL_STORE"  # ``launch`` sets it for its ranks: the folder for the files they meet in
_groups_made: Counter[str] = Counter()


def open_store(rank: int, world_size: int, limit: timedelta) -> dist.Store:
    """Return a store of key and value that all ranks share, a fresh one for each process group.

    Under ``launch`` a file, elsewhere the TCP store at ``MASTER_ADDR`` and ``MASTER_PORT``, alone one in memory. Raises
    ``TimeoutError`` if there is no store at that address within ``limit``.
    """
    folder = os.environ.get(STORE)
    number = _groups_made[folder or ""]
    _groups_made[folder or ""] += 1
    if folder:  # Under `launch`: no port to choose, no name to look up. A used file would make a second group hang.
        return dist.FileStore(os.path.join(folder, f"group-{number}"), world_size)
    if world_size == 1:
        return dist.HashStore()
    try:
        # world_size=1: the store itself shall not wait for the others. `meet` does, and can say who is missing.
        store, _, _ = next(iter(dist.rendezvous("env://", rank=rank, world_size=1, timeout=limit)))
    except dist.DistNetworkError as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise TimeoutError(
            f"rank {rank} of {world_size} found no store at {address}, where rank 0 should be"
        ) from error
    store = dist.PrefixStore(f"ddp_tutorial/{number}", store)
    # torchrun's store outlives the processes that it starts anew after a failure, and with it what the last ones wrote.
    outlives = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return dist.PrefixStore(_fresh_name(store, rank, world_size, limit), store) if outlives else store


def _fresh_name(store: dist.Store, rank: int, world_size: int, limit: timedelta) -> str:
    """Return a name that the ranks which are starting now share, and none that was started before.

    Each rank says hello with a number of its own; rank 0 answers with the name. It goes on answering until each rank
    has confirmed, since the first hello that it finds may be that of a rank which is long dead.
    """
    mine = uuid.uuid4().hex
    store.set(f"hello/{rank}", mine)
    if rank > 0:
        try:
            store.wait([f"answer/{mine}"], limit)
        except RuntimeError:
            raise _too_late(rank, world_size, limit, [0]) from None
        name = store.get(f"answer/{mine}").decode()
        store.set(f"{name}/confirmed/{rank}", "yes")
        return name
    end, missing = time.monotonic() + limit.total_seconds(), list(range(1, world_size))
    while missing:
        if time.monotonic() > end:
            raise _too_late(rank, world_size, limit, missing)
        for other in missing:
            if store.check([f"hello/{other}"]):
                store.set(f"answer/{store.get(f'hello/{other}').decode()}", mine)
        time.sleep(0.002)
        missing = [other for other in missing if not store.check([f"{mine}/confirmed/{other}"])]
    return mine


def meet(occasion: str, store: dist.Store, rank: int, world_size: int, limit: timedelta) -> None:
    """Wait until all ranks have called this for ``occasion``, for ``limit`` at most.

    Raises ``TimeoutError`` that names the missing. Here they can still be named; inside a collective they could not.
    """
    arrived = [f"{occasion}/{other}" for other in range(world_size)]
    store.set(arrived[rank], "yes")
    try:
        store.wait(arrived, limit)
    except RuntimeError:  # a TCPStore raises DistStoreError, a FileStore its base class
        missing = [other for other in range(world_size) if not store.check([arrived[other]])]
        if not missing:
            raise
        raise _too_late(rank, world_size, limit, missing) from None


def _too_late(rank: int, world_size: int, limit: timedelta, missing: list[int]) -> TimeoutError:
    return TimeoutError(
        f"rank {rank} of {world_size} waited {limit.total_seconds():g} s for "
        f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))}, which did not arrive. "
        f"Were {world_size} processes started, and did each of them get here?"
    )
