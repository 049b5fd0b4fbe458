"""Hosts that a test makes itself: two machines on one, as far as their processes can see, and a cable between them.

Each has a name, an address, processes, a disk and a network of its own (Linux namespaces). They live as long as the
test that made them: however that one ends, the kernel removes them and everything that runs in them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from support import environment, wait_until

NAMESPACES = ("--net", "--uts", "--mount", "--pid")
# The first process of a host ends, and the host with it, when the pipe from the test is closed.
FIRST = """
hostname "$1" && mount --bind "$2" /etc/hosts && mount --bind "$3" "$4" && ip link set lo up && echo up
cat > /dev/null
"""


class Host:
    """A machine called ``name`` at ``address`` with ``folder/disk`` on a disk of its own: outside, ``self.disk``."""

    def __init__(self, name: str, address: str, folder: Path) -> None:
        self.name, self.address = name, address
        self.disk = folder / f"disk-{name}"
        for path in (self.disk, folder / "disk"):
            path.mkdir(exist_ok=True)
        arguments = (name, folder / "hosts", self.disk, folder / "disk")
        self._unshare = subprocess.Popen(
            ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc", "bash", "-c", FIRST, "host", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if self._unshare.stdout.readline() != "up\n":
            raise OSError(f"this machine makes no namespaces: {self._unshare.stderr.readline().strip()}")
        self.pid = int(Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children").read_text())

    def close(self) -> None:
        """End every process of the host, and with them the host."""
        self._unshare.stdin.close()
        self._unshare.wait(timeout=10)
        for pipe in (self._unshare.stdout, self._unshare.stderr):
            pipe.close()

    def start(self, *command, cwd: Path, log: Path | None = None, **variables: str) -> subprocess.Popen:
        """Start ``command`` on the host, its output going to ``log``, or to pipes where that is None."""
        enter = ["nsenter", f"--target={self.pid}", *NAMESPACES, "env", f"--chdir={cwd}"]
        bin_folder = os.path.dirname(sys.executable)
        with open(log, "a") if log else nullcontext(subprocess.PIPE) as out:
            return subprocess.Popen(
                [*enter, *map(str, command)],
                env=environment(**{"PATH": f"{bin_folder}:{os.environ['PATH']}", **variables}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT if log else subprocess.PIPE,
                text=True,
            )

    def run(self, *command, cwd: Path, timeout: float = 60, **variables: str) -> subprocess.CompletedProcess:
        """Run ``command`` on the host and return what it printed."""
        with self.start(*command, cwd=cwd, **variables) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                self.clear()
                raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def processes(self) -> dict[int, str]:
        """Return what runs on the host, by process id there: all but what keeps the host up."""
        found = {}
        for folder in Path(f"/proc/{self.pid}/root/proc").glob("[0-9]*"):
            try:
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:  # it has just ended
                continue
            if state != "Z" and folder.name != "1" and command != "cat":
                found[int(folder.name)] = command
        return found

    def clear(self, seconds: float = 10) -> None:
        """Kill whatever runs on the host."""
        if running := self.processes():
            kill = ["kill", "-KILL", *map(str, running)]
            subprocess.run(["nsenter", f"--target={self.pid}", "--pid", *kill], stderr=subprocess.DEVNULL)
            wait_until(lambda: not self.processes(), seconds)

    def ip(self, *arguments) -> None:
        self.network("ip", *arguments)

    def network(self, *command) -> None:
        """Run an administrator's ``command`` on the host's network. Raises ``OSError`` with what it says."""
        result = subprocess.run(
            ["nsenter", f"--target={self.pid}", "--net", *map(str, command)], capture_output=True, text=True, timeout=10
        )
        if result.returncode:
            raise OSError(f"{' '.join(map(str, command))}: {result.stderr.strip()}")

    def slow_down(self, megabits: float) -> None:
        """Let no more than ``megabits`` a second leave the host."""
        self.network(*f"tc qdisc replace dev eth0 root tbf rate {megabits}mbit burst 64kb latency 1s".split())

    def delay(self, milliseconds: float) -> None:
        """Let all that leaves the host leave later. Raises ``OSError`` where the kernel has no ``netem``."""
        self.network(*f"tc qdisc replace dev eth0 root netem delay {milliseconds}ms".split())


@contextmanager
def two_hosts(folder: Path, names: tuple[str, str] = ("n0", "n1"), aliases: str = "") -> Iterator[tuple[Host, Host]]:
    """Yield two hosts, at 10.77.0.1 and .2, that know each other's ``names``. Skips the test where it cannot.

    ``aliases`` is a domain under which they are known as well: ``ddp`` makes ``n0.ddp``.
    """
    if sys.platform != "linux" or os.geteuid():
        pytest.skip("hosts of its own need Linux and root")
    for program in ("unshare", "nsenter", "ip", "tc"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed (packages util-linux and iproute2)")
    addresses = ("10.77.0.1", "10.77.0.2")
    lines = [f"{address} {f'{name}.{aliases} ' if aliases else ''}{name}\n" for address, name in zip(addresses, names)]
    (folder / "hosts").write_text("".join(["127.0.0.1 localhost\n", *lines]))
    hosts: list[Host] = []
    try:
        try:
            for name, address in zip(names, addresses):
                hosts.append(Host(name, address, folder))
            hosts[0].ip("link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", hosts[1].pid)
            for host in hosts:
                host.ip("address", "add", f"{host.address}/24", "dev", "eth0")
                host.ip("link", "set", "eth0", "up")
        except OSError as error:
            pytest.skip(str(error))
        yield hosts[0], hosts[1]
    finally:
        for host in hosts:
            host.close()
