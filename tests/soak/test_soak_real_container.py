"""The program of the soak's containers, run by this machine's shell: two that have one device are always seen."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.soak.real import judge
from tests.soak.real.container import BROKEN, JOURNAL, NOTHING, TAKEN, program
from tests.support.waiting import HANG_SECONDS

SECONDS = 600


@dataclass
class Node:
    """Containers as processes; each sees nodes of its own devices."""

    root: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def locks(self) -> Path:
        return self.root / "locks"

    def start(
        self,
        pod: str,
        *devices: str,
        shared: str = "",
        stubborn: bool = False,
        seconds: int = SECONDS,
        path: str | None = None,
    ) -> subprocess.Popen[str]:
        nodes = self.root / pod
        nodes.mkdir()
        for device in devices:
            (nodes / f"soak-{device}").touch()
        script = program(seconds, shared=shared, stubborn=stubborn, locks=str(self.locks), devices=str(nodes / "soak-"))
        environment = {**os.environ, "POD": pod, "POD_UID": f"{pod}-uid"}
        if path is not None:
            environment["PATH"] = path
        shell = shutil.which("sh") or "sh"
        process = subprocess.Popen([shell, "-c", script], env=environment, text=True, start_new_session=True)
        self.started.append(process)
        return process

    def code(self, *arguments: str, shared: str = "", path: str | None = None) -> int:
        return self.start(*arguments, shared=shared, path=path).wait(HANG_SECONDS)

    def holds(self, pod: str, *devices: str, shared: str = "", stubborn: bool = False) -> subprocess.Popen[str]:
        """Started, and has its locks."""
        process = self.start(pod, *devices, shared=shared, stubborn=stubborn)
        while {line.device for line in self.said(pod) if line.verb == "has"} != set(devices):
            with contextlib.suppress(subprocess.TimeoutExpired):
                raise AssertionError(f"{pod} ended with {process.wait(0.05)}: {self.said(pod)}")
        return process

    def said(self, pod: str) -> list[judge.Line]:
        with contextlib.suppress(FileNotFoundError):
            return [line for line in judge.parse((self.locks / JOURNAL).read_text()) if line.pod == pod]
        return []

    def verbs(self, pod: str) -> list[tuple[str, str]]:
        return [(line.verb, line.device) for line in self.said(pod)]

    def close(self) -> None:
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait(HANG_SECONDS)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    made.locks.mkdir()
    try:
        yield made
    finally:
        made.close()


def test_each_container_locks_its_own_device(node: Node) -> None:
    node.holds("limits-1", "zero", "full")
    node.holds("claim-2", "null")
    assert node.verbs("limits-1") == [("has", "full"), ("has", "zero")]
    assert node.said("claim-2")[0].uid == "claim-2-uid"


@pytest.mark.parametrize("shared", ["", "claim-b"])
def test_a_device_that_is_already_locked_is_recorded(node: Node, shared: str) -> None:
    node.holds("limits-1", "zero")
    assert node.code("second-2", "null", "zero", shared=shared) == TAKEN
    assert node.verbs("second-2") == [("has", "null"), ("taken", "zero")]
    (found,) = judge.conflicts(judge.parse((node.locks / JOURNAL).read_text()))
    assert (found.holder, found.refused, found.device) == ("limits-1", "second-2", "zero")


def test_pods_with_one_shared_claim_have_it_together(node: Node) -> None:
    node.holds("shared-1", "zero", "full", shared="claim-a")
    node.holds("shared-2", "zero", "full", shared="claim-a")
    assert node.code("limits-3", "zero") == TAKEN
    assert node.code("shared-4", "full", shared="claim-b") == TAKEN, "another shared claim is another holder"
    node.holds("shared-5", "zero", "full", shared="claim-a")


def test_an_ended_container_leaves_its_device_to_the_next(node: Node) -> None:
    first = node.holds("shared-1", "zero", shared="claim-a")
    first.terminate()
    assert first.wait(HANG_SECONDS) == 0
    os.killpg(first.pid, 9)  # its sleep, which ends with the container's first process there
    assert node.verbs("shared-1") == [("has", "zero"), ("ends", "-")]
    node.holds("shared-2", "zero", shared="claim-b")
    assert node.code("limits-3", "zero") == TAKEN


def test_a_container_that_ignores_sigterm_keeps_its_device_until_it_is_killed(node: Node) -> None:
    stubborn = node.holds("limits-1", "zero", stubborn=True)
    stubborn.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        stubborn.wait(0.2)
    assert node.code("limits-2", "zero") == TAKEN
    assert node.verbs("limits-1") == [("has", "zero")]


def test_a_container_ends_by_itself(node: Node) -> None:
    assert node.start("limits-1", "zero", seconds=0).wait(HANG_SECONDS) == 0
    assert node.verbs("limits-1") == [("has", "zero"), ("ends", "-")]


def test_without_flock_nothing_is_reported_about_the_device(node: Node, tmp_path: Path) -> None:
    """A missing program is no double hold, nor is one that fails with the exit status of a taken lock."""
    node.holds("limits-1", "zero")
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("date", "sleep"):
        (tools / tool).symlink_to(shutil.which(tool) or tool)
    assert node.code("limits-2", "zero", path=str(tools)) == BROKEN
    (tools / "flock").write_text("#!/bin/sh\necho 'flock: unknown option' >&2\nexit 1\n")
    (tools / "flock").chmod(0o755)
    assert node.code("limits-3", "zero", path=str(tools)) == BROKEN
    assert node.verbs("limits-2") == node.verbs("limits-3") == [("broken", "zero")]


def test_a_container_without_a_device_says_so(node: Node) -> None:
    assert node.code("limits-1") == NOTHING
    assert node.verbs("limits-1") == [("nothing", "-")]
