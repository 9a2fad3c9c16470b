"""Run a program of the tests under umockdev, and the test bed that such a program uses."""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.umockdev_agent import look_one_after_the_other

WRAPPER = shutil.which("umockdev-wrapper")
ROOT = Path(__file__).parents[2]
RUN_SECONDS = 600.0
TREES = Path(__file__).parent / "trees"

needs_umockdev = [
    pytest.mark.umockdev,
    pytest.mark.skipif(WRAPPER is None, reason="there is no umockdev-wrapper: apt-get install umockdev"),
]


class _Runner:
    """A process under umockdev that runs modules one after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [str(WRAPPER), sys.executable, "-W", "error", "-m", "tests.support.umockdev_runner"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, job: dict[str, Any]) -> int | None:
        """Return the exit status that the module would have had; None: it ended the process, or took too long."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], RUN_SECONDS)
        answer = self._process.stdout.readline() if ready else b""
        return int(answer) if answer else None

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@functools.cache
def _runner() -> _Runner:
    """The one of this process."""
    runner = _Runner()
    atexit.register(runner.end)
    return runner


def run_under_umockdev(module: str, *arguments: str, alone: bool = False, **environment: str) -> str:
    """Run a module in another process, which libumockdev needs; return its output.

    Modules share that process, until one fails: to import what they need costs more than most of them do. ``alone``
    gives the module one of its own, where memory is measured, say.
    """
    runner = _Runner() if alone else _runner()
    with tempfile.TemporaryDirectory(prefix="umockdev") as folder:
        output = Path(folder) / "output"
        output.touch()
        job = {"words": (module, *arguments), "output": str(output), "environment": {**os.environ, **environment}}
        code = runner.run(job)
        if code != 0:
            _runner.cache_clear()
        if code != 0 or alone:
            runner.end()
        said = output.read_text(errors="replace")
    assert code == 0, f"{module} {arguments} ended with {code}\n{said}"
    return said


def tree(name: str) -> str:
    """A machine of ``tests/support/trees``, without the comments that say where its facts come from."""
    lines = (TREES / f"{name}.umockdev").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("#")).lstrip("\n")


class Testbed:
    """libumockdev, as far as it is needed."""

    def __init__(self, *descriptions: str) -> None:
        look_one_after_the_other()
        self._library = ctypes.CDLL("libumockdev.so.0")
        self._library.umockdev_testbed_new.restype = ctypes.c_void_p
        self._library.umockdev_testbed_get_root_dir.restype = ctypes.c_char_p
        self._bed = ctypes.c_void_p(self._library.umockdev_testbed_new())
        for description in descriptions:
            self.add(description)

    @property
    def root(self) -> Path:
        return Path(self._library.umockdev_testbed_get_root_dir(self._bed).decode())

    def add(self, description: str) -> None:
        """New devices; libumockdev sends ``add`` for each of them."""
        error = ctypes.c_void_p()
        done = self._library.umockdev_testbed_add_from_string(
            self._bed, ctypes.c_char_p(description.encode()), ctypes.byref(error)
        )
        assert done, f"umockdev does not accept this:\n{description}"

    def uevent(self, path: str, action: str) -> None:
        self._library.umockdev_testbed_uevent(
            self._bed, ctypes.c_char_p(f"/sys{path}".encode()), ctypes.c_char_p(action.encode())
        )

    def attribute(self, path: str, name: str, value: str) -> None:
        self._library.umockdev_testbed_set_attribute(
            self._bed, *(ctypes.c_char_p(text.encode()) for text in (f"/sys{path}", name, value))
        )

    def remove(self, path: str) -> None:
        """Unplug: the event first (libumockdev sends none), then the device."""
        self.uevent(path, "remove")
        self._library.umockdev_testbed_remove_device(self._bed, ctypes.c_char_p(f"/sys{path}".encode()))
