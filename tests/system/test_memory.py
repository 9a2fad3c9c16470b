"""Memory that a start needed is given back to the kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from drabridge.system.memory import release_memory_of_start


def test_memory_is_given_back_and_the_program_goes_on() -> None:
    assert release_memory_of_start() > 0
    assert sorted([3, 1, 2]) == [1, 2, 3]
    assert release_memory_of_start(Path("/nonexistent")) == 0


ARENAS = """
import ctypes, sys, threading
from drabridge.system.memory import share_one_heap
if sys.argv[1] == "shared":
    share_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
threads = [threading.Thread(target=lambda: [libc.malloc(600) for _ in range(100)]) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
lines = open("/proc/self/maps").read().splitlines()
print(sum(" rw-p " in line and int(line.split("-")[0], 16) % (64 << 20) == 0 for line in lines))
"""


def test_threads_share_one_heap() -> None:
    """glibc puts each other one at a multiple of 64 MiB."""

    def arenas(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", ARENAS, how], capture_output=True, text=True, check=True)
        return int(done.stdout)

    if not arenas("own"):
        pytest.skip("this libc has no arenas")
    assert arenas("shared") == 0
