"""Kubernetes' own programs: where they are, and each of them as a process that ends with its block.

``sample-device-plugin`` (kubernetes/kubernetes test/images/sample-device-plugin) keeps nothing on disk of what it has
allocated. ``dra-test-driver`` (test/e2e/dra/test-driver) is upstream's kubeletplugin helper with an application that
writes a CDI file for each claim.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tests.bench.core import NotHere
from tests.node import build
from tests.node.releases import release

T = TypeVar("T")

DRIVER = "test-driver.cdi.k8s.io"
RESOURCE = "example.com/resource"
DEVICES = ("Dev-1", "Dev-2")
METADATA = "--enable-device-metadata"  # as ours writes it
START_SECONDS = 60.0


def find(name: str) -> Path:
    """The program of the default release's nodes. Raises NotHere where they are not built."""
    path = build.program(name, release())
    if path is None:
        raise NotHere(f"{name} of Kubernetes {release().version} is not built: python -m tests.node build")
    return path


@contextlib.contextmanager
def running(words: Sequence[str | Path], log: Path, environ: Mapping[str, str] | None = None) -> Iterator[None]:
    """A process, with what it says in ``log``."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            [str(word) for word in words], stdout=file, stderr=file, env={**os.environ, **(environ or {})}
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(look: Callable[[], T | None], log: Path) -> T:
    """Wait until ``look`` returns something. Raises TimeoutError with the end of the log."""
    deadline = time.monotonic() + START_SECONDS
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not there after {START_SECONDS:g} s; {log}: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def sample_device_plugin(directory: Path) -> Iterator[Path]:
    """The plugin's socket below ``directory``. It waits for a word to register itself, and serves meanwhile."""
    program, log, word = (
        find("sample-device-plugin"),
        directory / "sample-device-plugin.log",
        directory / "registration",
    )
    word.touch()
    settings = {"PLUGIN_SOCK_DIR": f"{directory}/", "REGISTER_CONTROL_FILE": str(word)}
    with running([program], log, settings):
        yield wait_for(lambda: next(directory.glob("dp.*"), None), log)


@contextlib.contextmanager
def dra_test_driver(directory: Path, kubeconfig: Path, node: str, cdi: Path, devices: int) -> Iterator[Path]:
    """The driver's socket below ``directory``."""
    program, log = find("dra-test-driver"), directory / "dra-test-driver.log"
    sockets, registry = directory / "go" / DRIVER, directory / "go-registry"
    for one in (sockets, registry):
        one.mkdir(parents=True)
    words: list[str | Path] = ["--kubeconfig", kubeconfig, "--kube-api-qps", "1000", "--kube-api-burst", "1000"]
    words += ["kubelet-plugin"]
    words += ["--datadir", sockets.parent, "--plugin-registration-path", registry, "--cdi-dir", cdi]
    words += ["--node-name", node, "--num-devices", str(devices), METADATA]
    with running([program, *words], log):
        yield wait_for(lambda: next(sockets.parent.rglob("dra*.sock"), None), log)
