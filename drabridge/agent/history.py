"""Keep who had which device when: one line for each ended hold, in two files of bounded size.

The thread for the state directory writes ``history.jsonl``, without fsync: nothing depends on it, since the ledger says
who holds a device now. When it has ``FILE_BYTES``, it is renamed to ``history.1.jsonl``. Readers skip a line that a
crash cut short.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from drabridge.agent.requests import read_request
from drabridge.errors import ConfigError
from drabridge.status.document import stamp
from drabridge.system.files import read_if_there
from drabridge.system.io_thread import IoThread
from drabridge.telemetry.holds import CLAIMS, Ended, Holding, Holds

log = logging.getLogger(__name__)

FILE_NAME, OLDER_FILE_NAME = "history.jsonl", "history.1.jsonl"
FILE_BYTES = 2 << 20  # about 6,000 holds; there are two files
WAITING_MAX = 10_000  # lines kept in memory while the disk hangs or is full
LIMIT = 100  # holds in an answer, unless the request says how many

EXAMPLE = '{"device": "GPU-8f1c", "limit": 100}'

Row = dict[str, Any]


class _Asked(Struct):
    device: str | None = None
    limit: Annotated[int, Meta(ge=1)] = LIMIT


class History:
    """The files of one state directory. One agent at a time writes them: the one with the ledger's lock."""

    def __init__(self, state: Path, files: IoThread, holds: Holds) -> None:
        self._path, self._older = state / FILE_NAME, state / OLDER_FILE_NAME
        self._files = files
        self._holds = holds
        self._waiting: deque[bytes] = deque(maxlen=WAITING_MAX)  # this loop appends lines, the thread takes them
        self._whole = False  # whether this process knows that the file's last line is complete
        self._failed = ""

    def add(self, ended: Iterable[Ended]) -> None:
        """Write ended holds soon, in the state directory's thread."""
        lines = [json.dumps(_row(one.holding, one.until, one.because)).encode() + b"\n" for one in ended]
        if lines:
            self._waiting.extend(lines)
            self._files.submit_latest(FILE_NAME, self._write)

    async def retry(self) -> None:
        """Write again the lines that the disk has not taken."""
        if self._waiting:
            self._files.submit_latest(FILE_NAME, self._write)

    def notes(self) -> list[str]:
        """Return a sentence for people if holds cannot be written."""
        return [f"history is not written: {self._failed}"] if self._failed else []

    async def request(self, body: bytes) -> dict[str, Any]:
        """Return the newest holds, present ones first. Body: ``{"device": ..., "limit": ...}``, both optional.

        Raises ConfigError for a malformed body, or a device without any known hold.
        """
        asked = read_request(body or b"{}", _Asked, "a device was expected, and a limit from 1", EXAMPLE)
        device, limit = asked.device or "", asked.limit
        now = [_row(holding) for holding in self._holds.open if device in ("", holding.device)]
        past, known, damaged = await self._files.run(lambda: self._read(device))
        names = sorted({*known, *(holding.device for holding in self._holds.open)})
        if device and device not in names:
            there = ", ".join(names) or "no device yet"
            raise ConfigError(f"nobody had a device {device} here, as far as is known", hint=f"There is of {there}")
        rows = sorted(now, key=_since, reverse=True) + sorted(past, key=_since, reverse=True)
        return {"device": device, "holds": rows[:limit], "leftOut": max(len(rows) - limit, 0), "damagedLines": damaged}

    def _write(self) -> None:
        """Append the waiting lines, in the thread. If that fails they wait for the next try; it is logged once."""
        lines: list[bytes] = []
        while self._waiting:
            lines.append(self._waiting.popleft())
        try:
            self._append(b"".join(lines))
        except OSError as error:
            self._waiting.extendleft(reversed(lines))
            if not self._failed:
                log.error("history not written", extra={"file": str(self._path), "reason": str(error)})
            self._failed = str(error)
            return
        self._failed = ""

    def _append(self, text: bytes) -> None:
        """Append lines. Raises OSError. Some lines may have been written then, and the next try writes them again."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if size and not self._whole and os.pread(descriptor, 1, size - 1) != b"\n":
                text = b"\n" + text  # a crash, or a full disk, cut the last line
            self._whole = False
            view = memoryview(text)
            while view:
                view = view[os.write(descriptor, view) :]
            self._whole = True
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if size >= FILE_BYTES:
            os.replace(self._path, self._older)

    def _read(self, device: str) -> tuple[list[Row], set[str], int]:
        """Return the past holds of a device ("": of all), the names of all devices, and the number of damaged lines."""
        found, known, damaged = [], set(), 0
        for path in (self._older, self._path):
            for line in (read_if_there(path) or b"").splitlines():
                row = _row_of(line)
                if row is None:
                    damaged += bool(line.strip())
                    continue
                known.add(row["device"])
                if device in ("", row["device"]):
                    found.append(row)
        return found, known, damaged


def _row(holding: Holding, until: float = 0.0, because: str = "") -> Row:
    is_claim = holding.api == CLAIMS
    return {
        "device": holding.device,
        "resource": holding.resource,
        "api": holding.api,
        "namespace": holding.namespace,
        "pod": "" if is_claim else holding.name,
        "claim": holding.name if is_claim else "",
        "uid": holding.uid,
        "owner": holding.owner,
        "since": stamp(holding.since),
        "until": stamp(until),
        "because": because,
    }


_KEYS = _row(Holding("", "", "")).keys()


def _row_of(line: bytes) -> Row | None:
    """Parse one line; None if it is damaged, by a crash or by hand."""
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in _KEYS):
        return None
    return row


def _since(row: Mapping[str, Any]) -> str:
    return str(row["since"])
