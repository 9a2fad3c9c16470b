"""Keep which devices are out of service: by ``drabridge devices cordon``, and by the Node's annotation.

A device is out of service while one of the two names it, by its name or its id. ``cordons.json`` keeps the commands
over restarts. The Node's annotation ``<driver>/cordoned`` is ``{"<device>": "<why>"}``. Until the Node has been seen,
the cordons that the ledger remembers and that no command made count as the annotation. A name that no device has is
kept: when the device comes back, nobody gets it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from drabridge.agent.requests import read_request
from drabridge.config.schema import Config
from drabridge.errors import ConfigError, HostError, host_errors
from drabridge.kube.connection import ApiServer
from drabridge.ledger.events import Cordoned
from drabridge.ledger.refusals import holder
from drabridge.ledger.service import LedgerService
from drabridge.system.files import write_atomically
from drabridge.system.io_thread import IoThread
from drabridge.system.untrusted import parse_mapping

log = logging.getLogger(__name__)

FILE_NAME = "cordons.json"
NO_REASON = "no reason was given"
REASON_MAX = 256  # characters; the reason is in Events, tables, and every refusal
EXAMPLE = 'For example {"GPU-8f1c": "exchange of the fan"}'


class _Asked(Struct):
    device: str
    reason: str | None = None
    undo: bool = False


class Cordons:
    """Combine commands and annotation. ``annotation_error``: why the annotation is not followed, for people."""

    def __init__(
        self,
        state: Path,
        config: Callable[[], Config],
        ledger_service: LedgerService,
        changed: Callable[[], None],
        api_server: ApiServer,
        files: IoThread,
    ) -> None:
        """Call ``changed`` when the ledger must be told of :attr:`devices`. ``files``: the thread that writes.

        Without an API server the cordons of an earlier annotation are dropped: nobody could take them back.
        """
        self._path = state / FILE_NAME
        self._config = config
        self._ledger_service = ledger_service
        self._changed = changed
        self._files = files
        self._commanding = asyncio.Lock()  # one command at a time: each starts from the result of the one before
        self._lost = ""
        entries = ledger_service.head.entries.items()
        remembered = {name: entry.device.cordoned for name, entry in entries if entry.device.cordoned}
        self._commands = self._load(remembered)
        others = {name: why for name, why in remembered.items() if name not in self._commands}
        self._annotation = others if api_server.cluster is not None else {}
        self.annotation_error = ""

    @property
    def devices(self) -> Mapping[str, str]:
        """Return name -> reason of each device that is out of service."""
        return self.devices_with({})

    def devices_with(self, names: Mapping[str, str]) -> Mapping[str, str]:
        """Return :attr:`devices`. ``names``: id -> name, of devices that the ledger may not know yet."""
        asked = {**self._annotation, **self._commands}
        return {names.get(one) or self._name(one): why for one, why in asked.items()}

    def _name(self, name: str) -> str:
        """Return the name of the device with this name or id (people copy both); if there is none, the text itself."""
        entries = self._ledger_service.ledger.entries
        if name in entries:
            return name
        return next((entry.name for entry in entries.values() if entry.device.id == name), name)

    def notes(self) -> list[str]:
        """Return sentences for people: which cordons are not in force, and why."""
        notes = []
        if self.annotation_error:
            notes.append(f"the Node's annotation for cordoned devices is not followed: {self.annotation_error}")
        if self._lost:
            notes.append(f"which devices were cordoned is as the ledger remembers: {FILE_NAME}: {self._lost}")
        if unknown := sorted(self.devices.keys() - self._ledger_service.ledger.entries.keys()):
            names = ", ".join(unknown)
            notes.append(f"cordoned, and not on this node: {names}; 'drabridge devices' lists the names")
        return notes

    async def request(self, body: bytes) -> dict[str, Any]:
        """Cordon a device: ``{"device": ..., "reason": ...}``; or end a cordon: ``{"device": ..., "undo": true}``.

        Returns the device as it is now. Raises ConfigError for a malformed body, an unknown device, or an undo of a
        cordon in the annotation; HostError if the command cannot be written, or is written but not in the ledger yet.
        """
        async with self._commanding:
            name, reason, undo = self._parse(body)
            commands = {other: why for other, why in self._commands.items() if other != name}
            if not undo:
                commands[name] = reason
            elif name in map(self._name, self._annotation):
                annotation = f"{self._config().driver}/cordoned"
                raise ConfigError(
                    f"the Node's annotation {annotation} has {name} out of service",
                    hint=f"Take it out there: kubectl annotate node NODE {annotation}- removes it all",
                )
            text = json.dumps(commands, indent=1).encode()
            hint = "Make room or mend the disk, and try again"
            with host_errors(f"nothing is changed, it cannot be kept in {self._path}", hint=hint):
                await self._files.promptly(lambda: write_atomically(self._path, text))
            self._commands, self._lost = commands, ""
            service = self._ledger_service
            decision = await service.apply(Cordoned(self.devices, service.now()))
            if not decision.accepted:
                self._changed()
                raise HostError(f"it is kept, and not in force yet: {decision}", hint="'drabridge status' says when")
            return self._describe(name)

    def annotate(self, text: str | None) -> None:
        """Take the annotation's present value; None if the Node has none.

        A malformed value is reported, and the last good one stays in force.
        """
        before = self.annotation_error
        try:
            devices = _parse_devices(text) if text else {}
        except ConfigError as error:
            self.annotation_error = str(error)
            if self.annotation_error != before:  # log once: the Node changes every few seconds
                log.error("cordoned devices not followed", extra={"reason": self.annotation_error})
            return
        self.annotation_error = ""
        if devices != self._annotation:
            self._annotation = devices
            self._changed()

    def forget_annotation(self) -> None:
        """Drop what the annotation said, because its changes are no longer seen."""
        self.annotation_error = ""
        if self._annotation:
            self._annotation = {}
            self._changed()

    def _parse(self, body: bytes) -> tuple[str, str, bool]:
        """Return (device, reason, undo). Raises ConfigError for a malformed body or an unknown device."""
        asked = read_request(body, _Asked, "a device was expected, and why", '{"device": "GPU-8f1c", "reason": "fan"}')
        name = self._name(asked.device)
        known: Collection[str] = self._ledger_service.ledger.entries.keys()
        if asked.undo:
            known = self.devices.keys()
            if name not in known:
                raise ConfigError(f"{name} is not cordoned", hint=f"Cordoned: {', '.join(sorted(known)) or 'none'}")
        elif name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"this node has no device {name}", hint=f"It has {there}")
        return name, _one_line(asked.reason or NO_REASON), asked.undo

    def _describe(self, name: str) -> dict[str, Any]:
        entry = self._ledger_service.ledger.entries.get(name)
        return {
            "device": name,
            "cordoned": self.devices.get(name, ""),
            "owner": str(entry.owner) if entry else "",
            "holder": holder(entry) if entry else "",
        }

    def _load(self, remembered: Mapping[str, str]) -> dict[str, str]:
        """Read the commands. If the file is unreadable, all cordons that the ledger remembers count as commands."""
        try:
            return _parse_devices(self._path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, ConfigError) as error:
            self._lost = str(error)
            log.error("cordoned devices lost", extra={"file": str(self._path), "reason": self._lost})
            return dict(remembered)


def _parse_devices(text: str) -> dict[str, str]:
    """Parse ``{"<device>": "<why>"}``. Raises ConfigError if malformed."""
    return {name: _one_line(why) for name, why in parse_mapping(text, str, "texts", EXAMPLE).items()}


def _one_line(reason: str) -> str:
    """Return the reason as one line of printable characters, at most ``REASON_MAX``, never empty."""
    words = "".join(char if char.isprintable() else " " for char in reason).split()
    return " ".join(words)[:REASON_MAX] or NO_REASON
