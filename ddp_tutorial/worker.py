"""What runs in a spawned process: wait for a call, make it, answer; and go when the parent is gone.

Taught in ``notebooks/07_launch_and_plot.ipynb``.
"""

from __future__ import annotations

import os
import pickle
import queue
import random
import signal
import sys
import threading
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from .channel import Channel
from .environment import TIMEOUT
from .failures import describe
from .reporting import listen
from .sending import dumps
from .sources import own_files
from .traces import frames_of


def main(rank: int, pipes: list[Connection], folder: str) -> None:
    """Serve calls until the parent says stop. Runs in the process that ``torch.multiprocessing.spawn`` started."""
    try:
        _serve(rank, pipes, folder)
    except BaseException:  # not on to torch, which would write it to a file that nobody reads or removes
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _serve(rank: int, pipes: list[Connection], folder: str) -> None:
    # The parent alone decides what an interrupt means. It kept the signal blocked while this process started.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.name == "posix":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        os.setsid()  # a process group of its own, so that DataLoader workers can be ended with their rank
    for other, pipe in enumerate(pipes):
        if other != rank:
            pipe.close()
    _send_output_to(os.path.join(folder, f"{rank}-0.txt"))
    if "OMP_NUM_THREADS" not in os.environ:
        # Otherwise every rank takes all cores, and they spend their time taking them from one another.
        torch.set_num_threads(max(1, torch.get_num_threads() // len(pipes)))
    channel, calls = Channel(pipes[rank], folder), queue.SimpleQueue()
    listen(lambda records: channel.send("events", records))
    threading.Thread(target=_attend, args=(channel, calls, threading.get_ident()), daemon=True).start()
    channel.send("ready")
    threads = torch.get_num_threads()
    while (call := calls.get()) is not None:
        _send_output_to(os.path.join(folder, f"{rank}-{call['number']}.txt"))
        _start_afresh(rank, call, threads)
        _answer(channel, call)


def _answer(channel: Channel, call: dict) -> None:
    try:
        fn, args = pickle.loads(call["payload"])
        result = fn(*args)
        try:
            answer = ("done", own_files(), dumps(result))
        except TypeError as error:
            raise TypeError(f"the result cannot be sent back: {error}") from None
    except BaseException as error:  # SystemExit too: a rank that leaves quietly has not delivered its result
        answer = ("failed", describe(error))
    sys.stdout.flush()
    sys.stderr.flush()
    channel.send(*answer)


def _start_afresh(rank: int, call: dict, threads: int) -> None:
    """Make a process that has served before indistinguishable from a new one, as far as that goes."""
    if dist.is_initialized():
        dist.destroy_process_group()
    # A group that failed to form has counted all the same, on its rank alone, and the next would have two names.
    dist.distributed_c10d._world.group_count = 0
    os.environ.clear()
    os.environ.update(call["environ"], RANK=str(rank), LOCAL_RANK=str(rank))
    # A script that names no timeout would otherwise wait half an hour for a rank that does not come.
    limit = timedelta(seconds=float(os.environ[TIMEOUT]))
    dist.distributed_c10d.default_pg_timeout = dist.distributed_c10d.default_pg_nccl_timeout = limit
    os.environ["TORCHELASTIC_ERROR_FILE"] = os.path.join(call["folder"], f"error-{rank}.json")
    os.chdir(call["cwd"])
    sys.path[:] = call["path"]
    torch.seed()
    random.seed()
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)


def _attend(channel: Channel, calls: queue.SimpleQueue, main_thread: int) -> None:
    """Listen to the parent on a thread of its own, so that its end is noticed inside a collective too."""
    while True:
        kind, content = channel.receive()
        if kind == "where":
            innermost_first = list(traceback.walk_stack(sys._current_frames()[main_thread]))
            channel.send("where", frames_of(reversed(innermost_first)))
        else:
            calls.put(content if kind == "call" else None)


def _send_output_to(path: str) -> None:
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # whatever the call before put in their place
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    # Line by line, so that the parent can show lines while the function still runs.
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
