"""Detect which uevents reach this process: udevd's (sent after its rules ran) or only the kernel's.

libudev does not say. Without ``/run/udev/control`` it silently subscribes to nothing. In a network namespace of its own
a process gets the kernel's events but never udevd's, which are multicast in the host's namespace. So sockets are read.
``/proc/net/netlink`` shows the groups that a socket really joined. ``/proc/net/unix`` shows the sockets of this network
namespace only, so a listening ``/run/udev/control`` there proves that udevd is alive and in the same namespace.
"""

from __future__ import annotations

import os
import socket
import stat
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

CONTROL = "/run/udev/control"
DATABASE = Path("/run/udev/data")

UDEV_GROUP = 2  # systemd sd-device/device-monitor-private.h MONITOR_GROUP_UDEV; bit mask as /proc/net/netlink prints it
ACCEPTING = 0x10000  # include/uapi/linux/net.h __SO_ACCEPTCON, the Flags column of /proc/net/unix


class EventKind(StrEnum):
    """Where events come from."""

    UDEV = "udev"
    KERNEL = "kernel"
    NONE = "none"  # only the timer


class EventSource(Struct, frozen=True):
    """The group of events that is used, and why, in one sentence."""

    kind: EventKind
    why: str
    unexpected: bool = False  # not what the configuration asks for

    def __str__(self) -> str:
        return f"{self.kind} events: {self.why}"


def netlink_groups(inode: int, proc: Path = Path("/proc")) -> int | None:
    """Return the groups (bit mask) that the netlink socket with this inode joined; None if it is not listed."""
    try:
        lines = (proc / "net/netlink").read_text().splitlines()[1:]
    except OSError:
        return None
    for line in lines:
        columns = line.split()
        if columns and columns[-1] == str(inode):
            return int(columns[3], 16)
    return None


def udevd_listens(proc: Path = Path("/proc")) -> bool:
    """Whether a living udevd (or PID 1 on its behalf) listens in this network namespace."""
    try:
        with open(proc / "net/unix", encoding="utf-8", errors="replace") as lines:
            mine = [line.split() for line in lines if line.endswith(f" {CONTROL}\n")]
    except OSError:
        return False
    return any(int(columns[3], 16) & ACCEPTING for columns in mine)


def udev_group_works(fd: int, proc: Path = Path("/proc")) -> EventSource:
    """Return kind ``UDEV`` if a started monitor of the udev group gets events, else ``KERNEL``; and why."""
    with socket.socket(fileno=os.dup(fd)) as view:
        if view.family != socket.AF_NETLINK:
            return EventSource(EventKind.UDEV, "the event socket is emulated (a umockdev test bed)")
    groups = netlink_groups(os.fstat(fd).st_ino, proc)
    if groups is not None and not groups & UDEV_GROUP:
        return EventSource(EventKind.KERNEL, f"libudev did not join udevd's group: {_absent()}")
    if not udevd_listens(proc):
        return EventSource(EventKind.KERNEL, _absent())
    return EventSource(EventKind.UDEV, f"udevd listens on {CONTROL} in this network namespace")


def _absent() -> str:
    try:
        found = stat.S_ISSOCK(os.stat(CONTROL).st_mode)
    except OSError:
        found = False
    if found:
        return (
            f"{CONTROL} exists, but nobody listens on it in this network namespace "
            "(udevd has died, or a container without hostNetwork: true)"
        )
    return f"there is no {CONTROL} (no udevd runs here, or /run/udev of the host is not mounted)"
