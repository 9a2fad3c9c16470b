"""Run a program of the tests under umockdev, and the test bed that such a program uses."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WRAPPER = shutil.which("umockdev-wrapper")
ROOT = Path(__file__).parents[2]
TREES = Path(__file__).parent / "trees"

needs_umockdev = [
    pytest.mark.umockdev,
    pytest.mark.skipif(WRAPPER is None, reason="there is no umockdev-wrapper: apt-get install umockdev"),
]


OWN_DEFECT = "is_emulated_device: Assertion `res > 0' failed"
"""libumockdev ends the process that asks about a link of the test bed which goes at that moment: it looks at the link,
then reads it, and takes for granted that it is still there (``is_emulated_device`` in src/libumockdev-preload.c)."""


def run_under_umockdev(module: str, *arguments: str, **environment: str) -> str:
    """Run a module in a process of its own, which libumockdev needs; return its output. Once more after OWN_DEFECT."""
    assert WRAPPER is not None
    for _ in range(2):
        done = subprocess.run(
            [WRAPPER, sys.executable, "-W", "error", "-m", module, *arguments],
            cwd=ROOT,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if OWN_DEFECT not in done.stdout + done.stderr:
            break
    assert done.returncode == 0, f"{module} {arguments} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def tree(name: str) -> str:
    """A machine of ``tests/support/trees``, without the comments that say where its facts come from."""
    lines = (TREES / f"{name}.umockdev").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("#")).lstrip("\n")


class Testbed:
    """libumockdev, as far as it is needed."""

    def __init__(self, *descriptions: str) -> None:
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
