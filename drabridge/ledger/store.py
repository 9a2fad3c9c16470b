"""Keep the ledger on disk: one file, a snapshot followed by a journal. An unreadable entry never counts as free.

``ledger.jsonl`` is text, one record a line, each with the CRC-32 of its own bytes in front. The first line is the
envelope: format, version, node, sequence number, number of entries. The entries follow, then one line for each commit
with the entries that it replaced. A commit is one ``write`` and one ``fsync``, whatever the number of devices. When the
journal outgrows its limit, the file is rewritten: temporary file, fsync, rename, fsync of the directory. The copy from
before stays as ``ledger.jsonl.previous``.

A last line without its end was never acknowledged and is dropped. At any other damage of the journal the reading ends,
and what was read so far is kept. If the snapshot is damaged, the previous copy is read instead. In these two cases
every device that looks free is quarantined.

The Node's UID is not in the file. If the Node object is created again, that changes nothing about who holds the
machine's devices: pods end and claims are deallocated as always. Also, no API server can be asked when the file is
read.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path

from msgspec import Struct, field

from drabridge.errors import HostError
from drabridge.ledger.codec import (
    ENTRY_FIELDS,
    Json,
    UnreadableLedgerError,
    decode,
    encode,
    entry_from_json,
    entry_to_json,
    node_from_json,
    node_to_json,
)
from drabridge.ledger.entries import Entry, Ledger, NodeState
from drabridge.ledger.lock import Lock, same_file

log = logging.getLogger(__name__)

FORMAT = "drabridge-ledger"
VERSION = 1
FILE = "ledger.jsonl"
_COMPACT_BYTES = 1 << 20  # size of the journal; replaying one MiB takes about 50 ms, half of the budget of a start
_KEPT_ASIDE = 5  # how many unreadable files are kept for a person to look at


class Loaded(StrEnum):
    """How much of the ledger could be read."""

    FRESH = "fresh"  # the agent never ran here
    COMPLETE = "complete"
    REPAIRED = "repaired"  # a commit that was never acknowledged was dropped
    PARTIAL = "partial"  # read up to some point, or an older copy: a device that looks free may be held
    LOST = "lost"  # nothing can be read


class LoadResult(Struct, frozen=True):
    """What a start found on disk."""

    kind: Loaded
    ledger: Ledger
    message: str = ""  # for people; empty if all is well
    hint: str = ""  # what ends a quarantine

    @property
    def doubtful(self) -> bool:
        """Whether a device that looks free may be held."""
        return self.kind in (Loaded.PARTIAL, Loaded.LOST)


class _Read(Struct):
    """What was read of a file."""

    entries: dict[str, Entry] = field(default_factory=dict)
    node: NodeState = field(default_factory=NodeState)
    seq: int = 0
    envelope: Json = field(default_factory=dict)
    unknown: dict[str, Json] = field(default_factory=dict)  # device -> fields that a newer agent wrote
    torn: bool = False  # the last line has no end
    fault: str = ""  # the damage that ended the reading

    @property
    def ledger(self) -> Ledger:
        return Ledger.of(self.entries.values(), self.node, self.seq)


class Store:
    """The only writer of the ledger of one node. Raises HostError if another process is the writer, or the disk fails.

    ``lock`` is the directory's lock if the caller already has it. ``fsync`` is the only call that tests replace: to
    lose what was not synced, or to fail.
    """

    def __init__(
        self, directory: Path, *, node: str, lock: Lock | None = None, fsync: Callable[[int], None] = os.fsync
    ) -> None:
        self.path = directory / FILE
        self.previous = directory / f"{FILE}.previous"
        self.node = node
        self._fsync = fsync
        self._fd: int | None = None
        self._opened: os.stat_result | None = None  # the file of ``_fd``
        self._journal_bytes = 0
        self._envelope: Json = {}
        self._unknown: dict[str, Json] = {}
        self._lock = lock or Lock(directory)

    def close(self) -> None:
        """Close the file and let another process have the ledger."""
        self._drop()
        self._lock.close()

    # --- reading ---

    def load(self) -> LoadResult:
        """Read what there is. Every file has a defined result, and no unreadable entry comes out as free."""
        try:
            read = _read(self.path, self.node)
        except FileNotFoundError:
            if not self._lock.ran_before and not self.previous.exists():
                return LoadResult(Loaded.FRESH, Ledger())
            return self._from_previous(f"{self.path} is missing though the agent ran here before")
        except (OSError, UnreadableLedgerError) as error:
            return self._from_previous(f"{self.path} cannot be read: {_reason(error)}")
        self._envelope, self._unknown = read.envelope, read.unknown
        if read.fault:
            return LoadResult(
                Loaded.PARTIAL,
                read.ledger,
                f"{self.path} is damaged: {read.fault}{_kept(self._set_aside())}; "
                "kept what came before, quarantined what looked free there",
                _HINT,
            )
        mode = self._close_mode()
        if read.torn:
            torn = "dropped an unfinished commit that nobody was told about"
            return LoadResult(Loaded.REPAIRED, read.ledger, f"{mode}; {torn}" if mode else torn)
        return LoadResult(Loaded.COMPLETE, read.ledger, mode)

    def _from_previous(self, problem: str) -> LoadResult:
        """Read the copy from before the last rewrite. Its holders count, but devices that look free may be held."""
        problem += _kept(self._set_aside())
        try:
            read = _read(self.previous, self.node)
        except (OSError, UnreadableLedgerError):
            return LoadResult(Loaded.LOST, Ledger(), f"{problem}; there is no older copy, began without it", _HINT)
        self._envelope, self._unknown = read.envelope, read.unknown
        message = f"{problem}; took {self.previous} instead and quarantined what looked free there"
        return LoadResult(Loaded.PARTIAL, read.ledger, message, _HINT)

    def _close_mode(self) -> str:
        mode = stat.S_IMODE(self.path.stat().st_mode)
        if not mode & 0o077:
            return ""
        self.path.chmod(0o600)
        return f"{self.path} was open to others (mode {mode:04o}); now 0600"

    def _set_aside(self) -> Path | None:
        """Rename a file that cannot be read, so that a person can look at it; None if that fails or is not needed."""
        if not os.path.lexists(self.path):
            return None
        places = [self.path.with_name(f"{FILE}.unreadable-{n}") for n in range(1, _KEPT_ASIDE + 1)]
        place = next((place for place in places if not os.path.lexists(place)), None)
        if place is None:
            return None  # the next rewrite replaces this one; the oldest files tell the most
        try:
            self.path.rename(place)
        except OSError:
            return None
        return place

    # --- writing ---

    def append(self, ledger: Ledger, names: Iterable[str], removed: Iterable[str] = ()) -> None:
        """Make the devices ``names`` and the node's state of ``ledger`` durable. Raises HostError if that fails.

        After a failure the next call writes the whole file again, because nobody knows what the kernel kept of a failed
        fsync. The file is also written again if it is no longer at its path: no agent would read what was appended to a
        removed file.
        """
        if self._fd is None or self._journal_bytes > _COMPACT_BYTES:
            self.rewrite(ledger)
            return
        record: Json = {
            "seq": ledger.seq,
            "node_state": node_to_json(ledger.node),
            "entries": [self._entry(ledger.entries[name]) for name in names if name in ledger.entries],
        }
        if gone := sorted(removed):
            record["removed"] = gone
        line = encode(record)
        try:
            _write(self._fd, line)
            self._fsync(self._fd)
        except OSError as error:
            self._drop()
            raise self._failed(error) from error
        self._journal_bytes += len(line)
        if self._opened is None or not same_file(self.path, self._opened):
            log.error("ledger file removed or replaced; written anew", extra={"path": str(self.path)})
            self.rewrite(ledger)

    def rewrite(self, ledger: Ledger) -> None:
        """Replace the file by a snapshot of ``ledger``; the former file becomes the previous copy."""
        self._drop()
        self._lock.renew()
        envelope = self._envelope | {
            "format": FORMAT,
            "version": VERSION,
            "node": self.node,
            "seq": ledger.seq,
            "entries": len(ledger.entries),
            "node_state": node_to_json(ledger.node),
        }
        temporary = self.path.with_name(f"{FILE}.new")
        try:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                _write(fd, b"".join(map(encode, (envelope, *map(self._entry, ledger.entries.values())))))
                self._fsync(fd)
                if self.path.is_dir() and self._set_aside() is None:
                    raise OSError(errno.EISDIR, "a directory is in the way", str(self.path))
                self._keep_previous()
                temporary.replace(self.path)
                _sync_directory(self.path.parent, self._fsync)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            raise self._failed(error) from error
        self._fd, self._opened = fd, os.fstat(fd)
        self._journal_bytes = 0

    def _keep_previous(self) -> None:
        link = self.path.with_name(f"{FILE}.link")
        with contextlib.suppress(FileNotFoundError):
            link.unlink()
        with contextlib.suppress(FileNotFoundError):
            os.link(self.path, link)
            link.replace(self.previous)

    def _entry(self, entry: Entry) -> Json:
        data = entry_to_json(entry)
        unknown = self._unknown.get(entry.name)
        return {**unknown, **data} if unknown else data

    def _drop(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _failed(self, error: OSError) -> HostError:
        return HostError(
            f"the ledger cannot be written to {self.path}: {error.strerror or error}",
            hint="nothing is granted until it can; check free space and the disk",
        )


_HINT = (
    "devices leave quarantine when kubelet and the API server show that nobody uses them ('drabridge status' says what "
    "is missing), or by hand: 'drabridge lanes release DEVICE'"
)
_BAD_RECORD = (ArithmeticError, ValueError, KeyError, TypeError, AttributeError)


def read_if_possible(directory: Path, *, node: str) -> Ledger | None:
    """Read the ledger of another writer as far as possible; None if nothing about this node can be read."""
    try:
        return _read(directory / FILE, node).ledger
    except (OSError, UnreadableLedgerError):
        return None


def read_completely(directory: Path, *, node: str) -> Ledger | None:
    """Read the ledger of another writer to its end; None if there is none about this node.

    Raises HostError if it cannot be read to its end: devices that look free in it may be held.
    """
    path = directory / FILE
    try:
        read = _read(path, node)
    except FileNotFoundError:
        if not (directory / f"{FILE}.previous").exists():
            return None
        raise HostError(f"{path} is missing, and there is an older copy of it") from None
    except _OtherNode:
        return None
    except (OSError, UnreadableLedgerError) as error:
        raise HostError(f"{path} cannot be read: {_reason(error)}") from error
    if read.fault:
        raise HostError(f"{path} is damaged: {read.fault}")
    return read.ledger


class _OtherNode(UnreadableLedgerError):
    """A ledger of another node, for example on a copied disk."""


def _read(path: Path, node_name: str) -> _Read:
    lines = path.read_bytes().split(b"\n")
    tail = lines.pop()  # empty if the file ends as it should
    if not lines:
        raise UnreadableLedgerError("it is empty" if not tail else "it ends within its first line")
    envelope = decode(lines[0])
    _check_envelope(envelope, node_name)
    try:
        node, seq, count = (
            node_from_json(envelope["node_state"]),
            int(envelope["seq"]),
            int(envelope["entries"]),
        )
    except _BAD_RECORD as error:
        raise UnreadableLedgerError(f"its envelope is damaged ({error})") from error
    read = _Read(node=node, seq=seq, envelope=envelope, torn=bool(tail))
    if len(lines) <= count:
        raise UnreadableLedgerError(f"it ends after {len(lines) - 1} of {count} entries")
    try:
        for line in lines[1 : count + 1]:
            _add_entry(read, decode(line))
    except (*_BAD_RECORD, UnreadableLedgerError) as error:
        raise UnreadableLedgerError(f"an entry of its snapshot is damaged ({error})") from error
    for number, line in enumerate(lines[count + 1 :], count + 2):
        try:
            _replay(read, decode(line))
        except (*_BAD_RECORD, UnreadableLedgerError) as error:
            read.fault = f"line {number} ({error})"
            break
    return read


def _check_envelope(envelope: Json, node: str) -> None:
    if envelope.get("format") != FORMAT:
        raise UnreadableLedgerError(f"its format is {envelope.get('format')!r}, expected {FORMAT!r}")
    version = envelope.get("version")
    if not isinstance(version, int) or version < 1:
        raise UnreadableLedgerError(f"its version is {version!r}; versions begin with 1")
    if version > VERSION:
        raise UnreadableLedgerError(f"it was written by a newer agent (version {version}, this one reads {VERSION})")
    if envelope.get("node") != node:
        raise _OtherNode(f"it belongs to node {envelope.get('node')!r}, this is {node!r}")
    missing = {"seq", "entries", "node_state"} - envelope.keys()
    if missing:
        raise UnreadableLedgerError(f"its envelope lacks {', '.join(sorted(missing))}")


def _add_entry(read: _Read, data: Json) -> None:
    entry = entry_from_json(data)
    read.entries[entry.name] = entry
    if unknown := {key: value for key, value in data.items() if key not in ENTRY_FIELDS}:
        read.unknown[entry.name] = unknown


def _replay(read: _Read, record: Json) -> None:
    seq = int(record["seq"])
    if seq < read.seq:
        raise ValueError(f"its sequence number {seq} comes after {read.seq}")
    for data in record["entries"]:
        _add_entry(read, data)
    for name in record.get("removed", ()):
        read.entries.pop(name, None)
    read.node = node_from_json(record["node_state"])
    read.seq = seq


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync_directory(directory: Path, fsync: Callable[[int], None]) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fsync(fd)
    finally:
        os.close(fd)


def _kept(aside: Path | None) -> str:
    return f" (kept as {aside.name})" if aside is not None else ""


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return str(error)
