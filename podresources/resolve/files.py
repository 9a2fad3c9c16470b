"""Read small files that somebody else wrote: limited in size, regular files only, never waiting."""

from __future__ import annotations

import os
import stat
from itertools import islice
from pathlib import Path

MOST_BYTES = 1 << 20
"""Of one file. NVIDIA's CDI file of a node with eight GPUs has 60 KiB, a claim's file one or two."""

MOST_FILES = 1024
"""Of one directory: more claims than a node has pods."""

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class UnreadableFileError(Exception):
    """The file is there and cannot be used; the text says why."""


Stamp = tuple[int, int, int, int]
"""Device, inode, size and time of change: another one means another content."""


def stamp(path: Path) -> Stamp | None:
    """Tell which content is at ``path``; None if nothing is there."""
    try:
        status = path.stat(follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns


def read(path: Path, most_bytes: int = MOST_BYTES) -> bytes | None:
    """Return the file's content; None if it is not there. Raises UnreadableFileError.

    A FIFO would wait for its writer, a symbolic link may lead anywhere, a device answers for ever: none is read.
    """
    try:
        descriptor = os.open(path, _OPEN)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        reason = "it is a symbolic link" if path.is_symlink() else error.strerror
        raise UnreadableFileError(f"{path}: {reason}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnreadableFileError(f"{path}: it is no regular file")
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise UnreadableFileError(f"{path}: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if len(data) > most_bytes:
        raise UnreadableFileError(f"{path}: it is larger than {most_bytes:,} bytes")
    return data


def read_line(path: Path) -> str:
    """Return the text of a small file of the kernel, as in sysfs; "" if it cannot be read."""
    try:
        return (read_kernel(path) or b"").decode("utf-8", "replace").strip()
    except UnreadableFileError:
        return ""


def read_kernel(path: Path) -> bytes | None:
    """Return the content of a file of ``/proc`` or sysfs, whose parents may be symbolic links."""
    return read(path, 4096)


def names(directory: Path, most: int = MOST_FILES) -> list[str]:
    """Return at most ``most`` names in a directory, sorted; [] if it is not there or may not be read."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in islice(entries, most))
    except OSError:
        return []
