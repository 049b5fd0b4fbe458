"""How a step gets slower on a slower network: measured between two hosts, beside what ddp_tutorial.scaling predicts.

python tests/benchmarks/slow_link.py                (as root, on Linux: it makes the hosts and the link itself)
python tests/benchmarks/slow_link.py --megabits 100 25 --hidden 512
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]


def train_some(hidden: int, steps: int) -> None:
    """Time ``steps`` steps of DDP on a network of three layers, and print the median from rank 0. Runs in each rank."""
    import torch
    from torch import nn

    from ddp_tutorial import process_group, wrap

    with process_group() as env:
        torch.manual_seed(0)
        model = wrap(nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10)), env)
        inputs, targets = torch.randn(64, 784), torch.randint(10, (64,))
        taken = []
        for _ in range(steps + 3):
            started = time.perf_counter()
            model.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            taken.append(time.perf_counter() - started)
        gradients = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        if env.is_main:
            print("measured", json.dumps({"seconds": statistics.median(taken[3:]), "bytes": gradients}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabits", type=float, nargs="+", default=[400, 200, 100, 50])
    parser.add_argument(
        "--hidden", type=int, default=256, help="width of the network, and so the size of its gradients"
    )
    parser.add_argument("--milliseconds", type=float, nargs="+", default=[5, 20], help="delays each way, with netem")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--in-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_rank:
        train_some(options.hidden, options.steps)
        return
    import pytest

    try:
        measure_all(options)
    except pytest.skip.Exception as reason:
        sys.exit(str(reason))


def measure_all(options: argparse.Namespace) -> None:
    """Print a line for the free link, and one for each limit."""
    from hosts import two_hosts

    from ddp_tutorial.scaling import Cluster, Link, buckets, efficiency, ring, step_time

    def line(name: str, link: Link) -> None:
        seconds, _ = measure(hosts, Path(folder), options)
        cluster = Cluster(inside=link, between=link, per_machine=1)
        predicted, _ = step_time(base, buckets(size), lambda part: ring(part, 2, cluster))
        print(f"{name:>12} {seconds * 1e3:9.1f} ms {predicted * 1e3:9.1f} ms", end="")
        print(f" {efficiency(base, seconds):12.0%} {efficiency(base, predicted):12.0%}", flush=True)

    with tempfile.TemporaryDirectory() as folder, two_hosts(Path(folder)) as hosts:
        base, size = measure(hosts, Path(folder), options)
        print(f"{'link':>12} {'measured':>12} {'predicted':>12} {'efficiency':>12} {'predicted':>12}")
        print(f"{'unlimited':>12} {base * 1e3:9.1f} ms   ({size / 1e6:.2f} MB of gradients on two ranks)")
        for megabits in options.megabits:
            for host in hosts:
                host.slow_down(megabits)
            line(f"{megabits:g} Mb/s", Link(latency=0, bandwidth=megabits * 1e6 / 8))
        for milliseconds in options.milliseconds:
            try:
                for host in hosts:
                    host.delay(milliseconds)
            except OSError:
                print("no delays: this kernel has no netem")
                break
            line(f"+ {milliseconds:g} ms", Link(latency=milliseconds / 1e3, bandwidth=float("inf")))


def measure(hosts, folder: Path, options) -> tuple[float, int]:
    """Return the seconds of a step and the bytes of the gradients, from one rank on each host."""
    address = hosts[0].address
    processes = [
        host.start(
            *("torchrun", "--nnodes=2", f"--node-rank={number}", f"--master-addr={address}", "--nproc-per-node=1"),
            *(Path(__file__).resolve(), "--in-rank", f"--hidden={options.hidden}", f"--steps={options.steps}"),
            cwd=folder,
            GLOO_SOCKET_IFNAME="eth0",
        )
        for number, host in enumerate(hosts)
    ]
    try:
        out, err = processes[0].communicate(timeout=120)
        processes[1].communicate(timeout=30)
    finally:
        for host in hosts:
            host.clear()
    if not (found := re.search(r"measured (\{.*\})", out)):
        raise RuntimeError(err[-3000:])
    measured = json.loads(found[1])
    return measured["seconds"], measured["bytes"]


if __name__ == "__main__":
    main()
