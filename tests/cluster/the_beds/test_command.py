"""``python -m tests.cluster`` ends every node that it starts, and says in words why it starts none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cluster.__main__ import ROOT, USAGE
from tests.node.cluster import CONTROL, Cluster
from tests.node.machine import CGROUPS, Network
from tests.support.waiting import HANG_SECONDS

PASSES = "import pytest\npytestmark = pytest.mark.cluster\ndef test_one():\n    pass\n"
FAILS = PASSES.replace("pass\n", "assert False\n")
SAYS = """\
import os, pathlib, pytest
from tests.cluster.real_bed import own_cluster

@pytest.mark.cluster
def test_one():
    names = ("KUBECONFIG", "DRABRIDGE_TEST_IMAGE", "DRABRIDGE_TEST_BUSYBOX")
    words = [*(os.environ[name] for name in names), str(own_cluster().spec.number)]
    pathlib.Path({file!r}).write_text(" ".join(words))
"""
HANGS = PASSES.replace("    pass", "    import pathlib, time; pathlib.Path({file!r}).touch(); time.sleep(1000)")
VARIABLES = ("KUBECONFIG", "DRABRIDGE_TEST_IMAGE", "DRABRIDGE_TEST_CLUSTER", "DRABRIDGE_TEST_BUSYBOX")


@pytest.fixture
def nodes() -> None:
    """Skips a test that starts nodes where no nodes are wanted."""
    if not os.environ.get("DRABRIDGE_TEST_CLUSTER"):
        pytest.skip("starts real nodes: make cluster")


class Place:
    """A test file, and the folder of a cluster of its own, beside that of the other tests."""

    def __init__(self, root: Path, test: str) -> None:
        self.root = root
        self.folder = Path("/var/tmp") / f"drabridge-{root.name[-20:]}"
        self.test = root / "test_it.py"
        self.test.write_text(test)

    def start(self, *words: str, variables: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        environment |= {"DRABRIDGE_TEST_CLUSTER": str(self.folder), "DRABRIDGE_TEST_IMAGE": "an/image:1"}
        environment |= {"PYTHONPATH": str(ROOT), **(variables or {})}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.cluster", *words],
            cwd=ROOT,
            env={name: value for name, value in environment.items() if value},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str, variables: Mapping[str, str] | None = None) -> tuple[int, str]:
        with self.start(*words, variables=variables) as process:
            text, _ = process.communicate(timeout=HANG_SECONDS)
            return process.returncode, text

    def left(self, number: int) -> list[str]:
        """What is still there of a cluster with this network."""
        bridge = Network(number).bridge
        groups = [str(path) for path in CGROUPS.glob(f"*/{bridge}-{CONTROL}")]
        links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
        folder = [str(self.folder)] if self.folder.exists() else []
        processes = [
            path.parent.name
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if str(self.folder).encode() in _read(path)
        ]
        return [*groups, *(one for one in links.splitlines() if one.startswith(bridge)), *folder, *processes]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it has ended


@pytest.mark.cluster
@pytest.mark.usefixtures("nodes")
def test_nodes_are_ended_after_the_tests_which_have_their_environment(tmp_path: Path) -> None:
    place = Place(tmp_path, SAYS.format(file=str(tmp_path / "said")))
    code, text = place.run(str(place.test))
    assert code == 0, text
    kubeconfig, image, busybox, number = (tmp_path / "said").read_text().split()
    assert (kubeconfig, image, busybox) == (
        f"{place.folder}/pki/admin.kubeconfig",
        "an/image:1",
        "docker.io/local/busybox:1",
    )
    assert "left out here: " in text
    assert "life/test_agent_life.py" in text
    assert place.left(int(number)) == []


@pytest.mark.cluster
@pytest.mark.usefixtures("nodes")
def test_a_failed_test_is_the_exit_status_and_the_nodes_are_ended(tmp_path: Path) -> None:
    place = Place(tmp_path, FAILS)
    code, text = place.run(str(place.test))
    assert code == pytest.ExitCode.TESTS_FAILED, text
    assert not place.folder.exists()


@pytest.mark.cluster
@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_its_nodes(tmp_path: Path, number: signal.Signals) -> None:
    place = Place(tmp_path, HANGS.format(file=str(tmp_path / "begun")))
    with place.start(str(place.test)) as process:
        while not (tmp_path / "begun").exists():
            assert process.poll() is None
            time.sleep(0.05)
        network = Cluster.open(place.folder).spec.number
        process.send_signal(number)
        text, _ = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130, text
    assert "KeyboardInterrupt" in text, "pytest was told, and had its say"
    assert place.left(network) == []


@pytest.mark.cluster
@pytest.mark.usefixtures("nodes")
def test_a_cluster_that_runs_already_is_left_alone_and_one_that_was_killed_is_replaced(tmp_path: Path) -> None:
    place = Place(tmp_path, PASSES)
    made = Cluster.up(place.folder)
    try:
        code, text = place.run(str(place.test))
        assert code == USAGE, text
        assert f"A cluster runs already in {place.folder}" in text
        made.control.off()  # as after a crash: its folder and its bridge are there
        code, text = place.run(str(place.test))
        assert code == 0, text
    finally:
        if place.folder.exists():
            Cluster.open(place.folder).clean()


@pytest.mark.parametrize(
    ("variables", "more", "words"),
    [
        ({"DRABRIDGE_TEST_CLUSTER": "", "DRABRIDGE_TEST_IMAGE": "", "KUBECONFIG": "/x"}, (), "kind create cluster"),
        ({"KUBECONFIG": "/x"}, (), "There is no cluster in /var/tmp/"),
        ({}, ("--release", "1.33"), "There is no node of Kubernetes '1.33'. Known releases: 1.34 (1.34."),
    ],
)
def test_without_a_cluster_it_says_what_to_do(
    tmp_path: Path, variables: dict[str, str], more: tuple[str, ...], words: str
) -> None:
    place = Place(tmp_path, PASSES)
    code, text = place.run(*more, str(place.test), variables=variables)
    assert code == USAGE, text
    assert words in text
    assert not place.folder.exists()
