"""Find the devices that a process of this machine has open: the open-file probe.

It needs to see the host's processes (``hostPID``) and to read their descriptors (``SYS_PTRACE``). A process that it may
not read may have any device open. Whether the probe is of use depends on the hardware: where a daemon keeps every
device open, the probe would hold them forever. So a resource's configuration must ask for it.
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

from drabridge.inventory.devices import Device

PROC = Path("/proc")
_KINDS = {"c": stat.S_ISCHR, "b": stat.S_ISBLK}

# statx(2), linux/stat.h: os.stat always asks the file system
_statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)  # glibc has it since 2.28, musl since 1.2.5
_FORBIDDEN = (errno.ENOSYS, errno.EPERM)  # by a seccomp profile that does not know the call
_AT_FDCWD, _AT_STATX_DONT_SYNC, _STATX_TYPE = -100, 0x4000, 0x1
_STATX_BYTES, _STX_MODE, _STX_RDEV = 256, 28, 128

Number = tuple[str, int, int]  # "c" or "b", major, minor


class OpenDevices(Struct, frozen=True):
    """What the probe found.

    ``by``: device name -> a process that has it open, in words. ``blind``: why others may be open too; "" if none may.
    """

    by: Mapping[str, str]
    blind: str = ""

    def of(self, device: str) -> bool | None:
        """Tell whether the device is open; None if that is not known."""
        return True if device in self.by else (None if self.blind else False)


def find_open(devices: Mapping[str, Device], proc: Path = PROC) -> OpenDevices:
    """Read every descriptor of every process, once.

    Blocks for milliseconds, or for long (see ``_number``).
    """
    names: dict[Number, str] = {
        (node.kind, node.major, node.minor): name
        for name, device in devices.items()
        for node in (*device.nodes, *(device.fallback.nodes if device.fallback else ()))  # it may have been given once
    }
    found: dict[str, str] = {}
    blind = ""
    for process in proc.iterdir():
        if not process.name.isdecimal():
            continue
        try:
            descriptors = os.listdir(process / "fd")
        except PermissionError:
            blind = f"the open-file probe may not read {process}/fd: it needs hostPID and SYS_PTRACE"
            continue
        except OSError:
            continue  # the process has ended
        for descriptor in descriptors:
            number = _number(process / "fd" / descriptor)
            if number in names:
                found.setdefault(names[number], f"process {process.name} ({_command(process)})")
    return OpenDevices(found, blind)


def _number(descriptor: Path) -> Number | None:
    """Return the device number behind a descriptor; None if it is no device.

    The kernel is asked only for what it has in memory. The file may be on a server that does not answer, and the
    process that waits for it is often the very one that has the device open.
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
