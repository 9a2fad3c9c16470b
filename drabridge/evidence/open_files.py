"""The physical probe: which devices a process of this machine has open, whatever kubelet and the API server say.

It needs to see the host's processes (``hostPID``) and to look at their descriptors (``SYS_PTRACE``); what it may not
look at it does not vouch for. Whether it is of use depends on the hardware: where a daemon keeps every device open it
would hold them for ever, so a resource's configuration asks for it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from drabridge.inventory.model import Device

PROC = Path("/proc")
_KINDS = {"c": stat.S_ISCHR, "b": stat.S_ISBLK}

# statx(2), linux/stat.h: os.stat always asks the file system
_statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)  # glibc has it since 2.28, musl since 1.2.5
_FORBIDDEN = (errno.ENOSYS, errno.EPERM)  # by a seccomp profile that does not know the call
_AT_FDCWD, _AT_STATX_DONT_SYNC, _STATX_TYPE = -100, 0x4000, 0x1
_STATX_BYTES, _STX_MODE, _STX_RDEV = 256, 28, 128

Number = tuple[str, int, int]  # "c" or "b", major, minor


class Opened(Struct, frozen=True):
    """``by``: device name -> a process that has it open, in words. ``blind``: why others may, too; "" if none does."""

    by: Mapping[str, str]
    blind: str = ""

    def of(self, device: str) -> bool | None:
        """Whether the device is open; None if that is not known."""
        return True if device in self.by else (None if self.blind else False)


def opened(devices: Mapping[str, Device], proc: Path = PROC) -> Opened:
    """Look at every descriptor of every process, once. Blocks for milliseconds; run it in a thread."""
    names: dict[Number, str] = {
        (node.kind, node.major, node.minor): name for name, device in devices.items() for node in device.nodes
    }
    found: dict[str, str] = {}
    blind = ""
    for process in proc.iterdir():
        if not process.name.isdecimal():
            continue
        try:
            descriptors = os.listdir(process / "fd")
        except PermissionError:
            blind = f"{process}/fd may not be read: the probe needs hostPID and SYS_PTRACE"
            continue
        except OSError:
            continue  # it has ended
        for descriptor in descriptors:
            number = _number(process / "fd" / descriptor)
            if number in names:
                found.setdefault(names[number], f"process {process.name} ({_command(process)})")
    return Opened(found, blind)


def _number(descriptor: Path) -> Number | None:
    """From what the kernel has in memory: the file may be on the disk of a server that does not answer, and what waits
    for that is often the very process that has the device open.
    """
    found, code = ctypes.create_string_buffer(_STATX_BYTES), errno.ENOSYS
    if _statx is not None:
        failed = _statx(_AT_FDCWD, os.fsencode(descriptor), _AT_STATX_DONT_SYNC, _STATX_TYPE, found)
        code = ctypes.get_errno() if failed else 0
    if code in _FORBIDDEN:
        try:
            status = descriptor.stat()
        except OSError:
            return None
        mode, major, minor = status.st_mode, os.major(status.st_rdev), os.minor(status.st_rdev)
    elif code:
        return None
    else:
        (mode,) = struct.unpack_from("H", found, _STX_MODE)
        major, minor = struct.unpack_from("II", found, _STX_RDEV)
    return next(((kind, major, minor) for kind, matches in _KINDS.items() if matches(mode)), None)


def _command(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "ended since"
