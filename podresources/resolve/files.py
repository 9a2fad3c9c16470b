"""Read files that somebody else wrote: limited in size and number, regular files only, never waiting.

The one reader of such files: for this package, and for the agent, ``check-config`` and ``migrate``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_BYTES = 1 << 20
"""Limit of one file. NVIDIA's CDI file of a node with eight GPUs has 60 KiB, a claim's file one or two."""

MOST_FILES = 1024
"""Limit of the files of one directory: more claims than a node has pods."""

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class UnreadableFileError(ValueError):
    """The file is there and cannot be used; the text says why, and ``reason`` says it without the file's name."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.reason = reason


class ReadFiles(Generic[T]):
    """What files say, by path in ``contents``. A file, even an unreadable one, is read again only if it changed."""

    def __init__(self, read: Callable[[Path], T], what: str) -> None:
        """``read`` raises UnreadableFileError; ``what`` names the files in problems."""
        self._read, self._what = read, what
        self._seen: dict[Path, tuple[tuple[int, ...], T | None, str]] = {}
        self.contents: dict[Path, T] = {}

    def refresh(self, paths: Iterable[Path]) -> list[str]:
        """Read what is new or changed of these files alone; return a sentence for each that cannot be read."""
        before, self._seen = self._seen, {}
        for path in paths:
            try:
                status = path.stat(follow_symlinks=False)
            except OSError:
                continue
            stamp = (status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
            known = before.get(path)
            self._seen[path] = known if known is not None and known[0] == stamp else (stamp, *self._content(path))
        self.contents = {path: content for path, (_, content, _) in self._seen.items() if content is not None}
        return [problem for _, _, problem in self._seen.values() if problem]

    def _content(self, path: Path) -> tuple[T | None, str]:
        try:
            return self._read(path), ""
        except UnreadableFileError as error:
            return None, f"{self._what} {error}"


def read(path: Path, most_bytes: int = MOST_BYTES) -> bytes | None:
    """Return the file's content; None if it is not there. Raises UnreadableFileError.

    None of these is opened: a FIFO, which would wait for its writer; a symbolic link, which may lead anywhere; a
    device, which may answer forever, or act when it is opened.
    """
    try:
        mode = os.stat(path, follow_symlinks=False).st_mode
        if not stat.S_ISREG(mode):
            raise UnreadableFileError(path, "it is a symbolic link" if stat.S_ISLNK(mode) else "it is no regular file")
        descriptor = os.open(path, _OPEN)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UnreadableFileError(path, error.strerror or str(error)) from error
    except UnreadableFileError:
        raise
    except ValueError as error:
        raise UnreadableFileError(path, "no file can have this name") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnreadableFileError(path, "it is no regular file")
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            data = _all_of(file, most_bytes + 1)
    except OSError as error:
        raise UnreadableFileError(path, error.strerror or str(error)) from error
    finally:
        os.close(descriptor)
    if len(data) > most_bytes:
        raise UnreadableFileError(path, f"it is larger than {most_bytes:,} bytes")
    return data


def read_named(path: Path, most_bytes: int = MOST_BYTES) -> bytes | None:
    """Return the content of a file that the operator named, or kubelet mounted; it may be a symbolic link."""
    try:
        real = Path(os.path.realpath(path))
    except ValueError as error:
        raise UnreadableFileError(path, "no file can have this name") from error
    try:
        return read(real, most_bytes)
    except UnreadableFileError as error:
        raise UnreadableFileError(path, error.reason) from error.__cause__


def leads_out(path: Path, roots: Collection[Path]) -> bool:
    """Tell whether a path, with its symbolic links followed, is in none of ``roots``, which contain no links."""
    real = Path(os.path.realpath(path))
    return not any(real.is_relative_to(root) for root in roots)


def _all_of(file: FileIO, most: int) -> bytes:
    """Read to the end, or to ``most`` bytes: the kernel gives 2 GiB at once, a file of ``/proc`` a page."""
    parts = []
    while most > 0 and (part := file.read(min(most, 1 << 20))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


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
