"""Keep the identities of devices over restarts, in ``identities.json``.

So a held device keeps its name if a twin appears, or if the agent starts with a configuration that names it otherwise.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from drabridge.config.declaration import to_data
from drabridge.config.loader import load
from drabridge.config.problems import ConfigErrors
from drabridge.config.schema import Config
from drabridge.inventory.attribute_values import LastValues
from drabridge.inventory.identity import KnownIdentities
from drabridge.inventory.udev_scope import distinct_configs
from drabridge.system.files import write_atomically
from drabridge.system.io_thread import IoThread

log = logging.getLogger(__name__)

FILE_NAME = "identities.json"


class IdentityStore:
    """``identities.json``: ``{"version": 1, "given": [[resource, syspath, id], ...], "namedBy": [...]}``.

    ``namedBy`` has one ``{"ids": [...], "configuration": {...}}`` for each configuration that named a present device:
    the one in use, and earlier ones whose devices somebody still holds. ``values`` has what was last published of each
    device, by id.

    The file is a preference, not a record of ownership: if it is lost, names are derived again, and they are the same
    unless twins or a changed configuration are involved. So a file that cannot be read is logged and replaced.
    """

    def __init__(self, directory: Path, files: IoThread | None = None) -> None:
        """``files``: the thread that writes."""
        self._path = directory / FILE_NAME
        self._files = files or IoThread("identities")
        self._saved: KnownIdentities | None = None

    def load(self, config: Config) -> KnownIdentities:
        """Return what was saved last; nothing if it is unreadable. ``config``: the configuration in use."""
        try:
            data = json.loads(self._path.read_text())
            ids = {(str(resource), str(syspath)): str(device_id) for resource, syspath, device_id in data["given"]}
            named_by = {
                str(device_id): former
                for row in data.get("namedBy", ())
                if (former := _parsed(row["configuration"], config)) is not None
                for device_id in row["ids"]
            }
            values = {str(one): LastValues.of_data(last) for one, last in data.get("values", {}).items()}
        except FileNotFoundError:
            return KnownIdentities()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            log.warning("device names unreadable", extra={"file": str(self._path), "reason": str(error)})
            return KnownIdentities()
        self._saved = KnownIdentities(ids, named_by, values)
        return self._saved

    def save(self, known: KnownIdentities) -> None:
        """Write the identities soon, in the worker's thread, if they have changed."""
        if known != self._saved:
            copy = KnownIdentities(dict(known.ids), dict(known.named_by), dict(known.values))
            self._files.submit_latest(FILE_NAME, lambda: self._write(copy))

    def _write(self, known: KnownIdentities) -> None:
        """Write the file; runs in the worker's thread. After a failure, the next change of devices tries again."""
        rows = sorted([*key, device_id] for key, device_id in known.ids.items())
        configs = [
            {"configuration": _plain(config), "ids": sorted(i for i, by in known.named_by.items() if by is config)}
            for config in distinct_configs(known.named_by.values())
        ]
        try:
            values = {device_id: last.to_data() for device_id, last in sorted(known.values.items())}
            text = json.dumps({"version": 1, "given": rows, "namedBy": configs, "values": values}, indent=1)
            write_atomically(self._path, text.encode())
        except OSError as error:
            log.warning("device names not saved", extra={"file": str(self._path), "reason": str(error)})
            return
        self._saved = known


def _plain(config: Config) -> dict[str, Any]:
    """Return the part of a configuration that determines names, in the form of the file."""
    return {"apiVersion": config.api_version, "kind": config.kind, "resources": to_data(config.resources)}


def _parsed(plain: object, current: Config) -> Config | None:
    """Return the configuration that :func:`_plain` wrote; ``current`` if it is the same; None if unreadable."""
    if plain == _plain(current):
        return current
    try:
        return load(json.dumps(plain))
    except ConfigErrors as error:
        log.warning("former configuration unreadable", extra={"reason": str(error)})
        return None
