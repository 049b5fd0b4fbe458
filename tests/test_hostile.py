"""Launches in surroundings that nobody would choose: a cluster's variables, no names, slow names, no room, no files."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest
from support import environment, python
from test_kernel import Kernel

pytestmark = pytest.mark.faults

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's namespaces")

BASE = """
import json, multiprocessing, os, resource, socket, subprocess, sys, tempfile, time
from pathlib import Path
import torch
import torch.distributed as dist
from ddp_tutorial import LaunchError, Ranks, launch, process_group

def helper_made(timeout=None):
    with process_group(timeout=timeout) as env:
        total = torch.tensor(env.rank + 1)
        dist.all_reduce(total)
        return total.item()

def self_made():
    "As scripts for torchrun do it, from the variables alone."
    dist.init_process_group("gloo")
    total = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total.item()

def fail():
    raise ValueError("on purpose")

def tell(**values):
    print("TOLD " + json.dumps(values), flush=True)
"""


def program(text):
    return BASE + textwrap.dedent(text)


def told(output):
    return json.loads(output.split("TOLD ")[-1].splitlines()[0])


def run(text, folder, timeout=120, **variables):
    """Run a program in a process of its own and return what it told."""
    result = python("-c", program(text), cwd=folder, timeout=timeout, **variables)
    assert result.returncode == 0, result.stdout + result.stderr
    return told(result.stdout)


def run_apart(namespaces, prepare, text, folder, timeout=120):
    """Run a program in namespaces of its own, after ``prepare`` in a shell there; skip where that is not allowed."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare here")
    become_root = ["--map-root-user"] if os.geteuid() else []
    command = ["unshare", *become_root, *namespaces, "sh", "-ec"]
    (folder / "temp").mkdir(exist_ok=True)
    environ = environment(TMPDIR=str(folder / "temp"))
    probe = subprocess.run([*command, prepare], cwd=folder, env=environ, capture_output=True, text=True, timeout=30)
    if probe.returncode:
        pytest.skip(f"not possible here: {probe.stderr.strip().splitlines()[-1:]}")
    script = [f'{prepare}\nexec "$0" -c "$1"', sys.executable, program(text)]
    process = subprocess.Popen(
        [*command, *script],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 0, output + errors
    if "SKIP" in output:
        pytest.skip(output.split("SKIP")[1].strip())
    return told(output)


INHERITED = {
    "RANK": "7",
    "LOCAL_RANK": "7",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "8",
    "GROUP_RANK": "3",
    "ROLE_RANK": "7",
    "MASTER_ADDR": "192.0.2.1",  # an address that nobody may have
    "MASTER_PORT": "1",
    "TORCHELASTIC_RUN_ID": "other",
    "TORCHELASTIC_RESTART_COUNT": "5",
    "TORCHELASTIC_MAX_RESTARTS": "6",
    "TORCHELASTIC_USE_AGENT_STORE": "False",
    "SLURM_JOB_ID": "1",
    "SLURM_NTASKS": "16",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "3",
    "SLURM_STEP_NODELIST": "node[1-4]",
    "SLURM_LAUNCH_NODE_IPADDR": "192.0.2.1",
    "OMPI_COMM_WORLD_RANK": "3",
    "PMI_RANK": "3",
    "USE_LIBUV": "0",
}


def test_a_kernel_that_inherited_everything(tmp_path):
    """A cluster's variables, the usual ports taken, fork as the start method: three launches, one of them failing."""
    text = """
    servers = []
    for port in (29500, 12355):
        try:
            servers.append(socket.create_server(("", port)))
        except OSError:  # somebody else has it, which is as good
            pass
    multiprocessing.set_start_method("fork")
    before = dict(os.environ), sys.path[:], os.getcwd()
    answers = [launch(fn, world_size=2, device="cpu", timeout=30) for fn in (helper_made, self_made)]
    try:
        launch(fail, world_size=2, device="cpu")
    except LaunchError as error:
        answers.append(error.failures[0].what)
    tell(answers=answers, same=before == (dict(os.environ), sys.path, os.getcwd()),
         method=multiprocessing.get_start_method())
    """
    error_file = tmp_path / "of another launcher.json"
    told = run(text, tmp_path, TORCHELASTIC_ERROR_FILE=str(error_file), **INHERITED)
    assert told["answers"] == [[3, 3], [3, 3], "raised ValueError: on purpose"]
    assert told["same"], "the variables, the path and the folder are those of before"
    assert told["method"] == "fork", "still"
    assert not error_file.exists()


def test_after_a_launch_the_start_method_can_still_be_set(tmp_path):
    text = """
    launch(abs, (-1,), world_size=1, device="cpu")
    multiprocessing.set_start_method("spawn")
    tell(method=multiprocessing.get_start_method())
    """
    assert run(text, tmp_path)["method"] == "spawn"


NAMES = """
def slowest(fn, times=5):
    seconds = []
    for _ in range(times):
        began = time.monotonic()
        assert ranks.run(fn) == [3, 3]
        seconds.append(time.monotonic() - began)
    return max(seconds)

with Ranks(world_size=2, device="cpu", timeout=30) as ranks:
    ranks.run(os.getpid)
    tell(host=socket.gethostname(), helper_made=slowest(helper_made), self_made=slowest(self_made, 1))
"""


@linux
def test_a_host_name_that_does_not_resolve(tmp_path):
    told = run_apart(["--uts"], "hostname no-such-host.invalid", NAMES, tmp_path)
    assert told["host"] == "no-such-host.invalid"
    assert told["helper_made"] < 4


# A server for names that takes every question and answers none: a look-up ends after 5 s.
SILENT_SERVER = """
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
began = time.monotonic()
try:
    socket.getaddrinfo("no-such-host.invalid", 80)
except OSError:
    pass
if time.monotonic() - began < 4:
    print("SKIP names are not looked up with the resolver of /etc/resolv.conf here")
    sys.exit()
"""


@linux
def test_a_resolver_that_takes_five_seconds(tmp_path):
    """In a network of its own, in which there is nothing but the loopback."""
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:5 attempts:1\n")
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n")
    (tmp_path / "nsswitch.conf").write_text("hosts: files dns\n")
    prepare = "hostname no-such-host.invalid; ip link set lo up\n" + "\n".join(
        f"mount --bind {tmp_path / name} $(readlink -f /etc/{name})"
        for name in ("resolv.conf", "hosts", "nsswitch.conf")
    )
    told = run_apart(["--uts", "--net", "--mount"], prepare, SILENT_SERVER + NAMES, tmp_path)
    assert told["helper_made"] < 4, "nobody asked for a name"
    assert told["self_made"] < 30, "a script that makes its own group may ask, and gets through"


def test_a_kernel_in_another_folder_with_a_file_of_its_own_and_fork(tmp_path):
    kernel = Kernel(tmp_path)
    try:
        cells = [
            "import multiprocessing\nmultiprocessing.set_start_method('fork', force=True)",
            "%%writefile mine.py\ndef answer():\n    return 42",
            "import mine\n__file__ = 'a notebook.ipynb'\nos.mkdir('below')",
            "%cd below",
            "assert launch(mine.answer, world_size=2, device='cpu') == [42, 42]",
            "assert ranks.run(lambda: (os.getcwd(), mine.answer())) == [(os.getcwd(), 42)] * 2",
            "assert os.path.basename(os.getcwd()) == 'below' and __file__ == 'a notebook.ipynb'",
            "assert multiprocessing.get_start_method() == 'fork'",
            "ranks.close()",
        ]
        for cell in cells:
            answer = kernel.run(cell)
            assert answer["status"] == "ok", (cell, answer)
    finally:
        kernel.client.stop_channels()
        kernel.manager.shutdown_kernel(now=True)


SEVERAL = """
print("begin", flush=True)
sys.stdin.readline()
answers = [launch(self_made, world_size=2, device="cpu", timeout=60)]
with Ranks(world_size=2, device="cpu", timeout=60) as ranks:
    for number in range(10):
        answers.append(ranks.run(self_made if number % 2 else helper_made))
tell(answers=answers)
"""


def test_several_launches_at_once_from_two_processes(tmp_path):
    """Each launch has a port, a store and a folder of its own."""
    command = [sys.executable, "-c", program(SEVERAL)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    (tmp_path / "temp").mkdir()
    environ = environment(TMPDIR=str(tmp_path / "temp"))
    both = [subprocess.Popen(command, cwd=tmp_path, env=environ, text=True, **pipes) for _ in range(2)]
    try:
        for process in both:
            assert process.stdout.readline() == "begin\n", process.stderr.read()
        for process in both:
            process.stdin.write("\n")
            process.stdin.flush()
        for process in both:
            output, errors = process.communicate(timeout=150)
            assert process.returncode == 0, errors
            assert told(output)["answers"] == [[3, 3]] * 11
    finally:
        for process in both:
            process.kill()
    assert not list((tmp_path / "temp").iterdir())


def test_two_threads_of_one_process_can_launch_at_once(tmp_path):
    text = """
    import threading
    __file__ = "a notebook.ipynb"
    before, barrier, answers = sys.path[:], threading.Barrier(2), []
    def one():
        barrier.wait()
        answers.append(launch(helper_made, world_size=2, device="cpu", timeout=60))
    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tell(answers=answers, file=__file__, same=before == sys.path)
    """
    assert run(text, tmp_path) == {"answers": [[3, 3], [3, 3]], "file": "a notebook.ipynb", "same": True}


@pytest.mark.skipif(os.name != "posix", reason="sets a limit that only POSIX has")
def test_a_limit_of_128_open_files(tmp_path):
    """Tensors that torch's own queues carry take an open file each."""
    text = """
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    many = lambda: [torch.tensor(float(number)) for number in range(500)]
    assert [len(result) for result in launch(many, world_size=2, device="cpu")] == [500, 500]
    with Ranks(world_size=2, device="cpu", timeout=30) as ranks:
        answers = [ranks.run(fn) for _ in range(15) for fn in (helper_made, self_made)]
        tensors = [result[499].item() for _ in range(3) for result in ranks.run(many)]
        try:
            ranks.run(fail)
        except LaunchError as error:
            failure = str(error).splitlines()[0]
        answers.append(ranks.run(helper_made))
    tell(right=answers == [[3, 3]] * 31, tensors=set(tensors) == {499.0}, failure=failure)
    """
    told = run(text, tmp_path)
    assert told["right"] and told["tensors"]
    assert told["failure"].endswith("raised ValueError: on purpose")


SMALL = "mount -t tmpfs -o size=192k none temp"
FILL = """
assert tempfile.gettempdir() == os.environ["TMPDIR"]
folder = Path(tempfile.gettempdir())

def error_of(call):
    try:
        return call() and None
    except (OSError, LaunchError) as error:
        return str(error).splitlines()[0]

def fill():
    with open(folder / "filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass

def left():
    return sorted(path.name for path in folder.iterdir() if path.name != "filler")

def try_to_launch():
    return launch(helper_made, world_size=2, device="cpu", timeout=5)
"""


@linux
def test_a_full_folder_of_temporary_files_is_named_before_any_process_starts(tmp_path):
    text = """
    fill()
    full = error_of(try_to_launch), left()
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    readonly = error_of(try_to_launch), left()
    tell(full=full, readonly=readonly)
    """
    told = run_apart(["--mount"], SMALL, FILL + textwrap.dedent(text), tmp_path)
    for error, left in told.values():
        assert error.startswith("no room for the ranks' files") and "set TMPDIR" in error
        assert left == []
    assert "No space left" in told["full"][0] and "Read-only" in told["readonly"][0]


@linux
def test_a_folder_of_temporary_files_that_fills_up_while_ranks_run(tmp_path):
    text = """
    with Ranks(world_size=1, device="cpu", timeout=5) as ranks:
        ranks.run(os.getpid)
        fill()
        error = error_of(lambda: ranks.run(lambda: print("x" * 5000)))
    tell(error=error, left=left())
    """
    told = run_apart(["--mount"], SMALL, FILL + textwrap.dedent(text), tmp_path)
    assert told["error"].startswith("rank 0 ") and "No space left on device" in told["error"]
    assert told["left"] == []
