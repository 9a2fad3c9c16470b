"""Keep CDI spec files in the CDI directory: write, remove, list, regenerate.

There is one file for each legacy device that is held, and one for each prepared claim. A file is there until nothing
can refer to its names any more. The CDI directory is a tmpfs on most hosts: callers regenerate their files at start.
What is in a file: :mod:`drabridge.containers.cdi_spec`.
"""

from __future__ import annotations

import errno
import fnmatch
import json
import os
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Any

from drabridge.containers import cdi_spec, together
from drabridge.containers.cdi_spec import CdiDevice, CdiSpec, ClaimDeviceName, ContainerEdits
from drabridge.errors import HostError, host_errors
from drabridge.inventory.devices import Device
from drabridge.system.files import TEMPORARY_SUFFIX, Care, read_if_there, write_atomically
from drabridge.system.io_thread import IoThread
from podresources.resolve import files

PROBE_BYTES = 4096  # a block: a full file system may still make empty files


class Family(StrEnum):
    """What a file is for; the part of its name after the kind."""

    LEGACY = "legacy"
    CLAIM = cdi_spec.CLAIM


class CdiStore:
    """The spec files of one kind in one directory.

    Files of anybody else are never read, changed or removed.
    """

    def __init__(self, directory: Path, vendor: str) -> None:
        """``vendor`` is a domain name; the kind is ``vendor/device``."""
        if not cdi_spec.VENDOR.fullmatch(vendor):
            raise ValueError(f"{vendor} is not a vendor in CDI: letters, digits, '-', begin with a letter")
        self.directory = directory
        self.vendor = vendor
        self.kind = f"{vendor}/device"
        self.error = ""  # why the last write failed, until :meth:`probe` succeeds
        self.thread = IoThread("cdi")  # for callers that must not wait for the directory's disk
        self._prefix = f"{vendor}-device-"
        self._written: set[str] = set()  # names of files that were written and not removed

    def legacy_spec(self, device: Device) -> CdiSpec:
        """Return the spec of a device that containers hold through the DevicePlugin API.

        All of a device's ids (replicas) are the same hardware, so all get one name. It stays the same for as long as
        the device exists.
        """
        entries = together.legacy_entries(cdi_spec.entries_of(_legacy_name(device), device, ContainerEdits.of(device)))
        return CdiSpec(self.file_name(Family.LEGACY, device.name), self.kind, tuple(entries))

    def write_legacy(self, device: Device, index: int | None = None) -> tuple[str, ...]:
        """Write a device's file as :meth:`write` does; return the names by which a container gets the device now.

        ``index``: its position among the devices that the container gets together; their variables come with the answer
        to kubelet.
        """
        spec = self.legacy_spec(device)
        self.write(spec)
        return cdi_spec.names_given(spec, _legacy_name(device), device, index)

    def claim_spec(self, uid: str, devices: Iterable[CdiDevice]) -> CdiSpec:
        """Return the spec of a prepared claim; the devices' names come from ``cdi_spec.claim_device_name``."""
        return CdiSpec(self.file_name(Family.CLAIM, uid), self.kind, tuple(devices))

    def file_name(self, family: Family, key: str) -> str:
        """Return the file name for one legacy device or one claim UID.

        Raises HostError if ``key`` cannot be one.
        """
        if not cdi_spec.DEVICE_NAME.fullmatch(key) or len(key) > 128:
            raise HostError(
                f"{key!r} cannot be part of a CDI file name", hint="A device name or a claim UID was expected"
            )
        return f"{self.prefix(family)}{key}.json"

    def prefix(self, family: Family) -> str:
        """Return the prefix of the names of a family's files."""
        return f"{self._prefix}{family}-"

    # Writing.

    def write(self, spec: CdiSpec) -> tuple[str, ...]:
        """Write the file of ``spec``; return the names for kubelet.

        An identical file is left alone; a missing, edited or torn one is written. A spec with nothing to inject has
        no file and no names. Raises HostError when the directory cannot be written.
        """
        data = spec.encode()
        if not data:
            self.remove_file(spec.file_name)
            return ()
        path = os.path.join(self.directory, spec.file_name)
        try:
            with _host_errors(self.directory):
                if read_if_there(path) != data:
                    self._put(path, data)
        except HostError as error:
            self.error = str(error)
            raise
        self._written.add(spec.file_name)
        return spec.names

    def has(self, spec: CdiSpec) -> bool:
        """Tell whether the file of ``spec`` is there and says the same. Raises HostError."""
        with _host_errors(self.directory):
            return read_if_there(os.path.join(self.directory, spec.file_name)) == spec.encode()

    def probe(self) -> bool:
        """Tell, after a failure, whether files can be written now.

        Nobody but us sees the file that this makes.
        """
        path = os.path.join(self.directory, f".{self.prefix(Family.LEGACY)}probe{TEMPORARY_SUFFIX}")
        try:
            with _host_errors(self.directory):
                self._put(path, bytes(PROBE_BYTES))
                os.unlink(path)
        except HostError as error:
            self.error = str(error)
            return False
        self.error = ""
        return True

    def regenerate(self, family: Family, specs: Iterable[CdiSpec], *, keep: Collection[str] = ()) -> tuple[str, ...]:
        """At start: write every spec that something may still refer to; remove the family's other files.

        Files of the keys in ``keep`` stay as they are: something may refer to them, and nobody can say what they should
        hold. What a crash left half written is removed too. Returns the names of the files that were removed. Raises
        HostError.
        """
        wanted = {spec.file_name: spec for spec in specs}
        kept = {f"{self.prefix(family)}{key}.json" for key in keep}  # a key that is no name has no file
        for spec in wanted.values():
            self.write(spec)
        stale = [path.name for path in self._ours(family) if path.name not in wanted and path.name not in kept]
        for name in stale:
            self.remove_file(name)
        with _host_errors(self.directory):
            for leftover in self._list(f".{self.prefix(family)}*{TEMPORARY_SUFFIX}"):
                leftover.unlink(missing_ok=True)
        return tuple(sorted(stale))

    def _put(self, path: str, data: bytes) -> None:
        try:  # no fsync: what a power cut tears is written again at start; until then runtimes refuse it
            write_atomically(path, data, mode=0o644, care=Care.PROCESS)
        except FileNotFoundError:
            self.directory.mkdir(mode=0o755, exist_ok=True)
            write_atomically(path, data, mode=0o644, care=Care.PROCESS)

    # Removing.

    def remove(self, family: Family, key: str) -> bool:
        """Remove the file of one legacy device or one claim; false if there was none."""
        return self.remove_file(self.file_name(family, key))

    def remove_file(self, file_name: str) -> bool:
        """Remove a file by the name in its :class:`CdiSpec`; false if there was none. Raises HostError."""
        self._written.discard(file_name)
        path = self.directory / file_name
        with _host_errors(self.directory):
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                return False
            except OSError as error:  # a read-only file system refuses before it looks for the file (unlink(2))
                if error.errno != errno.EROFS or os.path.lexists(path):
                    raise
                return False
        return True

    # Looking.

    def missing(self) -> tuple[str, ...]:
        """List the files that were written and that somebody else removed since the last call, sorted by name.

        A directory that cannot be listed counts as a failed write: once :meth:`probe` succeeds, all files are written.
        """
        try:
            there = set(os.listdir(self.directory))
        except FileNotFoundError:
            there = set()  # it is made again with the next file
        except OSError as error:
            self.error = f"cannot keep CDI files in {self.directory}: {error.strerror or error}"
            return ()
        gone = self._written - there
        self._written -= gone
        return tuple(sorted(gone))

    def keys(self, family: Family) -> tuple[str, ...]:
        """List the device names or claim UIDs that have a file of ours, sorted."""
        prefix = self.prefix(family)
        return tuple(sorted(path.name[len(prefix) : -len(".json")] for path in self._ours(family)))

    def metadata_files(self) -> tuple[str, ...]:
        """List the files that mount claims' device metadata (:mod:`drabridge.dra.metadata`), sorted by name."""
        return tuple(path.name for path in self._list(f"{self.vendor}_metadata_*.json"))

    def claims(self) -> dict[str, tuple[ClaimDeviceName, ...]]:
        """Read every claim's file: claim UID -> what the file says of each device; () for a torn file."""
        found = {}
        # What does not match is no file of ours: a copy by hand.
        for uid in filter(cdi_spec.DEVICE_NAME.fullmatch, self.keys(Family.CLAIM)):
            document = _document(self.directory / f"{self.prefix(Family.CLAIM)}{uid}.json")
            entries = document.get("devices") if document else None
            entries = entries if isinstance(entries, list) else []
            names = [str(entry.get("name")) for entry in entries if isinstance(entry, dict)]
            found[uid] = cdi_spec.claim_device_names(uid, names)
        return found

    def _ours(self, family: Family) -> list[Path]:
        """List a family's files whose content does not claim another kind (a torn file of ours claims none)."""
        return [path for path in self._list(f"{self.prefix(family)}*.json") if _kind(path) in (self.kind, None)]

    def _list(self, pattern: str) -> list[Path]:
        with _host_errors(self.directory):
            try:
                names = os.listdir(self.directory)
            except (FileNotFoundError, NotADirectoryError):
                return []
            return [self.directory / name for name in sorted(fnmatch.filter(names, pattern))]


def _legacy_name(device: Device) -> str:
    return f"{Family.LEGACY}-{device.name}"


def _kind(path: Path) -> str | None:
    kind = (_document(path) or {}).get("kind")
    return kind if isinstance(kind, str) else None


def _document(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(files.read(path) or b"")  # other programs write there, too
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _host_errors(directory: Path) -> AbstractContextManager[None]:
    """Turn every OSError into a HostError that says what to do about the CDI directory."""
    hint = (
        "The directory must exist on the host, be mounted read-write at the same path, "
        "and be one that the container runtime reads (/var/run/cdi or /etc/cdi)"
    )
    return host_errors(f"cannot keep CDI files in {directory}", hint=hint)
