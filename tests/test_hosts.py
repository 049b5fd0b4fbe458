"""Two hosts with a network between them: the losses of one machine, a cut link, disks that are shared or not."""

import json
import re

import pytest
from hosts import two_hosts
from support import TORCHRUN, all_gone, python, wait_until

from ddp_tutorial.history import read_history

pytestmark = pytest.mark.cluster

TRAINING = ("--epochs", "8", "--batch-size", "16", "--seed", "5", "--checkpoint-every", "20")
STEPS = 8 * 45  # with two ranks


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with two_hosts(tmp_path_factory.mktemp("hosts")) as both:
        yield both


@pytest.fixture(autouse=True)
def tidy(hosts):
    """Leave no process and no cut link to the next test."""
    yield
    for host in hosts:
        host.clear()
        host.ip("link", "set", "eth0", "up")


def on_one_machine(ranks, training, data, folder):
    launcher = [*TORCHRUN[:-1], f"--nproc-per-node={ranks}"]
    result = python(*launcher, "-m", "ddp_tutorial", *training, "--data", data, "--out", "out", cwd=folder)
    assert result.returncode == 0, result.stderr
    return read_history(folder / "out" / "history.jsonl")


@pytest.fixture(scope="module")
def straight(data, tmp_path_factory):
    """The history of the training, uninterrupted, by two ranks of one machine."""
    return on_one_machine(2, TRAINING, data, tmp_path_factory.mktemp("straight"))


class Run:
    """``torchrun`` on both hosts, each with its own arguments, and what they said."""

    def __init__(self, hosts, folder, *arguments, ranks=1, first=0, timeout=60, **variables):
        self.hosts = hosts
        self.logs = [folder / f"{host.name}.log" for host in hosts]
        self.processes = []
        for number, host in enumerate(hosts):
            command = ["torchrun", "--nnodes=2", f"--nproc-per-node={ranks}", *self.rendezvous(number, first)]
            variables |= {"GLOO_SOCKET_IFNAME": "eth0", "DDP_TUTORIAL_TIMEOUT": str(timeout)}
            log = self.logs[number]
            self.processes.append(host.start(*command, *arguments, cwd=folder, log=log, **variables))

    def rendezvous(self, number, first):
        """Where the ranks meet, by address: as where no name of a host is known."""
        host = self.hosts[first]
        return [
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={host.address}:29400",
            f"--rdzv-conf=is_host={int(number == first)}",
            f"--local-addr={self.hosts[number].address}",
        ]

    def wait(self, seconds=90):
        """Return the exit codes."""
        return [process.wait(timeout=seconds) for process in self.processes]

    def said(self):
        return "\n".join(log.read_text() for log in self.logs)


class ByNumber(Run):
    """The other way: every node is told its number, and where number 0 is."""

    def rendezvous(self, number, first):
        node = (number - first) % 2
        return [f"--node-rank={node}", f"--master-addr={self.hosts[first].address}", "--master-port=29500"]


def losses(history):
    return [(step["train_loss"], step["train_loss_by_rank"]) for step in history["steps"]]


def evaluations(history):
    return [(epoch["eval_loss"], epoch["eval_accuracy"]) for epoch in history["epochs"]]


def steps_saved(folder):
    return sorted(int(file.stem.split("-")[1]) for file in folder.glob("step-*.pt"))


@pytest.mark.parametrize(("way", "ranks"), [(Run, 1), (ByNumber, 2)])
def test_two_hosts_have_the_losses_of_one_machine(way, ranks, hosts, data, straight, tmp_path):
    training = (*TRAINING, "--epochs", "3")
    run = way(hosts, tmp_path, "-m", "ddp_tutorial", *training, "--data", data, "--out", "across", ranks=ranks)
    assert run.wait() == [0, 0], run.said()
    history = read_history(tmp_path / "across" / "history.jsonl")
    alone = straight if ranks == 1 else on_one_machine(2 * ranks, training, data, tmp_path)
    assert [len(step["train_loss_by_rank"]) for step in history["steps"]] == [2 * ranks] * (3 * -(-45 // ranks))
    assert losses(history) == losses(alone)[: len(history["steps"])]
    assert evaluations(history) == evaluations(alone)[:3]


PLACES = """
import json, os, sys
from pathlib import Path
from ddp_tutorial import Config, data, process_group, train

prepare = data.prepare_digits

def noted(root):
    with open(root / "prepared-by", "a") as file:
        file.write(os.environ["RANK"])
    return prepare(root)

data.prepare_digits = noted
train(Config(data=sys.argv[1], epochs=1))
with process_group() as env:
    place = {"rank": env.rank, "local_rank": env.local_rank, "world_size": env.world_size, "host": os.uname().nodename}
    print(json.dumps(place), flush=True)
"""


def test_local_ranks_start_anew_on_each_host_and_each_prepares_its_data_once(hosts, tmp_path):
    (tmp_path / "places.py").write_text(PLACES)
    folder = hosts[0].disk.parent / "disk" / "once"  # on both hosts, on the disk of each
    run = Run(hosts, tmp_path, "places.py", folder, ranks=2)
    assert run.wait() == [0, 0], run.said()
    places = [json.loads(line) for line in re.findall(r'\{"rank".*?\}', run.said())]
    order = sorted(places, key=lambda place: place["rank"])
    assert [(place["rank"], place["local_rank"]) for place in order] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert [place["host"] for place in order] == ["n0", "n0", "n1", "n1"]
    assert {place["world_size"] for place in order} == {4}
    assert [(host.disk / "once" / "prepared-by").read_text() for host in hosts] == ["0", "2"]


def interrupt(run, folder, how, after=40):
    """Do ``how`` in the middle of ``run``, and return the last step saved in ``folder`` when all of it has ended."""
    assert wait_until(lambda: max(steps_saved(folder), default=0) >= after, 60), run.said()
    how()
    assert 0 not in run.wait(), run.said()
    reached = steps_saved(folder)[-1]
    assert reached < STEPS, "it was over before it was interrupted"
    return reached


def running(hosts):
    return [command for host in hosts for command in host.processes().values()]


def timed_out(run):
    return all("Timed out waiting 5000ms" in log.read_text() for log in run.logs)


def test_a_cut_link_ends_both_sides_with_a_reason_and_the_run_goes_on_once_it_is_back(hosts, data, straight, tmp_path):
    training = ("-m", "ddp_tutorial", *TRAINING, "--data", data, "--checkpoint", "run")
    run = ByNumber(hosts, tmp_path, *training, timeout=5)
    reached = interrupt(run, tmp_path / "run", lambda: hosts[1].ip("link", "set", "eth0", "down"))
    assert timed_out(run), run.said()
    assert [f"rank      : {rank} (local_rank: 0)" in log.read_text() for rank, log in enumerate(run.logs)] == [True] * 2
    assert running(hosts) == []
    hosts[1].ip("link", "set", "eth0", "up")
    run = ByNumber(hosts, tmp_path, *training)
    assert run.wait() == [0, 0], run.said()
    assert f"going on from run/step-{reached:08d}.pt" in run.said()
    history = read_history(tmp_path / "run" / "history.jsonl")
    assert history["resumed"] == [reached]
    assert losses(history) == losses(straight)
    assert evaluations(history) == evaluations(straight)


def test_with_the_c10d_rendezvous_the_ranks_end_in_time_too(hosts, data, tmp_path):
    """But ``torchrun`` on the side without the store asks for it once a second, and one of these calls does not return
    before the link is back or Linux gives the connection up, which takes it a quarter of an hour."""

    def cut():
        hosts[1].ip("link", "set", "eth0", "down")
        assert wait_until(lambda: all("torchrun" in command for command in running(hosts)), 30), running(hosts)
        assert timed_out(run), run.said()
        hosts[1].ip("link", "set", "eth0", "up")

    run = Run(hosts, tmp_path, "-m", "ddp_tutorial", *TRAINING, "--data", data, "--checkpoint", "run", timeout=5)
    interrupt(run, tmp_path / "run", cut)
    assert running(hosts) == []


def test_where_disks_are_not_shared_a_run_goes_on_from_the_newest_checkpoint_of_any_host(
    hosts, data, straight, tmp_path
):
    """Rank 0 is on the first host, then on the second, which has no file yet, then on the first, which has old ones."""
    folder = hosts[0].disk.parent / "disk" / "run"  # on both hosts, on the disk of each
    outside = [host.disk / "run" for host in hosts]
    training = ("-m", "ddp_tutorial", *TRAINING, "--data", data, "--checkpoint", folder)
    one = interrupt(ByNumber(hosts, tmp_path, *training), outside[0], hosts[0].clear)
    assert not steps_saved(outside[1]), "rank 0 alone saves"
    run = ByNumber(hosts, tmp_path, *training, first=1)
    two = interrupt(run, outside[1], hosts[1].clear, one + 40)
    assert f"going on from {folder}/step-{one:08d}.pt" in run.said()
    run = ByNumber(hosts, tmp_path, *training)
    assert run.wait() == [0, 0], run.said()
    assert f"going on from {folder}/step-{two:08d}.pt" in run.said()
    history = read_history(outside[0] / "history.jsonl")
    assert history["resumed"] == [one, two]
    assert losses(history) == losses(straight)


def test_nothing_is_left_of_a_host(tmp_path):
    with two_hosts(tmp_path) as (one, other):
        sleeping = one.start("sleep", "600", cwd=tmp_path)
        assert wait_until(lambda: "sleep 600" in one.processes().values())
        pids = [one.pid, other.pid]
    assert sleeping.wait(timeout=5) != 0
    assert all_gone(pids)
