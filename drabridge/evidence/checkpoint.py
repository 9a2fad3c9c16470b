"""Read kubelet's device-manager checkpoint as evidence.

PodResources hides plain init containers and force-deleted pods; this file does not. The file is no API. Kubelet writes
it (``pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go``) on every ListAndWatch message and every Allocate, by
rename: a reader sees a whole file or none. What cannot be understood is "unknown", which never counts as "released".
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from podresources.resolve import files

FILE_NAME = "kubelet_internal_checkpoint"
MAX_BYTES = 64 * 1024 * 1024  # 110 pods with 4,096 devices make about 1 MB


class CheckpointHolder(Struct, frozen=True, order=True):
    """A container in the checkpoint. The pod is known by its UID alone."""

    pod_uid: str
    container: str


class Checkpoint(Struct, frozen=True):
    """``held[resource][unit id]``: the containers that have the unit."""

    held: Mapping[str, Mapping[str, tuple[CheckpointHolder, ...]]]


def parse(text: str) -> Checkpoint | None:
    """Parse the file's text; None if it is not understood.

    A device on two NUMA nodes stands under both and counts once.
    """
    try:
        data = json.loads(text)["Data"]
        if not isinstance(data["RegisteredDevices"], dict | None):  # another format
            return None
        held: dict[str, dict[str, set[CheckpointHolder]]] = {}
        for entry in data["PodDeviceEntries"] or ():  # null when nobody holds anything
            holder = CheckpointHolder(_text(entry["PodUID"]), _text(entry["ContainerName"]))
            for units in entry["DeviceIDs"].values():
                for unit in units:
                    held.setdefault(_text(entry["ResourceName"]), {}).setdefault(_text(unit), set()).add(holder)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    frozen = {
        resource: {unit: tuple(sorted(holders)) for unit, holders in units.items()} for resource, units in held.items()
    }
    return Checkpoint(frozen)


def exists(directory: Path) -> bool:
    """Tell whether kubelet has such a file.

    Where there is none, no device plugin has ever been registered.
    """
    return os.path.lexists(directory / FILE_NAME)


def read(directory: Path) -> Checkpoint | None:
    """Read the checkpoint in kubelet's device-plugin directory.

    None: missing, unreadable or not understood.
    """
    path = directory / FILE_NAME
    try:
        raw = files.read(path, MAX_BYTES)
    except files.UnreadableFileError:
        return None
    return None if raw is None else parse(raw.decode("utf-8", errors="replace"))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {type(value).__name__}")
    return value
