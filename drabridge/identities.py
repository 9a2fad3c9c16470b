"""Names that devices were given, remembered over restarts: a held device keeps its name when a twin appears."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from drabridge.files import write_atomically
from drabridge.inventory.identity import Key
from drabridge.inventory.model import Presence, Snapshot

log = logging.getLogger(__name__)

FILE_NAME = "identities.json"


class Identities:
    """``identities.json``: ``{"version": 1, "given": [[resource, syspath, id], ...]}``.

    It is a preference, not a record of ownership: if it is lost, names are derived anew, and they are the same unless
    twins are involved. So whatever is wrong with the file is logged and the file is replaced.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        self._saved: dict[Key, str] | None = None

    def load(self) -> Mapping[Key, str]:
        try:
            data = json.loads(self._path.read_text())
            given = {(str(resource), str(syspath)): str(device_id) for resource, syspath, device_id in data["given"]}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("remembered names are lost", extra={"file": str(self._path), "reason": str(error)})
            return {}
        self._saved = given
        return given

    def save(self, snapshot: Snapshot) -> None:
        """Remember the names of all devices that are there; nothing is written when nothing changed."""
        given = {
            (device.resource, device.syspath): device.id
            for device in snapshot.devices
            if device.presence is not Presence.GONE
        }
        if given == self._saved:
            return
        rows = sorted([resource, syspath, device_id] for (resource, syspath), device_id in given.items())
        try:
            write_atomically(self._path, json.dumps({"version": 1, "given": rows}, indent=1).encode())
        except OSError as error:
            log.warning("names could not be remembered", extra={"file": str(self._path), "reason": str(error)})
            return
        self._saved = given
