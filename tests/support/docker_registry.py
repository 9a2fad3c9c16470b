"""Debian's docker-registry on this machine: what image and chart are pushed to and pulled from."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.support.waiting import HANG_SECONDS

ASK = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=10)"


@contextlib.contextmanager
def running(folder: Path, port: int, *, before: Sequence[str] = ()) -> Iterator[str]:
    """Serve on 127.0.0.1; yields the address. ``before``: words that put a command into another network namespace."""
    settings: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "store")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    (folder / "registry.yml").write_text(yaml.safe_dump(settings))
    words = [*before, "docker-registry", "serve", str(folder / "registry.yml")]
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "none"}
    with subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            ends = time.monotonic() + HANG_SECONDS
            while not _answers(before, port):
                assert process.poll() is None, "docker-registry has ended"
                assert time.monotonic() < ends
                time.sleep(0.1)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def _answers(before: Sequence[str], port: int) -> bool:
    words = [*before, "python3", "-c", ASK, f"http://127.0.0.1:{port}/v2/"]
    return subprocess.run(words, capture_output=True, check=False, timeout=HANG_SECONDS).returncode == 0
