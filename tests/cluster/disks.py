"""Loop devices with partitions: disks of this machine, of which the wholes and their parts are devices."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.hardware import Loops

LOOP_SET_FD, LOOP_CLR_FD = 0x4C00, 0x4C01  # linux/loop.h
BLKPG, ADD_PARTITION, DEL_PARTITION = 0x1269, 1, 2  # linux/blkpg.h; a kernel need not know any table of partitions
_PARTITION = struct.Struct("qqi64s64s4x")
_ARGUMENT = struct.Struct("iiiP")
PART_BYTES = 1 << 20
GONE_SECONDS = 10.0


@contextlib.contextmanager
def disk(loops: Loops, index: int, parts: int, folder: Path) -> Iterator[None]:
    """A disk ``loopN`` with ``loopNp1``, ``loopNp2`` and so on; gone when the block ends."""
    image = folder / f"{index}.img"
    image.touch()
    os.truncate(image, PART_BYTES * (parts + 1))
    with contextlib.ExitStack() as stack:
        backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, backing)
        device = os.open(f"/dev/{loops.add(index)}", os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, device)
        fcntl.ioctl(device, LOOP_SET_FD, backing)
        stack.callback(fcntl.ioctl, device, LOOP_CLR_FD, 0)
        for number in range(1, parts + 1):
            _partition(device, ADD_PARTITION, number, PART_BYTES * number)
            stack.callback(_remove, device, number)
        yield


def _partition(device: int, operation: int, number: int, start: int = 0) -> None:
    data = ctypes.create_string_buffer(_PARTITION.pack(start, PART_BYTES, number, b"", b""), _PARTITION.size)
    fcntl.ioctl(device, BLKPG, _ARGUMENT.pack(operation, 0, _PARTITION.size, ctypes.addressof(data)))


def _remove(device: int, number: int) -> None:
    """Waits for who looks into it just now, as udevd does."""
    end = time.monotonic() + GONE_SECONDS
    while True:
        try:
            return _partition(device, DEL_PARTITION, number)
        except OSError:
            if time.monotonic() > end:
                raise
        time.sleep(0.05)
