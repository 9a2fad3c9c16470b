"""Read the few host files that the inventory needs besides udev."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from msgspec import Struct

from drabridge.inventory.behind import behind
from drabridge.inventory.event_source import DATABASE
from drabridge.inventory.health_files import HealthFiles
from drabridge.inventory.udev_device import VALUE_LIMIT_CHARS, clean
from drabridge.inventory.vfio import why_not_viable
from drabridge.system.files import read_if_there
from drabridge.system.paths import CDI_SPECS


class HostPaths(Struct, frozen=True):
    """Where the host's files are mounted."""

    proc: Path = Path("/proc")
    udev_database: Path = DATABASE
    cdi: tuple[Path, ...] = CDI_SPECS  # where runtimes look for CDI files
    modules: Path = Path("/sys/module")


class NodeStat(Struct, frozen=True):
    """A device node as stat(2) shows it. ``path`` is the node itself, where a symbolic link at the given path leads."""

    path: str
    kind: Literal["c", "b"]
    major: int
    minor: int
    behind: tuple[str, ...] = ()  # places to which other nodes give access, too (behind.py)
    mode: int = 0o660  # permission bits
    uid: int = 0
    gid: int = 0


class Host:
    """Answers questions about the host; no method opens a device. A container has the host's /dev and /sys mounted.

    ``on_health_news``: called on the loop when the content of a health rule's file changes.
    """

    def __init__(self, on_health_news: Callable[[], None] = lambda: None) -> None:
        self._health_files = HealthFiles(self.first_line, on_health_news)

    def node(self, path: str) -> NodeStat:
        """Return the device node at ``path``. Raises OSError with a message for people if there is no usable one."""
        real = path
        try:
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode):  # runc and crun do not follow a link, so it is followed here
                real, found = os.path.realpath(path), os.stat(path)
        except OSError as error:
            raise OSError(f"{path}: {(error.strerror or str(error)).lower()}") from error
        if stat.S_ISCHR(found.st_mode):
            kind: Literal["c", "b"] = "c"
        elif stat.S_ISBLK(found.st_mode):
            kind = "b"
        else:
            raise OSError(f"{path}: not a device node")
        if not found.st_mode & 0o666:
            raise OSError(f"{path}: nobody may open it (mode 0000)")
        number = os.major(found.st_rdev), os.minor(found.st_rdev)
        if in_the_way := why_not_viable(real, number):
            raise OSError(f"{path}: {in_the_way}")
        owner = stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid
        return NodeStat(real, kind, *number, behind(real, kind, number), *owner)

    def exists(self, path: str) -> bool:
        """Tell whether there is anything at ``path``."""
        return os.path.exists(path)

    def first_line(self, path: str) -> str | None:
        """Return the first line of a regular file, cleaned; None when it cannot be read."""
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # reading a FIFO or a device would block, or act on it
                return None
            with open(path, "rb") as file:
                return clean(file.readline(VALUE_LIMIT_CHARS))
        except OSError:
            return None

    def health_line(self, path: str) -> str | None:
        """Return the first line of a health rule's file as read last. Raises TimeoutError if it does not answer."""
        return self._health_files.first_line(path)

    def close(self) -> None:
        """End the threads that read health rules' files."""
        self._health_files.close()

    def own_node(self, syspath: str) -> tuple[str, tuple[int, int] | None]:
        """Return a device's node and number as the kernel names them now; ``("", None)`` if it has none or is gone."""
        try:
            uevent = os.fsdecode(read_if_there(f"{syspath}/uevent") or b"")
        except OSError:  # it went away in between
            return "", None
        fields = dict(line.split("=", 1) for line in uevent.split("\n") if "=" in line)
        name, major, minor = fields.get("DEVNAME", ""), fields.get("MAJOR", ""), fields.get("MINOR", "")
        number = (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None
        return (os.path.join("/dev", name) if name else ""), number
