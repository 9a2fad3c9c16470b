"""Names that devices were given, remembered over restarts: a held device keeps its name when a twin appears, and when
the configuration that the agent starts with calls it otherwise.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drabridge.config.loader import load
from drabridge.config.messages import ConfigErrors
from drabridge.config.schema import Config
from drabridge.inventory.identity import Key
from drabridge.inventory.udev_scope import distinct
from drabridge.system.files import write_atomically
from drabridge.system.io_thread import IoThread

log = logging.getLogger(__name__)

FILE_NAME = "identities.json"


class IdentityStore:
    """``identities.json``: ``{"version": 1, "given": [[resource, syspath, id], ...], "namedBy": [...]}``.

    ``namedBy`` has one ``{"ids": [...], "configuration": {...}}`` for each configuration that named what is there: that
    of now, and those of before whose devices somebody holds yet.

    It is a preference, not a record of ownership: if it is lost, names are derived anew, and they are the same unless
    twins or a changed configuration are involved. So whatever is wrong with the file is logged and it is replaced.
    """

    def __init__(self, directory: Path, files: IoThread | None = None) -> None:
        """``files``: whose thread writes."""
        self._path = directory / FILE_NAME
        self._files = files or IoThread("identities")
        self._saved: tuple[Mapping[Key, str], Mapping[str, Config]] | None = None

    def load(self, config: Config) -> tuple[Mapping[Key, str], Mapping[str, Config]]:
        """The ids by (resource, syspath), and by id the configurations that gave them where that is known; ``config``
        is the one in use.
        """
        try:
            data = json.loads(self._path.read_text())
            given = {(str(resource), str(syspath)): str(device_id) for resource, syspath, device_id in data["given"]}
            named_by = {
                str(device_id): former
                for row in data.get("namedBy", ())
                if (former := _parsed(row["configuration"], config)) is not None
                for device_id in row["ids"]
            }
        except FileNotFoundError:
            return {}, {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            log.warning("remembered names are lost", extra={"file": str(self._path), "reason": str(error)})
            return {}, {}
        self._saved = given, named_by
        return given, named_by

    def save(self, given: Mapping[Key, str], named_by: Mapping[str, Config]) -> None:
        """Remember what devices are called, and by which configuration: soon. Nothing is written if nothing changed."""
        if (given, named_by) != self._saved:
            kept = dict(given), dict(named_by)
            self._files.submit_latest(FILE_NAME, lambda: self._write(*kept))

    def _write(self, given: Mapping[Key, str], named_by: Mapping[str, Config]) -> None:
        """In the worker's thread. Where it fails, it is tried again with the next news of devices."""
        rows = sorted([*key, device_id] for key, device_id in given.items())
        configs = [
            {"configuration": _plain(config), "ids": sorted(i for i, other in named_by.items() if other is config)}
            for config in distinct(named_by.values())
        ]
        try:
            text = json.dumps({"version": 1, "given": rows, "namedBy": configs}, indent=1)
            write_atomically(self._path, text.encode())
        except OSError as error:
            log.warning("names could not be remembered", extra={"file": str(self._path), "reason": str(error)})
            return
        self._saved = given, named_by


def _plain(config: Config) -> dict[str, Any]:
    """What the names follow from, as the file has it."""
    chosen = {"api_version", "kind", "resources"}
    return config.model_dump(mode="json", by_alias=True, exclude_unset=True, include=chosen)


def _parsed(plain: object, current: Config) -> Config | None:
    """The configuration of :func:`_plain`; the one in use where it is that. None: another version's, not understood."""
    if plain == _plain(current):
        return current
    try:
        return load(json.dumps(plain))
    except ConfigErrors as error:
        log.warning("the configuration that named held devices is not understood", extra={"reason": str(error)})
        return None
