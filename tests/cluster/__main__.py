"""``python -m tests.cluster``: run the cluster tests on real nodes, which are started and ended for them if need be."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import pytest

from tests.cluster.releases import seen
from tests.node import images
from tests.node.__main__ import names
from tests.node.cluster import FOLDER as CLUSTER_FOLDER
from tests.node.cluster import Cluster, NodeSpec
from tests.node.errors import NodeError
from tests.node.releases import DEFAULT, release, releases
from tests.support import image

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
NODES = ROOT / "tests/node"
IMAGE = "localhost/drabridge-test:cluster"
USAGE = 2  # exit status: nothing was tried
SAVE_SECONDS = 300.0
INTERRUPTED_SECONDS = 60.0  # a test run that is told to end takes its pods away first
NO_IMAGE = """\
KUBECONFIG is set, but nothing says how the agent's image gets to that cluster. Load it there (`make image` writes
build/image.tar) and name it with DRABRIDGE_TEST_IMAGE, and an image with sh and flock with DRABRIDGE_TEST_BUSYBOX.
`make kind` does all of this on a cluster that kind makes: kind create cluster, kind load image-archive.

Without KUBECONFIG real nodes are started on this machine.
"""
REBOOT = "tests/cluster/life/test_agent_life.py::test_a_node_reboot_leaves_every_device_with_its_pod[real]"


class UsageError(Exception):
    """Why nothing was tried, for people."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; the first exit status that is not 0, or 0."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGINT, _interrupt)  # a shell that runs this in the background has it ignored
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        wanted = [one.name for one in releases()] if options.release == "all" else [options.release]
        for name in wanted:
            release(name)  # before an hour has gone
        ended = {name: _once(name, options) for name in wanted}
    except (UsageError, NodeError) as error:
        print(error, file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130  # as a shell says it
    if len(wanted) > 1:
        for name, (code, seconds) in ended.items():
            print(f"Kubernetes {release(name).version}: {'passed' if code == 0 else 'failed'} in {seconds:.0f} s")
    return next((code for code, _ in ended.values() if code), 0)


def _parser() -> argparse.ArgumentParser:
    known = ", ".join(one.name for one in releases())
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster",
        description="The cluster tests on the cluster of KUBECONFIG, else on real nodes that are started on this "
        "machine (as root) and ended afterwards.",
        epilog="example: python -m tests.cluster --release 1.34 --nodes 3 tests/cluster/pods",
    )
    parser.add_argument("--release", default=DEFAULT, help=f"{known}, or all, one after the other (default: {DEFAULT})")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="how many nodes (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep what each test came to, for docs/compatibility.md")
    parser.add_argument("files", nargs="*", metavar="FILE", help="test files or folders; all when left out")
    return parser


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _once(name: str, options: argparse.Namespace) -> tuple[int, float]:
    """The tests on a cluster of one release; exit status and seconds."""
    began = time.monotonic()
    with cluster(os.environ, name, options.nodes) as environment:
        if options.keep:
            environment["DRABRIDGE_TEST_KEEP"] = str(seen.FOLDER / f"{name}.json")
        code = _tests(options.files, environment)
    if options.keep:
        seen.renew_page()
    return code, time.monotonic() - began


@contextlib.contextmanager
def cluster(environ: Mapping[str, str], name: str = DEFAULT, nodes: int = 1) -> Iterator[dict[str, str]]:
    """The environment of tests on a cluster with the agent's image. What was started here ends with the block."""
    environment = dict(environ)
    folder = Path(environment.get("DRABRIDGE_TEST_CLUSTER") or CLUSTER_FOLDER)
    if environment.get("KUBECONFIG"):
        own = Cluster.open(folder) if environment.get("DRABRIDGE_TEST_CLUSTER") else None
        if own is None and not environment.get("DRABRIDGE_TEST_IMAGE"):
            raise UsageError(NO_IMAGE)
        yield _with_image(environment, own)
        return
    specs = [NodeSpec(one, 0, name) for one in names(nodes)]
    made = Cluster.up(folder, of=name, nodes=specs)
    try:
        environment["DRABRIDGE_TEST_CLUSTER"] = str(folder)
        environment["KUBECONFIG"] = str(made.kubeconfig)
        yield _with_image(environment, made)
    finally:
        _end(made)


def _end(made: Cluster) -> None:
    """End the cluster and forget it. Out of reach of a second Ctrl-C, which would leave half of it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        Cluster.open(made.folder).clean()  # with the nodes that tests have added
    finally:
        signal.signal(signal.SIGINT, before)


def _with_image(environment: dict[str, str], own: Cluster | None) -> dict[str, str]:
    """The environment with an image of the agent that the cluster has: the one that is named, or one that is built."""
    environment.setdefault("DRABRIDGE_TEST_BUSYBOX", images.BUSYBOX)
    if own is not None and not environment.get("DRABRIDGE_TEST_IMAGE"):
        print("building the image", flush=True)
        try:
            image.build(IMAGE)
        except pytest.skip.Exception as error:
            raise UsageError(f"The image cannot be built: {error}") from None
        with tempfile.TemporaryDirectory(prefix="draimage") as directory:
            archive = Path(directory) / "agent.tar"
            _said(["podman", "save", "-q", "--format", "oci-archive", "-o", str(archive), IMAGE], SAVE_SECONDS)
            own.import_image(archive)
        environment["DRABRIDGE_TEST_IMAGE"] = IMAGE
    return environment


def _tests(files: Sequence[str], environment: dict[str, str]) -> int:
    chosen = [*files] or [str(FOLDER), str(NODES)]
    if files:
        kept = {path for one in files for path in _files(ROOT / one.partition("::")[0])}
        if left := sorted(str(path.relative_to(FOLDER)) for path in {*_files(FOLDER)} - kept):
            print(f"left out here: {', '.join(left)}", flush=True)
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "cluster", "--durations=10", *chosen]
    if not environment.get("DRABRIDGE_TEST_NODE_REBOOT") and not environment.get("DRABRIDGE_TEST_CLUSTER"):
        print("left out here: the reboot of the node (DRABRIDGE_TEST_NODE_REBOOT does not say how)", flush=True)
        words += ["--deselect", REBOOT]
    return _run(words, environment)


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("test_*.py"))


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
