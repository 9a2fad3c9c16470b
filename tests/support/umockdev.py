"""Run a program of the tests under umockdev, and the test bed that such a program uses."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

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


def run_under_umockdev(module: str, *arguments: str, **environment: str) -> str:
    """Run a module in a process of its own, which libumockdev needs; return its output."""
    words = ("-W", "error", "-m", module, *arguments)
    with tempfile.TemporaryDirectory(prefix="umockdev") as folder:
        output = Path(folder) / "output"
        with output.open("wb") as file:
            code = subprocess.run(
                [str(WRAPPER), sys.executable, *words],
                cwd=ROOT, env=os.environ | environment, stdout=file, stderr=file, timeout=RUN_SECONDS, check=False,
            ).returncode  # fmt: skip
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
