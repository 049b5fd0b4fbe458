"""The scripts for Slurm, submitted to a real one: two nodes, each a host of its own, that the test starts and ends."""

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hosts import two_hosts
from support import PACKAGE, TORCHRUN, python, wait_until

from ddp_tutorial.history import read_history

pytestmark = pytest.mark.cluster

SCRIPTS = ["torchrun.sbatch", "srun.sbatch"]
TRAINING = ("--epochs", "10", "--batch-size", "16", "--checkpoint-every", "20", "--seed", "3")
ENDLESS = ("--epochs", "100000", "--batch-size", "1", "--checkpoint-every", "1000000")
PER_EPOCH = 719  # steps: the only ones at which the endless training saves unasked, some seconds apart
STEPS = 10 * 45

CONFIGURATION = """
ClusterName=tutorial
SlurmctldHost=n0
SlurmUser=root
AuthType=auth/munge
# cred_expire: a requeued job waits that long before it starts again; Slurm's own value is 120 s.
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,bf_interval=5,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=2
GresTypes=gpu
NodeName=n0 NodeAddr=10.77.0.1 CPUs=2 Gres=gpu:2
NodeName=n1 NodeAddr=10.77.0.2 CPUs=2 Gres=gpu:2
PartitionName=train Nodes=n[0-1] Default=YES PriorityTier=1 PreemptMode=REQUEUE
PartitionName=urgent Nodes=n[0-1] PriorityTier=10 PreemptMode=OFF
"""


class Slurm:
    """A cluster of two nodes, and a user who submits from the first of them, in ``folder``."""

    def __init__(self, folder: Path, hosts) -> None:
        self.folder, self.hosts = folder, hosts
        for name in ("munge", "state"):
            (folder / name).mkdir()
        key = folder / "munge" / "key"
        key.write_bytes(bytes(range(128)))
        key.chmod(0o600)
        for number in (0, 1):  # what Slurm takes for the device files of GPUs
            (folder / f"gpu{number}").touch()
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-1]\n")
        configuration = folder / "slurm.conf"
        configuration.write_text(CONFIGURATION.format(folder=folder))
        self.variables = {"SLURM_CONF": str(configuration), "USER": "root"}
        options = [f"--{name}={folder}/munge/{name}" for name in ("socket", "log-file", "pid-file", "seed-file")]
        self._daemon(0, "munged", "--foreground", "--force", f"--key-file={key}", *options)
        assert wait_until(Path(folder / "munge" / "socket").exists), self.said("munged")
        self._daemon(0, "slurmctld", "-D")
        for number in (0, 1):
            self._daemon(number, "slurmd", "-D", "-N", f"n{number}")
        assert wait_until(lambda: self.ask("sinfo", "-h", "-o", "%T %D") == "idle 2", 30), self.said()

    def _daemon(self, number: int, program: str, *arguments: str) -> None:
        log = self.folder / f"{program}-{number}.log"
        self.hosts[number].start(program, *arguments, cwd=self.folder, log=log, **self.variables)

    def said(self, program: str = "") -> str:
        """Return what the daemons wrote."""
        return "\n".join(f"{file.name}:\n{file.read_text()[-3000:]}" for file in self.folder.glob(f"{program}*.log"))

    def ask(self, *command, check: bool = False, **variables: str) -> str:
        result = self.hosts[0].run(*command, cwd=self.folder, timeout=30, **self.variables, **variables)
        assert not check or result.returncode == 0, result.stderr
        return result.stdout.strip()

    def submit(self, script: str, *arguments: str, options=(), **variables: str) -> "Job":
        """Submit ``script`` as it is: partition, time and CPUs are options of ``sbatch``."""
        script = PACKAGE / "cluster" / script
        number = self.ask("sbatch", "--parsable", *options, script, *arguments, check=True, **variables)
        return Job(self, int(number))

    def something_urgent(self) -> None:
        """Submit a job that takes both nodes from whoever has them, for a second."""
        self.ask(
            "sbatch", "-p", "urgent", "-N", "2", "--exclusive", "-o", "urgent.log", "--wrap", "sleep 1", check=True
        )


class Job:
    def __init__(self, slurm: Slurm, number: int) -> None:
        self.slurm, self.number = slurm, number
        self.checkpoints = slurm.folder / "checkpoints" / str(number)

    def __getitem__(self, name: str) -> str:
        """Return what ``scontrol`` says of the job: ``job["JobState"]``."""
        time.sleep(0.2)  # whoever asks in a loop shall not take the cores from the job
        found = re.search(rf"\b{name}=(\S+)", self.slurm.ask("scontrol", "show", "job", self.number))
        return found[1] if found else ""

    def log(self) -> str:
        file = self.slurm.folder / f"ddp-{self.number}.log"
        return file.read_text() if file.exists() else ""

    def saved(self) -> list[int]:
        """Return the steps of the checkpoints that are there."""
        return sorted(int(file.stem.split("-")[1]) for file in self.checkpoints.glob("step-*.pt"))

    def wait(self, condition, seconds: float = 60) -> None:
        assert wait_until(condition, seconds), f"{self.log()[-3000:]}\n{self['JobState']}\n{self.slurm.said()}"

    def wait_for(self, state: str, seconds: float = 60) -> None:
        self.wait(lambda: self["JobState"] == state, seconds)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    for program in ("munged", "slurmctld", "slurmd", "sbatch"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed (packages slurm-wlm and munge)")
    folder = tmp_path_factory.mktemp("slurm")
    with two_hosts(folder) as hosts:
        yield Slurm(folder, hosts)


@pytest.fixture(scope="module")
def straight(data, tmp_path_factory):
    """The history of the same training, uninterrupted, by two ranks of one machine."""
    folder = tmp_path_factory.mktemp("straight")
    result = python(*TORCHRUN, "-m", "ddp_tutorial", *TRAINING, "--data", data, "--out", "out", cwd=folder)
    assert result.returncode == 0, result.stderr
    return read_history(folder / "out" / "history.jsonl")


def losses(history, count=None):
    return [(step["train_loss"], step["train_loss_by_rank"]) for step in history["steps"][:count]]


def evaluations(history):
    return [(epoch["eval_loss"], epoch["eval_accuracy"]) for epoch in history["epochs"]]


def small(script: str) -> list[str]:
    """One rank a node, whichever script it is."""
    return ["--time=10", "--cpus-per-task=1", *(["--ntasks-per-node=1"] if script == "srun.sbatch" else [])]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_preempted_job_goes_on_by_itself_and_its_history_is_that_of_an_uninterrupted_one(script, slurm, straight):
    job = slurm.submit(script, *TRAINING, options=small(script), DATA=str(slurm.folder / "disk" / script))
    job.wait(lambda: job.saved() and job.saved()[-1] >= 40)
    slurm.something_urgent()
    job.wait(lambda: job["Restarts"] == "1")
    reached = job.saved()[-1]
    assert reached < STEPS, "it was over before it was preempted"
    job.wait_for("COMPLETED", 120)
    history = read_history(job.checkpoints / "history.jsonl")
    assert len(history["resumed"]) == 1 and history["resumed"][0] >= reached, job.log()
    assert f"going on from checkpoints/{job.number}/step-" in job.log()
    assert losses(history) == losses(straight)
    assert evaluations(history) == evaluations(straight)
    for host in slurm.hosts:  # each prepared the data on its own disk
        assert [file.name for file in (host.disk / script).iterdir()] == ["digits.pt"]
    assert (job["NumNodes"], job["Partition"]) == ("2", "train")


def test_a_job_told_of_its_limit_saves_at_once_and_requeues_itself(slurm):
    script = "torchrun.sbatch"
    job = slurm.submit(script, *ENDLESS, options=small(script), DATA=str(slurm.folder / "disk" / "limit"))
    try:
        job.wait(lambda: "epoch 1:" in job.log(), 90)
        before = job.saved()
        slurm.ask("scancel", "--batch", "--signal=USR1", job.number, check=True)  # what Slurm sends before the limit
        job.wait(lambda: job["Restarts"] == "1")
        at_signal = [step for step in job.saved() if step not in before and step % PER_EPOCH]
        assert at_signal, f"{before} before the signal, {job.saved()} after it"
        job.wait(lambda: f"step-{at_signal[-1]:08d}.pt: step {at_signal[-1]}" in job.log(), 90)
    finally:
        slurm.ask("scancel", job.number)
    job.wait_for("CANCELLED")


def test_slurm_tells_a_job_of_its_limit_by_itself(slurm):
    options = [*small("srun.sbatch")[1:], "--time=1", "--signal=B:USR1@10"]
    job = slurm.submit("srun.sbatch", *ENDLESS, options=options, DATA=str(slurm.folder / "disk" / "limit"))
    try:
        job.wait(lambda: job["Restarts"] == "1", 75)
        assert (job.checkpoints / "limit").exists(), "it ran into its limit without having been told"
        assert "DUE TO TIME LIMIT" not in job.log()
        job.wait(lambda: f"going on from checkpoints/{job.number}/step-" in job.log(), 60)
    finally:
        slurm.ask("scancel", job.number)
    job.wait_for("CANCELLED")


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_job_whose_training_fails_fails_and_is_not_tried_for_ever(script, slurm):
    job = slurm.submit(script, "--dataset", "cifar", options=small(script))
    job.wait_for("FAILED", 60)
    assert job["Restarts"] == "0"
    assert "dataset must be 'digits' or 'mnist', not 'cifar'" in job.log()


PLACE = """
import os, socket, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")
sys.stdout.write(" ".join(["place", *(os.environ[name] for name in names), socket.gethostname() + "\\n"]))
"""


@pytest.mark.parametrize("kind", ["CPUs", "GPUs"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_four_ranks_on_two_nodes_know_their_place(script, kind, slurm):
    """A program in place of the training says where it is. The GPUs are only names here: Slurm counts them."""
    package = slurm.folder / "place" / "ddp_tutorial"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__main__.py").write_text(PLACE)
    options = ["--gpus-per-node=2", "--cpus-per-task=1"] if kind == "GPUs" else []
    job = slurm.submit(script, options=["--time=10", *options], PYTHONPATH=str(package.parent))
    job.wait_for("COMPLETED")
    places = sorted(line.split(maxsplit=1)[1] for line in job.log().splitlines() if line.startswith("place "))
    assert places == ["0 0 4 n0 1 n0", "1 1 4 n0 1 n0", "2 0 4 n0 1 n1", "3 1 4 n0 1 n1"], job.log()


def test_nothing_runs_on_a_node_whose_jobs_are_over(slurm):
    daemons = re.compile("munged|slurmctld|slurmd |: slurmscriptd")

    def others():
        running = [command for host in slurm.hosts for command in host.processes().values()]
        return [command for command in running if not daemons.match(command)]

    assert wait_until(lambda: not others(), 15), others()


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_plain_bash(script):
    assert subprocess.run(["bash", "-n", PACKAGE / "cluster" / script]).returncode == 0
