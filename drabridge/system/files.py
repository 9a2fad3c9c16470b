"""Write a small file so that a crash leaves the old or the new file, never a part of one; read files and folders."""

from __future__ import annotations

import itertools
import os
import time
from enum import IntEnum
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"  # CDI runtimes read *.json and *.yaml only; our own loaders skip names that begin with a dot


_serial = itertools.count()
_AT_ONCE = 65_536


class Care(IntEnum):
    """What a write must survive.

    Each fsync costs milliseconds on a disk, so callers choose the least care that they need.
    """

    PROCESS = 1  # our own death: a rename is enough
    WHOLE = 2  # a power cut: the old or the new file is there, whole
    DURABLE = 3  # a power cut: the new file is there


def write_atomically(path: Path | str, data: bytes, *, mode: int = 0o600, care: Care = Care.DURABLE) -> None:
    """Write to a hidden file beside ``path``, rename it to ``path``, with the fsyncs that ``care`` asks for.

    Raises OSError and leaves no temporary file behind. A reader never sees a torn file; a symbolic link at ``path``
    is replaced, not followed.
    """
    # Not tempfile.mkstemp: it costs more than the write. O_EXCL refuses whatever somebody may have put there.
    directory, name = os.path.split(path)
    hidden = f".{name}.{os.getpid()}-{next(_serial)}-{time.time_ns()}{TEMPORARY_SUFFIX}"
    temporary = os.path.join(directory, hidden)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fchmod(descriptor, mode)
            if care >= Care.WHOLE:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if care >= Care.DURABLE:
        sync_directory(Path(directory))


def read_if_there(path: Path | str) -> bytes | None:
    """Return the content of a small file; None if there is no such file. Raises other OSErrors."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        found = part = os.read(descriptor, _AT_ONCE)
        while len(part) == _AT_ONCE:  # fewer bytes: the end; this saves an Allocate one more read
            part = os.read(descriptor, _AT_ONCE)
            found += part
        return found
    finally:
        os.close(descriptor)


def names_in(folder: Path | str) -> list[str]:
    """Return the names in a folder, sorted; none if it cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def link_name(path: Path | str) -> str:
    """Return the last part of a symbolic link's target; "" if ``path`` is no link."""
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ""


def sync_directory(directory: Path) -> None:
    """Make a rename or an unlink in ``directory`` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
