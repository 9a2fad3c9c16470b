"""Writing a small file so that a crash leaves the old one or the new one, never a part of either."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"  # CDI runtimes read *.json and *.yaml only; our own loaders skip names that begin with a dot


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write to a hidden file beside ``path``, fsync, rename over it, fsync the directory.

    Raises OSError and leaves no temporary file behind. A reader never sees a torn file; a symbolic link at ``path``
    is replaced, not followed.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=TEMPORARY_SUFFIX, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make a rename or an unlink in ``directory`` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
