"""Follow the CDI files of other programs while a configuration names one of their devices, in a thread of its own.

Once a second every file's stat(2) is compared, and only changed files are read. On every file system this notices a
file that is replaced, removed and written again, or written in place. A disk that hangs blocks only this thread.
Before a name is given to kubelet, its file is looked at again (:meth:`CdiIndex.confirm`).
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from drabridge.errors import HostError
from drabridge.inventory.cdi_file import FILE_BYTES_MAX, SpecError, SpecNames, driver_of, read_spec
from drabridge.inventory.cdi_names import CdiNames, resolve
from drabridge.system.io_thread import IoThread
from drabridge.system.memory import release_freed_memory
from drabridge.system.supervise import end, forever
from drabridge.system.untrusted import Unreadable, cut

LOOK_SECONDS = 1.0
LOOK_SHARE = 0.02  # at most this share of the time is spent on looks: directories may have thousands of files
FIRST_SECONDS = 5.0  # how long devices wait for the first look; a disk that hangs must not hold up the others
SETTLE_SECONDS = 2.0  # how long a name may be gone: some programs remove a file and write it again
AGAIN_SECONDS = 0.1
HANGS_SECONDS = 10.0  # the longest time that an answer to kubelet waits for a disk
FILES_MAX = 4096  # in one directory; each claim of each driver may have a file
LARGE_BYTES = 256 * 1024  # read bytes after which free memory is returned to the system
_RACY_NS = 50_000_000  # a file that changed in this time before the read may change again within one time stamp

Stamp = tuple[int, ...]


class _File(Struct, frozen=True):
    """A file as it was read. ``stamp`` is None if it must be read again; ``spec`` is None if it has no wanted kind."""

    stamp: Stamp | None
    spec: SpecNames | None = None
    error: str = ""


class _Reader:
    """Looks at the directories. Everything but the constructor runs in one thread."""

    def __init__(self, directories: Collection[Path], driver: str) -> None:
        """``driver``: the agent's own name; its files are left out, as nobody may ask for their devices."""
        self._directories = tuple(map(str, directories))
        self._ours = (f"{driver}-device-", f"{driver}_metadata_")
        self._kinds: frozenset[str] = frozenset()
        self._files: dict[str, _File] = {}
        self._unreadable = Unreadable("CDI file")
        self._found = CdiNames(self._directories)
        self._read_bytes = 0  # since memory was returned

    def look(self, kinds: frozenset[str]) -> CdiNames:
        """Look for changed files and read them; return which devices of ``kinds`` there are."""
        if kinds != self._kinds:
            self._kinds, self._files = kinds, {}
        before, self._files = self._files, {}
        errors: dict[str, str] = {}
        listed = [(directory, list(self._list(directory, errors))) for directory in self._directories]
        for path in (path for _, paths in listed for path in paths):
            known = before.get(path)
            stamp = _stamp(path) if known is not None and known.stamp is not None else None
            if known is None or stamp is None or stamp != known.stamp:
                known = self._read(path)
            self._files[path] = known
            if known.error:
                errors[path] = known.error
        for path, error in errors.items():
            self._unreadable.tell(path, SpecError(error))
        self._unreadable.keep(errors)
        if self._files != before or any(file.stamp is None for file in self._files.values()) or not self._found.places:
            there = [
                (directory, [(path, spec) for path in paths if (spec := self._files[path].spec) is not None])
                for directory, paths in listed
            ]
            self._found = resolve(there, (f"{cut(path)} is not used: {error}" for path, error in errors.items()))
        if self._read_bytes > LARGE_BYTES:
            self._read_bytes = 0
            release_freed_memory()
        return self._found

    def look_again(self, names: Collection[str], kinds: frozenset[str]) -> CdiNames:
        """Return which devices there are. Look at the files of ``names`` only; at all files if one of these changed."""
        for path in {self._found.places.get(name, "") for name in names}:
            known = self._files.get(path)
            if known is None or known.stamp is None or _stamp(path) != known.stamp:
                return self.look(kinds)
        return self._found

    def _list(self, directory: str, errors: dict[str, str]) -> Iterator[str]:
        """Yield the files that runtimes read, by name (``scanSpecDirs`` in pkg/cdi/spec-dirs.go), but not our own."""
        try:
            found = sorted(name for name in os.listdir(directory) if name.endswith((".json", ".yaml")))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            errors[directory] = error.strerror or str(error)
            return
        theirs = [name for name in found if not name.startswith(self._ours)]
        if len(theirs) > FILES_MAX:
            errors[directory] = f"it has {len(theirs)} CDI files, of which the first {FILES_MAX} are read"
        yield from (os.path.join(directory, name) for name in theirs[:FILES_MAX])

    def _read(self, path: str) -> _File:
        stamp: Stamp | None = None
        try:
            data, stamp = _content(path)
            self._read_bytes += len(data)
            spec = replace(read_spec(data), driver=driver_of(data))
        except FileNotFoundError:
            return _File(None)  # removed meanwhile, or a link to nowhere
        except OSError as error:
            return _File(None, error=error.strerror or str(error))
        except SpecError as error:
            return _File(stamp, error=cut(str(error)))
        return _File(stamp, spec if spec.kind in self._kinds else None)


def _stamp(path: str) -> Stamp | None:
    """Return what changes with a file's content; None if it is not there."""
    try:
        return _stamp_of(os.stat(path))
    except OSError:
        return None


def _stamp_of(found: os.stat_result) -> Stamp:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _content(path: str) -> tuple[bytes, Stamp | None]:
    """Return a regular file's content, at most ``FILE_BYTES_MAX`` + 1 bytes, and its stamp (None: it just changed).

    Raises OSError, SpecError.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a FIFO would wait, opening a device may act on it
        raise SpecError("it is not a regular file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise SpecError("it is not a regular file")
        parts: list[bytes] = []
        left = FILE_BYTES_MAX + 1
        while left > 0 and (part := os.read(descriptor, min(left, 1 << 20))):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(descriptor)
    settled = time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) > _RACY_NS
    return b"".join(parts), _stamp_of(found) if settled else None


class CdiIndex:
    """The CDI devices of other programs that exist, of the kinds (``vendor/class``) that were given to :meth:`follow`.

    Use it on one loop; its thread starts at the first look. ``current`` never waits for a disk. It keeps a name that is
    gone for ``SETTLE_SECONDS``: so devices do not become unhealthy while a file is removed and written again.
    """

    def __init__(self, directories: Collection[Path], driver: str, on_change: Callable[[], None]) -> None:
        self.current = CdiNames(tuple(map(str, directories)))
        self._reader = _Reader(directories, driver)
        self._thread = IoThread("cdi files")
        self._on_change = on_change
        self.kinds: frozenset[str] = frozenset()  # looked for now
        self._lost: dict[str, float] = {}  # names that are gone -> since when
        self._task: asyncio.Task[None] | None = None

    async def follow(self, kinds: Callable[[], frozenset[str]]) -> None:
        """Return when the devices of these kinds are known; follow their files while there are such kinds."""
        while (wanted := kinds()) != self.kinds:
            await self.use(wanted)
        if not self.kinds:
            await self.stop()
        elif self._task is None:
            self._task = asyncio.create_task(forever("CDI files", self.run), name="CDI files")

    async def stop(self) -> None:
        """Stop following the files; :meth:`confirm` still looks at them."""
        task, self._task = self._task, None
        if task is not None:
            await end(task)

    async def use(self, kinds: frozenset[str]) -> None:
        """Look for devices of these kinds (``vendor/class``) from now on; return when they are known.

        If the disk hangs, return after ``FIRST_SECONDS``. Until the disk answers, no device counts as found.
        """
        self.kinds = kinds
        try:
            async with asyncio.timeout(FIRST_SECONDS):
                self._take(await self._thread.run(partial(self._reader.look, kinds)))
        except TimeoutError:
            late = (f"they could not be read within {FIRST_SECONDS:g} s",)
            self.current = CdiNames(self.current.directories, unusable=late)

    async def run(self) -> None:
        """Follow the files until cancelled."""
        while True:
            began, kinds = time.monotonic(), self.kinds
            found = await self._thread.run(partial(self._reader.look, kinds))
            if kinds == self.kinds:
                self._take(found)
            spent = time.monotonic() - began
            await asyncio.sleep(max(AGAIN_SECONDS if self._lost else LOOK_SECONDS, spent / LOOK_SHARE))

    async def confirm(self, names: Collection[str]) -> None:
        """Return once a look at the files has found the devices ``names``. Never touches a disk on the loop.

        Raises HostError if a device is in no file for ``SETTLE_SECONDS``, or if the disk hangs.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            try:
                async with asyncio.timeout(HANGS_SECONDS):
                    found = await self._thread.promptly(partial(self._reader.look_again, names, self.kinds))
            except TimeoutError:
                where = ", ".join(self.current.directories)
                raise HostError(f"CDI files in {where} could not be read within {HANGS_SECONDS:g} s") from None
            self._take(found)
            missing = next(filter(None, map(found.missing, names)), "")
            if not missing:
                return
            if time.monotonic() >= deadline:
                said, _, hint = missing.partition(": ")
                raise HostError(said, hint=hint)
            await asyncio.sleep(AGAIN_SECONDS)

    def _take(self, found: CdiNames) -> None:
        now, before = time.monotonic(), self.current
        lost = {
            name: since
            for name in before.places
            if name not in found.places and now - (since := self._lost.get(name, now)) < SETTLE_SECONDS
        }
        self._lost = lost
        if lost:
            found = replace(found, places={**found.places, **{name: before.places[name] for name in lost}})
        if found != before:
            self.current = found
            self._on_change()
