"""Keep on disk what this node has prepared: one JSON file for each claim UID.

Unprepare gets only the UID, and a replayed prepare must give the same answer, so the record has everything that both
need. A file that cannot be read is put aside: it is never believed, and never a reason to stop. The document has a
version, and fields of a newer agent survive being read and written by an older one. There is no checksum over
re-serialised fields: that made other drivers refuse their own files after an upgrade.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from drabridge.config.fabric import is_fabric_pool
from drabridge.dra.concurrency import KeyedLocks
from drabridge.errors import HostError, host_errors
from drabridge.ledger.entries import ClaimRef, ClaimShare
from drabridge.ledger.events import DeviceUse
from drabridge.system.files import TEMPORARY_SUFFIX, Care, read_if_there, sync_directory, write_atomically
from drabridge.system.io_thread import IoThread

log = logging.getLogger(__name__)

VERSION = 1
PROBE_BYTES = 4096  # one block, because a full file system can still make empty files
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,126}")


class RecordState(StrEnum):
    """How far a prepare has come. The names are those of the checkpoint of NVIDIA's driver."""

    STARTED = "PrepareStarted"  # side effects may have happened
    COMPLETED = "PrepareCompleted"  # kubelet has got the answer, or may have got it


class PreparedDevice(Struct, frozen=True, omit_defaults=True):
    """One allocation result, with what was chosen for it and what kubelet was told."""

    request: str  # as allocated: "gpu", or "gpu/large" for an alternative of a prioritized list
    pool: str
    device: str
    share_id: str = field(default="", name="shareID")
    admin: bool = field(default=False, name="adminAccess")
    profile: str = ""
    env: Mapping[str, str] = {}  # from the claim's or class's parameters
    cdi_ids: tuple[str, ...] = field(default=(), name="cdiDeviceIDs")
    unprepare: Mapping[str, Any] | None = None  # the hook as configured at prepare: {command, timeoutSeconds}
    consumed: Mapping[str, int] = field(default_factory=dict, name="consumedCapacity")  # a share's; base units

    @property
    def base_request(self) -> str:
        """Return the name by which a container refers to the request."""
        return self.request.partition("/")[0]

    @property
    def share(self) -> ClaimShare | None:
        """The share in the ledger's words; None for a whole device."""
        return ClaimShare(self.share_id, tuple(sorted(self.consumed.items()))) if self.share_id else None


class ClaimRecord(Struct, frozen=True):
    """The record of one claim. ``boot_id``: the boot in which its side effects were made."""

    claim: ClaimRef
    state: RecordState
    boot_id: str = field(name="bootID")
    devices: tuple[PreparedDevice, ...]
    created_at: float = field(default=0.0, name="createdAt")
    pod_claim_name: str = field(default="", name="podClaimName")  # what pods made from a template call the claim
    unknown: Mapping[str, Any] = {}  # further fields that a newer agent wrote

    @property
    def uses(self) -> tuple[DeviceUse, ...]:
        """This node's devices in the ledger's words."""
        own = (device for device in self.devices if not is_fabric_pool(device.pool))
        return tuple(DeviceUse(d.device, d.share, d.admin) for d in own)

    def encode(self) -> bytes:
        """Encode the record as its file has it."""
        document = msgspec.to_builtins(self)
        document = {**document.pop("unknown"), **document, "version": VERSION}
        return (json.dumps(document, sort_keys=True) + "\n").encode()  # indenting costs more than the write

    @classmethod
    def decode(cls, data: bytes) -> ClaimRecord:
        """Decode a file. Malformed data raises any exception, for example KeyError."""
        document = json.loads(data)
        if not isinstance(document["version"], int):
            raise ValueError("not a record of a prepared claim")
        known = {"version", *cls.__struct_encode_fields__}
        unknown = {key: value for key, value in document.items() if key not in known}
        try:
            return msgspec.convert({**document, "unknown": unknown}, cls)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error


class RecordStore:
    """The records of one directory, read from the disk each time: an operator may have changed them.

    A damaged record is put aside and logged; from then on it counts as missing.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._unreadable: set[str] = set()  # UIDs whose damage was logged
        self.error = ""  # why the last record could not be saved, until :meth:`probe` finds that saving works again

    def path(self, uid: str) -> Path:
        """Return the path of a claim's record. Raises HostError for a UID that could not be a file's name."""
        if not _UID.fullmatch(uid):
            raise HostError(f"{uid!r} is not a claim UID")
        return self.directory / f"{uid}.json"

    def load(self, uid: str) -> ClaimRecord | None:
        """Read a claim's record; None if there is none, or a damaged one. Raises HostError."""
        path = self.path(uid)
        with host_errors(f"cannot read {path}"):
            data = read_if_there(path)
        if data is None:
            return None
        try:
            record = ClaimRecord.decode(data)
            if record.claim.uid != uid:
                raise ValueError(f"it is about the claim {record.claim.uid}")
        except (ArithmeticError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._put_aside(path, error)
            return None
        return record

    def save(self, record: ClaimRecord) -> None:
        """Write a record; a power cut may bring back the former one. Raises HostError.

        This is enough: the ledger has the holders, durably. After a reboot no side effect is left to be undone, and
        kubelet again prepares the claims that still have pods.
        """
        care = Care.WHOLE if record.state is RecordState.COMPLETED else Care.PROCESS
        self._put(self.path(record.claim.uid), record.encode(), care)

    def probe(self) -> bool:
        """After a failure, test whether a record could be saved now."""
        path = self.directory / f".probe{TEMPORARY_SUFFIX}"
        try:
            self._put(path, bytes(PROBE_BYTES), Care.PROCESS)
            path.unlink()
        except (HostError, OSError):
            return False
        return True

    def _put(self, path: Path, data: bytes, care: Care) -> None:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(path, data, care=care)
        except OSError as error:
            self.error = f"cannot record the claim in {self.directory}: {error.strerror}"
            raise HostError(self.error, hint="The state directory must be writable and have room") from error
        self.error = ""

    def delete(self, uid: str) -> None:
        """Remove a record, durably: a power cut must not bring a holder back. A missing record is no error."""
        path = self.path(uid)
        with host_errors(f"cannot remove {path}"):
            if path.exists():
                path.unlink()
                sync_directory(self.directory)

    def all(self) -> tuple[ClaimRecord, ...]:
        """Return every record, sorted by UID; one that the disk cannot read is logged and left out."""
        paths = sorted(self.directory.glob("*.json")) if self.directory.is_dir() else ()
        found = []
        for path in paths:
            if _UID.fullmatch(path.stem):
                try:
                    found.append(self.load(path.stem))
                except HostError as error:
                    if path.stem not in self._unreadable:
                        log.error("claim record left out", extra={"reason": str(error)})
                    self._unreadable.add(path.stem)
        return tuple(record for record in found if record is not None)

    def unlisted(self, records: Iterable[ClaimRecord]) -> frozenset[str]:
        """Return the UIDs of claims with a file here that are not in ``records``: the file is damaged or unreadable."""
        known = {record.claim.uid for record in records}
        return frozenset(path.name.partition(".json")[0] for path in self.directory.glob("[!.]*.json*")) - known

    def sweep(self) -> None:
        """At start: remove files that a crash left half written. If the disk refuses, they stay: nobody reads them."""
        for leftover in self.directory.glob(f".*{TEMPORARY_SUFFIX}"):
            with contextlib.suppress(OSError):
                leftover.unlink()

    def _put_aside(self, path: Path, error: Exception) -> None:
        aside = path.with_name(f"{path.name}.corrupt-{time.time_ns()}")
        try:
            path.rename(aside)
            sync_directory(self.directory)
        except OSError as rename_error:
            raise HostError(f"{path} is damaged and cannot be moved aside: {rename_error.strerror}") from rename_error
        why = f"the record {path.name} of a prepared claim is damaged ({error})"
        log.error("claim record quarantined", extra={"reason": why, "path": str(aside)})


class ClaimRecords:
    """The records for use on the loop: a lock for each claim, and a thread that waits for the disk."""

    def __init__(self, store: RecordStore, disk: IoThread, boot_id: str) -> None:
        self._store = store
        self._disk = disk
        self._locks = KeyedLocks()
        self.boot_id = boot_id

    def lock(self, uid: str) -> asyncio.Lock:
        """Return the lock for work on this claim, for ``async with``."""
        return self._locks.lock(uid)

    def of_this_boot(self, record: ClaimRecord) -> bool:
        """Whether the side effects of the record were made in this boot."""
        return record.boot_id == self.boot_id

    async def load(self, uid: str) -> ClaimRecord | None:
        return await self._disk.promptly(lambda: self._store.load(uid))

    async def save(self, record: ClaimRecord) -> None:
        await self._disk.promptly(lambda: self._store.save(record))

    async def delete(self, uid: str) -> None:
        await self._disk.promptly(lambda: self._store.delete(uid))

    @contextlib.asynccontextmanager
    async def deleted_meanwhile(self, uid: str) -> AsyncIterator[None]:
        """Remove a record while the block runs. Raises what :meth:`delete` raises, unless the block has failed."""
        job = self._disk.submit(lambda: self._store.delete(uid))
        yield
        await self._disk.settle(job)

    async def all(self) -> tuple[ClaimRecord, ...]:
        return await self._disk.promptly(self._store.all)

    async def all_after_crash(self) -> tuple[ClaimRecord, ...]:
        """At start: remove files that a crash left half written, and return every record."""

        def sweep_and_read() -> tuple[ClaimRecord, ...]:
            self._store.sweep()
            return self._store.all()

        return await self._disk.promptly(sweep_and_read)

    async def unlisted(self, records: Iterable[ClaimRecord]) -> frozenset[str]:
        return await self._disk.promptly(lambda: self._store.unlisted(records))
