"""``python -m tests.cluster`` ends every node that it starts. A script stands in for the node's program."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cluster.__main__ import ROOT, USAGE
from tests.support.waiting import HANG_SECONDS

PASSES = "import pytest\npytestmark = pytest.mark.cluster\ndef test_one():\n    pass\n"
FAILS = PASSES.replace("pass\n", "assert False\n")
HANGS = PASSES.replace("    pass", "    import pathlib, time; pathlib.Path({file!r}).touch(); time.sleep(1000)")
VARIABLES = ("KUBECONFIG", "DRABRIDGE_TEST_IMAGE", "DRABRIDGE_TEST_CONTROL", "DRABRIDGE_TEST_BUSYBOX")


class Place:
    """A directory with a node's program that writes down what it is told, and a test file."""

    def __init__(self, root: Path, test: str) -> None:
        self.root = root
        self.said = root / "said"
        self.said.touch()
        self.control = root / "control"
        self.control.write_text(
            f'#!/bin/sh\necho "$1" >> {self.said}\n'
            f'case $1 in up) echo "export KUBECONFIG={root}/kubeconfig";; kubeconfig) echo {root}/kubeconfig;; esac\n'
        )
        self.control.chmod(0o755)
        self.test = root / "test_it.py"
        self.test.write_text(test)

    def start(self, *words: str, variables: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        environment |= {"DRABRIDGE_TEST_CONTROL": str(self.control), "DRABRIDGE_TEST_IMAGE": "an/image:1"}
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


def test_a_node_that_is_started_is_ended_and_the_further_command_has_its_environment(tmp_path: Path) -> None:
    place = Place(tmp_path, PASSES)
    shell = f"sh -c 'echo $KUBECONFIG $DRABRIDGE_TEST_IMAGE $DRABRIDGE_TEST_BUSYBOX > {tmp_path}/then'"
    code, text = place.run("--then", shell, str(place.test))
    assert code == 0, text
    assert place.said.read_text().split() == ["kubeconfig", "clean", "up", "clean"]
    assert (tmp_path / "then").read_text().split() == [
        f"{tmp_path}/kubeconfig",
        "an/image:1",
        "docker.io/local/busybox:1",
    ]
    assert "left out here: " in text
    assert "test_agent_life.py" in text


def test_a_failed_test_is_the_exit_status_and_the_node_is_ended(tmp_path: Path) -> None:
    place = Place(tmp_path, FAILS)
    code, text = place.run("--then", f"touch {tmp_path}/then", str(place.test))
    assert code == pytest.ExitCode.TESTS_FAILED, text
    assert place.said.read_text().split()[-1] == "clean"
    assert not (tmp_path / "then").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_its_node(tmp_path: Path, number: signal.Signals) -> None:
    place = Place(tmp_path, HANGS.format(file=str(tmp_path / "begun")))
    with place.start(str(place.test)) as process:
        while not (tmp_path / "begun").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        text, _ = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130, text
    assert place.said.read_text().split() == ["kubeconfig", "clean", "up", "clean"]
    assert "KeyboardInterrupt" in text, "pytest was told, and had its say"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"DRABRIDGE_TEST_CONTROL": "/nowhere"}, "kind create cluster"),
        ({"DRABRIDGE_TEST_CONTROL": "", "DRABRIDGE_TEST_IMAGE": "", "KUBECONFIG": "/x"}, "DRABRIDGE_TEST_IMAGE"),
    ],
)
def test_without_a_cluster_it_says_what_to_do(tmp_path: Path, variables: dict[str, str], words: str) -> None:
    place = Place(tmp_path, PASSES)
    code, text = place.run(str(place.test), variables=variables)
    assert code == USAGE
    assert words in text
    assert place.said.read_text() == ""


def test_a_cluster_that_somebody_else_started_is_left_alone(tmp_path: Path) -> None:
    place = Place(tmp_path, PASSES)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"https://127.0.0.1:{server.getsockname()[1]}"
        (tmp_path / "kubeconfig").write_text(f"clusters: [{{cluster: {{server: '{address}'}}}}]\n")
        code, text = place.run(str(place.test))
    assert code == USAGE, text
    assert "KUBECONFIG=" in text
    assert place.said.read_text().split() == ["kubeconfig"]
