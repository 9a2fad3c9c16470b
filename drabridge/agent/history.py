"""Keep who had which device when: a line for each hold that has ended, in two files of bounded size.

``history.jsonl`` is written by the thread of the state's disk, without fsync: the ledger says who holds what, this says
who did. Past ``FILE_BYTES`` it becomes ``history.1.jsonl``. A line that a crash cut is left out when it is read.
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
WAITING_MAX = 10_000  # lines that a disk that hangs or is full keeps in memory
LIMIT = 100  # holds that are told without another number

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
        self._waiting: deque[bytes] = deque(maxlen=WAITING_MAX)  # this loop appends, the thread takes
        self._whole = False  # the file's last line has an end, as far as this process knows
        self._failed = ""

    def add(self, ended: Iterable[Ended]) -> None:
        """Write holds that have ended, soon."""
        lines = [json.dumps(_row(one.holding, one.until, one.because)).encode() + b"\n" for one in ended]
        if lines:
            self._waiting.extend(lines)
            self._files.submit_latest(FILE_NAME, self._write)

    async def retry(self) -> None:
        """Write what a failing disk did not take."""
        if self._waiting:
            self._files.submit_latest(FILE_NAME, self._write)

    def notes(self) -> list[str]:
        """Say that holds cannot be written, for people."""
        return [f"history is not written: {self._failed}"] if self._failed else []

    async def request(self, body: bytes) -> dict[str, Any]:
        """``{"device": ..., "limit": ...}``, both optional: the newest holds, those of now first.

        Raises ConfigError for what means nothing, or a device that nothing is known of.
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
        """Append what waits, in the thread. What fails waits on; it is logged once."""
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
        """Append lines. Raises OSError; what was written all the same is a cut line, and its lines come twice."""
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
        """Return the device's past holds ("": all), the devices of all, and how many lines mean nothing."""
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
    """Read one line; None if a crash or somebody else made something else of it."""
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in _KEYS):
        return None
    return row


def _since(row: Mapping[str, Any]) -> str:
    return str(row["since"])
