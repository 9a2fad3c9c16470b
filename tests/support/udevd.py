"""Fixtures with a real udevd or without any: one such test of the machine at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drabridge.inventory import event_source
from tests.support.hardware import Loops, loop_devices
from tests.support.waiting import HANG_SECONDS

UDEVD = next(
    (path for path in ("/lib/systemd/systemd-udevd", "/usr/lib/systemd/systemd-udevd") if os.path.exists(path)), ""
)
RUN_UDEV = Path("/run/udev")
OURS = RUN_UDEV / ".drabridge-tests"  # made by these tests: a run that was killed left it behind
LOCK = "/tmp/dra-udevd.lock"  # taken by every test run of this machine around a test about udevd


@contextlib.contextmanager
def machine_lock(seconds: float = 10 * HANG_SECONDS) -> Iterator[None]:
    with open(LOCK, "w") as file:
        end = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    pytest.fail(f"another test run holds {LOCK} for more than {seconds:g} s")
                time.sleep(0.1)
        yield


class Udevd:
    """A systemd-udevd of our own."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        RUN_UDEV.mkdir(exist_ok=True)
        OURS.touch()
        # A process group of its own: its workers are ended with it.
        self._process = subprocess.Popen(
            [UDEVD], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        end = time.monotonic() + HANG_SECONDS
        while not event_source.udevd_listens():
            assert self._process.poll() is None, "systemd-udevd ended at once"
            assert time.monotonic() < end, f"systemd-udevd does not listen after {HANG_SECONDS:g} s"
            time.sleep(0.02)
        # It listens before it hears the kernel's events; it answers a ping from the loop that reads them.
        subprocess.run(["udevadm", "control", "--ping", f"--timeout={HANG_SECONDS:.0f}"], check=True)

    def send(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """As a crash would do it: its socket file stays, and so does its database."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(HANG_SECONDS)
            end = time.monotonic() + HANG_SECONDS
            while living := _living_processes(self._process.pid):  # a worker writes to /run/udev while it lives
                assert time.monotonic() < end, f"udevd's workers live on after {HANG_SECONDS:g} s: {living}"
                time.sleep(0.01)
            self._process = None


def _living_processes(group: int) -> list[int]:
    """The process ids of a group, without those that have ended and only wait for their parent (state Z; proc(5))."""
    living = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            state, _, group_id, *_ = path.read_text().rpartition(")")[2].split()
            if int(group_id) == group and state not in "ZX":
                living.append(int(path.parent.name))
    return living


@pytest.fixture
def no_udevd() -> Iterator[None]:
    with machine_lock():
        if OURS.exists() and not event_source.udevd_listens():
            shutil.rmtree(RUN_UDEV)
        if not event_source.udevd_listens():
            with contextlib.suppress(OSError):
                RUN_UDEV.rmdir()  # an empty directory is nobody's: a container's mount made it
        if event_source.udevd_listens() or RUN_UDEV.exists():
            pytest.skip("a udevd runs on this machine, and this test is about its absence")
        yield


@pytest.fixture
def udevd(no_udevd: None) -> Iterator[Udevd]:
    if os.geteuid() != 0:
        pytest.skip("starting udevd needs root")
    if not UDEVD:
        pytest.skip("there is no systemd-udevd: apt-get install udev")
    daemon = Udevd()
    try:
        yield daemon
    finally:
        daemon.kill()
        shutil.rmtree(RUN_UDEV, ignore_errors=True)


@pytest.fixture
def loop() -> Iterator[Loops]:
    with loop_devices() as made:
        yield made
