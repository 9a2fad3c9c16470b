"""``python -m tests.cluster``: run the cluster tests on a real node, which is started and ended for them if need be."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

import pytest
import yaml

from tests.support import image

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
CONTROL = ROOT.parent / "shared/cluster/cluster"
"""Starts, ends and disturbs a one-node cluster. DRABRIDGE_TEST_CONTROL names another program with the same commands:
``up`` (prints ``export KUBECONFIG=...``), ``clean``, ``import FILE`` and ``start|stop|kill|restart NAME``."""
IMAGE = "localhost/drabridge-test:cluster"
BUSYBOX = "docker.io/local/busybox:1"  # what the program of CONTROL has on its node
USAGE = 2  # exit status: nothing was tried
UP_SECONDS = 300.0  # with the packages that the node's program installs at first; 15 s after that
CLEAN_SECONDS = 120.0
DRA_STATE = Path("/var/lib/kubelet/dra_manager_state")
"""Kubelet's record of claims, which the program's ``clean`` leaves behind: the next node's kubelet would refuse claims
that have the names of earlier ones ("old ResourceClaim with same name ... still exists")."""
INTERRUPTED_SECONDS = 60.0  # a test run that is told to end takes its pods away first
HOW = """\
No cluster: KUBECONFIG is not set, and {control} is not there.
On kind, in two commands, after `podman build -f deploy/image/Containerfile -t localhost/drabridge:test .`:

  kind create cluster && kind load docker-image localhost/drabridge:test busybox:stable
  KUBECONFIG=~/.kube/config DRABRIDGE_TEST_IMAGE=localhost/drabridge:test DRABRIDGE_TEST_BUSYBOX=busybox:stable \\
    make cluster
"""
NO_IMAGE = """\
KUBECONFIG is set, but nothing says how the agent's image gets to that cluster. Load it there and name it with
DRABRIDGE_TEST_IMAGE, and an image with sh and flock with DRABRIDGE_TEST_BUSYBOX; or name the program that
controls the cluster with DRABRIDGE_TEST_CONTROL.
"""
REBOOT = "tests/cluster/test_agent_life.py::test_a_node_reboot_leaves_every_device_with_its_pod[real]"


class UsageError(Exception):
    """Why nothing was tried, for people."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; the first exit status that is not 0, or 0."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster",
        description="The cluster tests on a real node: on the cluster of KUBECONFIG, else on one that is started for "
        f"them where {CONTROL} or the program of DRABRIDGE_TEST_CONTROL is there, and is ended afterwards.",
    )
    parser.add_argument("--then", metavar="COMMAND", help="a further command with the same cluster, if the tests pass")
    parser.add_argument("files", nargs="*", metavar="FILE", help="test files; all of tests/cluster when left out")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, _interrupt)  # a shell that runs this in the background has it ignored
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with cluster(os.environ) as environment:
            return _tests(options.files, environment) or (
                _run(shlex.split(options.then), environment) if options.then else 0
            )
    except UsageError as error:
        print(error, file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130  # as a shell says it


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def cluster(environ: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment of tests on a cluster with the agent's image. What was started here ends with the block."""
    environment = dict(environ)
    control = Path(environment.get("DRABRIDGE_TEST_CONTROL") or CONTROL)
    if environment.get("KUBECONFIG"):
        if not environment.get("DRABRIDGE_TEST_IMAGE") and "DRABRIDGE_TEST_CONTROL" not in environment:
            raise UsageError(NO_IMAGE)
        yield _with_image(environment, control)
        return
    if not control.is_file():
        raise UsageError(HOW.format(control=control))
    kubeconfig = _said([str(control), "kubeconfig"], 60.0).strip()
    if _runs(Path(kubeconfig)):
        raise UsageError(f"A cluster that was not started here runs already: set KUBECONFIG={kubeconfig}, or end it.")
    environment["DRABRIDGE_TEST_CONTROL"] = str(control)
    _end(control)  # whatever was left of an earlier one
    try:
        environment["KUBECONFIG"] = _started(control)
        yield _with_image(environment, control)
    finally:
        _end(control)


def _started(control: Path) -> str:
    """Start the node; its kubeconfig."""
    print("starting a node", flush=True)
    said = _said([str(control), "up"], UP_SECONDS)
    line = next((one for one in said.splitlines() if one.startswith("export KUBECONFIG=")), "")
    if not line:
        raise UsageError(f"{control} up printed no kubeconfig:\n{said}")
    return line.partition("=")[2]


def _runs(kubeconfig: Path) -> bool:
    """Whether somebody listens where the kubeconfig says."""
    with contextlib.suppress(OSError):
        server = urlsplit(yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"])
        with socket.create_connection((server.hostname or "", server.port or 443), timeout=5):
            return True
    return False


def _end(control: Path) -> None:
    """End the node and forget it. Out of reach of a second Ctrl-C, which would leave half of it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        subprocess.run(
            [str(control), "clean"],
            stdout=subprocess.DEVNULL,
            timeout=CLEAN_SECONDS,
            check=False,
            start_new_session=True,
        )
        if control == CONTROL:  # which removes kubelet's other files of this machine
            DRA_STATE.unlink(missing_ok=True)
    finally:
        signal.signal(signal.SIGINT, before)


def _with_image(environment: dict[str, str], control: Path) -> dict[str, str]:
    """The environment with an image of the agent that the cluster has: the one that is named, or one that is built."""
    environment.setdefault("DRABRIDGE_TEST_BUSYBOX", BUSYBOX)
    if not environment.get("DRABRIDGE_TEST_IMAGE"):
        print("building the image", flush=True)
        try:
            image.build(IMAGE)
        except pytest.skip.Exception as error:
            raise UsageError(f"The image cannot be built: {error}") from None
        with tempfile.TemporaryDirectory(prefix="draimage") as directory:
            archive = Path(directory) / "image.tar"
            _said(["podman", "save", "-q", "--format", "oci-archive", "-o", str(archive), IMAGE], UP_SECONDS)
            _said([str(control), "import", str(archive)], UP_SECONDS)
        environment["DRABRIDGE_TEST_IMAGE"] = IMAGE
    return environment


def _tests(files: Sequence[str], environment: dict[str, str]) -> int:
    chosen = [*files] or [str(FOLDER)]
    there = {path.name for path in FOLDER.glob("test_*.py")}
    if files and (left := sorted(there - {Path(one.partition("::")[0]).name for one in files})):
        print(f"left out here: {', '.join(left)}", flush=True)
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "cluster", "--durations=10", *chosen]
    if not environment.get("DRABRIDGE_TEST_NODE_REBOOT"):
        print("left out here: the reboot of the node (DRABRIDGE_TEST_NODE_REBOOT does not say how)", flush=True)
        words += ["--deselect", REBOOT]
    return _run(words, environment)


def _run(words: Sequence[str], environment: dict[str, str]) -> int:
    """The exit status. In a session of its own, so that a terminal's Ctrl-C reaches it once: through us."""
    with subprocess.Popen(list(words), env=environment, cwd=ROOT, start_new_session=True) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.wait(INTERRUPTED_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def _said(words: list[str], seconds: float) -> str:
    """Standard output of a command that has to work."""
    done = subprocess.run(
        words, stdout=subprocess.PIPE, text=True, timeout=seconds, check=False, start_new_session=True
    )
    if done.returncode != 0:
        raise UsageError(f"{shlex.join(words)} failed with exit status {done.returncode}\n{done.stdout[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
