"""A machine: Linux namespaces with files, processes, a network address and a boot id of their own.

Its first process is ``boot.sh``. When that ends the kernel ends all others, as by pulling the plug. What is below
``disk`` in its folder stays over a reboot. Everything is started as root from outside, by ``nsenter``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.node.errors import NodeError

BOOT = Path(__file__).resolve().parent / "boot.sh"
CGROUPS = Path("/sys/fs/cgroup")
NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
BOOT_SECONDS = 20.0
END_SECONDS = 10.0  # a program that is told to end; then it is killed
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Network:
    """The network of a cluster: a bridge on the host, a machine's address, the addresses of its pods."""

    number: int
    """Clusters side by side have different ones."""

    @property
    def bridge(self) -> str:
        return f"drb{self.number}"

    @property
    def host(self) -> str:
        return f"10.{200 + self.number}.0.1"

    def address(self, index: int) -> str:
        return f"10.{200 + self.number}.0.{10 + index}"

    def pods(self, index: int) -> str:
        return f"10.{200 + self.number}.{index}.0/24"

    def link(self, index: int) -> str:
        """The host's end of a machine's cable."""
        return f"{self.bridge}-{index}"


@dataclass(frozen=True)
class Machine:
    """``index``: 0 is the control plane, nodes begin with 1. ``folder``: the machine's, below the cluster's."""

    name: str
    index: int
    folder: Path
    network: Network

    # --- on and off -------------------------------------------------------------------------------------------------

    def boot(self) -> None:
        """Start the machine and plug it in. Raises NodeError if it does not come up."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "run").mkdir(exist_ok=True)
        (self.folder / "booted").unlink(missing_ok=True)
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        enter = self._cgroup()
        log = self.folder / "boot.log"
        words = ["unshare", *NAMESPACES, "--fork", "--kill-child", "bash", str(BOOT), str(self.folder), self.name]
        _spawn(f"{enter}; exec {shlex.join(words)}", self._pidfile("machine"), log)
        if self._leaf.exists():
            self._leaf.write_text(str(_number(self._pidfile("machine"))))
        deadline = time.monotonic() + BOOT_SECONDS
        while not (self.folder / "booted").exists():
            if time.monotonic() > deadline or not _alive(self._pidfile("machine")):
                raise NodeError(f"{self.name} does not boot:\n{log.read_text()[-2000:]}")
            time.sleep(POLL_SECONDS)
        self._plug_in()

    def off(self) -> None:
        """End every process at once, as a power loss does."""
        if init := self.init():
            with contextlib.suppress(ProcessLookupError):
                os.kill(init, signal.SIGKILL)
        for pidfile in (self.folder / "run").glob("*.pid"):
            _thaw(pidfile)
        _wait_gone(self._pidfile("machine"))
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        subprocess.run(["ip", "link", "delete", self.network.link(self.index)], check=False, capture_output=True)
        self._remove_cgroups()

    def init(self) -> int | None:
        """The host's number of the machine's first process; None while it is off."""
        return _child(self._pidfile("machine"))

    def path(self, path: str) -> Path:
        """A path of the machine as this process can open it. Sockets can be bound and connected there, too."""
        # An absolute link, as /var/run is, would lead out of the machine.
        there = re.sub(r"^/var/run(?=/|$)", "/run", path)
        return Path(f"/proc/{self._on()}/root{there}")

    def disk(self, path: str) -> Path:
        """A path below a place that stays over a reboot, as ``/tmp``: there while the machine is off, too."""
        return self.folder / "disk" / path.lstrip("/")

    # --- the network ------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return self.network.address(self.index)

    def _plug_in(self) -> None:
        init, link = self.init(), self.network.link(self.index)
        subprocess.run(["ip", "link", "delete", link], check=False, capture_output=True)
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(init))
        ip("link", "set", link, "master", self.network.bridge, "up")
        self.run(["ip", "address", "add", f"{self.address}/24", "dev", "eth0"])
        self.run(["ip", "link", "set", "eth0", "up"])
        self.run(["sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"])

    def route(self, destination: str, via: str) -> None:
        """Send what goes to the destination by that address."""
        self.run(["ip", "route", "replace", destination, "via", via])

    def cut(self) -> None:
        """Pull the network cable: nothing reaches the machine, and it reaches nothing."""
        ip("link", "set", self.network.link(self.index), "down")

    def heal(self) -> None:
        """Plug the cable in again."""
        ip("link", "set", self.network.link(self.index), "up")

    # --- programs ---------------------------------------------------------------------------------------------------

    def enter(self) -> list[str]:
        """The words before a command that is to run in the machine."""
        return ["nsenter", "--target", str(self._on()), *NAMESPACES, "--"]

    def beside(self) -> list[str]:
        """Likewise, but it stays a process of the host, which can signal it."""
        return ["nsenter", "--target", str(self._on()), *(one for one in NAMESPACES if one != "--pid"), "--"]

    def _on(self) -> int:
        init = self.init()
        if init is None:
            raise NodeError(f"{self.name} is off.")
        return init

    def run(self, words: Sequence[str], *, seconds: float = 60.0) -> str:
        """Run a command in the machine; its standard output. Raises NodeError if it fails."""
        done = subprocess.run(
            [*self.enter(), *words],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            raise NodeError(f"{self.name}: {shlex.join(words)} failed: {done.stderr.strip()[-1000:]}")
        return done.stdout

    def start(self, program: str, words: Sequence[str]) -> None:
        """Start a program that goes on; does nothing if it runs."""
        if self.pid(program):
            return
        self.folder.joinpath("run").mkdir(exist_ok=True)
        join = f"echo $$ >{self._leaf}; " if self._leaf.exists() else ""
        _spawn(f"{join}exec {shlex.join([*self.enter(), *words])}", self._pidfile(program), self.log(program))

    def stop(self, program: str, *, by: signal.Signals = signal.SIGTERM) -> None:
        """End a program, by force if it does not end in time."""
        if pid := self.pid(program):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, by)
                self.thaw(program)  # one that is frozen cannot end
            if not _wait_gone(self._pidfile(program)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                _wait_gone(self._pidfile(program))
        self._pidfile(program).unlink(missing_ok=True)

    def freeze(self, program: str) -> None:
        """Let a program hang. Raises NodeError if it does not run."""
        pid = self.pid(program)
        if pid is None:
            raise NodeError(f"{program} does not run on {self.name}.")
        os.kill(pid, signal.SIGSTOP)

    def thaw(self, program: str) -> None:
        """Let a program that hangs go on."""
        _thaw(self._pidfile(program))

    def pid(self, program: str) -> int | None:
        """The host's number of a program; None while it does not run."""
        return _child(self._pidfile(program))

    def log(self, program: str) -> Path:
        return self.folder / f"{program}.log"

    def _pidfile(self, program: str) -> Path:
        return self.folder / "run" / f"{program}.pid"

    # --- control groups ---------------------------------------------------------------------------------------------

    @property
    def _group(self) -> str:
        return f"{self.network.bridge}-{self.name}"

    @property
    def _leaf(self) -> Path:
        """Of version 2: where the machine's programs are, as the kernel moves no process into it from outside."""
        return CGROUPS / self._group / "init/cgroup.procs"

    def _cgroup(self) -> str:
        """Make the machine's control groups; the shell words that put a process there."""
        unified = (CGROUPS / "cgroup.controllers").exists()
        marks = self.folder / "cgroup-v2"
        if unified:
            marks.touch()
            folders = [CGROUPS]
            controllers = (CGROUPS / "cgroup.controllers").read_text().split()
            with contextlib.suppress(OSError):  # where systemd has not done it; kubelet says what it lacks
                (CGROUPS / "cgroup.subtree_control").write_text(" ".join(f"+{one}" for one in controllers))
        else:
            marks.unlink(missing_ok=True)
            folders = [path for path in sorted(CGROUPS.iterdir()) if _is_hierarchy(path)]
            (self.folder / "controllers").write_text("".join(f"{path.name}\n" for path in folders))
        if not folders:
            raise NodeError(f"There are no control groups below {CGROUPS}: nodes need them, version 1 or 2.")
        for path in folders:
            (path / self._group / ("init" if unified else "")).mkdir(parents=True, exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (path / name).exists() and not unified:  # a new group of version 1 has none, and takes no process
                    (path / self._group / name).write_text((path / name).read_text())
        return "; ".join(f"echo $$ >{path / self._group}/cgroup.procs" for path in folders)

    def _remove_cgroups(self) -> None:
        for top in (CGROUPS, *CGROUPS.iterdir()):
            group = top / self._group
            if group.is_dir():
                deadline = time.monotonic() + END_SECONDS
                while not _remove_tree(group) and time.monotonic() < deadline:
                    time.sleep(POLL_SECONDS)  # a process that was killed is there until the kernel is done with it


def _is_hierarchy(path: Path) -> bool:
    """Whether this is a mounted hierarchy of version 1; ``cpu`` is often a link to ``cpu,cpuacct``."""
    return path.is_dir() and not path.is_symlink() and (path / "cgroup.clone_children").exists()


def _remove_tree(group: Path) -> bool:
    for path in sorted(group.rglob("*"), key=lambda one: len(one.parts), reverse=True):
        if path.is_dir():
            with contextlib.suppress(OSError):
                path.rmdir()
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def ip(*words: str) -> None:
    """Change the host's network. Raises NodeError."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NodeError(f"ip {shlex.join(words)} failed: {done.stderr.strip()}")


# --- processes ------------------------------------------------------------------------------------------------------


def _spawn(script: str, pidfile: Path, log: Path) -> None:
    """Run a shell script in a session of its own that nobody waits for; the script's number is in the file."""
    pidfile.unlink(missing_ok=True)
    with open(log, "ab") as output:
        subprocess.run(
            ["setsid", "--fork", "sh", "-c", f"echo $$ >{shlex.quote(str(pidfile))}; {script}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            check=True,
        )
    deadline = time.monotonic() + BOOT_SECONDS
    while _child(pidfile) is None and time.monotonic() < deadline:
        if pidfile.exists() and pidfile.read_text().strip() and not _alive(pidfile):
            return  # it has ended already
        time.sleep(POLL_SECONDS)


def _thaw(pidfile: Path) -> None:
    """Wake a program and its ``nsenter``, which stops with it, and would not see it end."""
    pid = _number(pidfile)
    if pid and _alive(pidfile):
        for one in (_child(pidfile), pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one or pid, signal.SIGCONT)


def _number(pidfile: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(pidfile.read_text())
    return None


def _stat(pid: int) -> tuple[str, str, int] | None:
    """Name, state, parent; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    name, _, rest = text.partition(" (")[2].rpartition(") ")
    state, parent, *_ = rest.split()
    return name, state, int(parent)


def _alive(pidfile: Path) -> bool:
    """Whether the process of the file is there, and is one of ours: numbers are used again."""
    pid = _number(pidfile)
    found = _stat(pid) if pid else None
    return found is not None and found[1] != "Z" and found[0] in ("sh", "unshare", "nsenter")


def _child(pidfile: Path) -> int | None:
    """The one child of ``unshare --fork`` or of ``nsenter --pid``: what was meant to run."""
    pid = _number(pidfile)
    found = _stat(pid) if pid else None
    if found is None or found[0] not in ("unshare", "nsenter"):
        return None
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if stat and stat[2] == pid and stat[1] != "Z":
                return int(entry.name)
    return None


def _wait_gone(pidfile: Path) -> bool:
    deadline = time.monotonic() + END_SECONDS
    while _alive(pidfile):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
