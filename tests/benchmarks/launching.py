"""Seconds from the call to the end of the first all-reduce on all ranks: python tests/benchmarks/launching.py

Ways that start processes anew, alternating, each from a process of its own that has imported torch, as a notebook has:
a bare ``torch.multiprocessing.spawn``, ``launch``, accelerate's notebook launcher, which forks (and so fails once the
kernel has used a GPU), and ``torchrun`` from a shell. Then calls on warm ranks, results from nothing to 100 MB, and
``launch`` where names are looked up by a resolver that answers nobody.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

WAYS = ("bare spawn", "launch", "accelerate, fork", "torchrun")
LIMIT = 120  # seconds for one start


def note(folder: str, rank: int) -> None:
    """In a rank: all-reduce, and write down when it ended."""
    dist.all_reduce(torch.ones(1))
    Path(folder, str(rank)).write_text(str(time.time()))


def spawned(rank: int, folder: str, ranks: int) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", ranks), rank=rank, world_size=ranks)
    note(folder, rank)
    dist.destroy_process_group()


def launched(folder: str) -> None:
    from ddp_tutorial import process_group

    with process_group() as env:
        note(folder, env.rank)


def forked(folder: str) -> None:
    from accelerate import Accelerator

    note(folder, Accelerator(cpu=True).process_index)


def started(way: str, ranks: int) -> float:
    """Start ``ranks`` processes in one way, in this process, and return the seconds to the last all-reduce's end."""
    from ddp_tutorial import launch

    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        if way == "bare spawn":
            torch.multiprocessing.spawn(spawned, (folder, ranks), ranks)
        elif way == "launch":
            launch(launched, (folder,), world_size=ranks, device="cpu")
        elif way == "torchrun":
            command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", __file__, folder]
            subprocess.run([sys.executable, *command], check=True, capture_output=True)
        else:
            from accelerate import notebook_launcher

            os.environ["ACCELERATE_USE_CPU"] = "true"
            notebook_launcher(forked, (folder,), num_processes=ranks)
        return max(float(Path(folder, str(rank)).read_text()) for rank in range(ranks)) - began


def warm(ranks: int, rounds: int) -> dict[str, list[float]]:
    """Return milliseconds of calls on ranks that stay up: an empty one, one with a group, results of some sizes."""
    from ddp_tutorial import Ranks

    calls = {"warm, an empty function": (lambda: None, ())}
    with tempfile.TemporaryDirectory() as folder, Ranks(world_size=ranks, device="cpu") as group:
        calls["warm, a group of its own"] = (launched, (folder,))
        for megabytes in (1, 10, 100):
            calls[f"warm, {megabytes} MB from each"] = (
                lambda size: torch.ones(size, dtype=torch.uint8),
                (megabytes << 20,),
            )
        times: dict[str, list[float]] = {name: [] for name in calls}
        group.run(launched, (folder,))
        for number in range(rounds):
            for name, (function, arguments) in calls.items():
                if name.endswith("each") and number >= 5:
                    continue
                began = time.perf_counter()
                group.run(function, arguments)
                times[name].append(1e3 * (time.perf_counter() - began))
    return times


# In a network of its own, whose only server for names takes every question and answers none.
SLOW_NAMES = r"""
hostname no-such-host.invalid; ip link set lo up
printf "nameserver 127.0.0.1\noptions timeout:5 attempts:1\n" > $F/resolv.conf
echo "127.0.0.1 localhost" > $F/hosts; echo "hosts: files dns" > $F/nsswitch.conf
for file in resolv.conf hosts nsswitch.conf; do mount --bind $F/$file $(readlink -f /etc/$file); done
"$0" -c 'import socket as s, time; m = s.socket(type=s.SOCK_DGRAM); m.bind(("127.0.0.1", 53)); time.sleep(300)' &
server=$!; sleep 0.3
"$0" "$1" --measure "$2" "$3"; kill $server
"""


def apart(way: str, ranks: int, slow_names: bool = False) -> float | None:
    """Measure one way in a process of its own; None where this machine does not allow it."""
    command = [sys.executable, __file__, "--measure", way, str(ranks)]
    with tempfile.TemporaryDirectory() as folder:
        if slow_names:
            root = ["--map-root-user"] if os.geteuid() else []
            command = [
                "unshare",
                *root,
                "--uts",
                "--net",
                "--mount",
                "sh",
                "-ec",
                SLOW_NAMES,
                *command[:2],
                *command[3:],
            ]
        surroundings = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "F": folder}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, env=surroundings, start_new_session=True, **pipes)
        try:
            said, errors = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:  # accelerate's fork does that now and then, with eight ranks
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            print(f"{way}, {ranks} ranks: not there after {LIMIT} s", file=sys.stderr)
            return None
    if process.returncode:
        print(f"{way}: {errors.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return json.loads(said.splitlines()[-1])


def say(name: str, values: list[float | None], unit: str, base: list[float | None] | None = None) -> None:
    there = [value for value in values if value is not None]
    if there:
        ratios = [a / b for a, b in zip(values, base or []) if a is not None and b is not None]
        ratio = f", {statistics.median(ratios):.2f} of a bare spawn" if ratios else ""
        middle, least, most = statistics.median(there), min(there), max(there)
        print(f"{name:<36}{middle:9.2f} {unit} [{least:.2f}, {most:.2f}]{ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", default="1,2,4,8", help="numbers of ranks, separated by commas")
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "RANKS"), help="one start, in this process")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(started(options.measure[0], int(options.measure[1]))))
        return
    ways = [way for way in WAYS if "accelerate" not in way or importlib.util.find_spec("accelerate")]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(
        f"{os.cpu_count()} cores, torch {torch.__version__}, {options.rounds} rounds, load {load:.1f} before the start"
    )
    for ranks in map(int, options.ranks.split(",")):
        seconds: dict[str, list[float | None]] = {way: [] for way in ways}
        for number in range(options.rounds):
            for way in ways if number % 2 == 0 else ways[::-1]:
                seconds[way].append(apart(way, ranks))
        for way, values in seconds.items():
            say(
                f"{way}, {ranks} {'rank' if ranks == 1 else 'ranks'}",
                values,
                "s",
                None if way == WAYS[0] else seconds[WAYS[0]],
            )
        for name, values in warm(ranks, 50).items():
            say(f"{name}, {ranks}", values, "ms")
    if shutil.which("unshare"):
        values = [apart("launch", 2, slow_names=True) for _ in range(options.rounds)]
        say("launch, 2 ranks, names unanswered", values, "s")


if __name__ == "__main__":
    if "RANK" in os.environ:  # torchrun started this process
        dist.init_process_group("gloo")
        note(sys.argv[1], dist.get_rank())
        dist.destroy_process_group()
    else:
        main()
