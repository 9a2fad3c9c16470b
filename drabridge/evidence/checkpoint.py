"""Read kubelet's device-manager checkpoint as evidence.

PodResources hides plain init containers and force-deleted pods; this file does not. The file is no API. Kubelet writes
it (``pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go``) on every ListAndWatch message and every Allocate, by
rename: a reader sees a whole file or none. What cannot be understood is "unknown", which never counts as "released".
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from drabridge.ledger.entries import PodRef
from drabridge.ledger.events import Pods, Unit
from podresources.resolve import files

FILE_NAME = "kubelet_internal_checkpoint"
MAX_BYTES = 64 * 1024 * 1024  # 110 pods with 4,096 devices make about 1 MB


def parse(text: str) -> Pods | None:
    """Parse the file's text: who has which unit, the pods by their UIDs alone; None if it is not understood.

    A device on two NUMA nodes stands under both and counts once.
    """
    try:
        data = json.loads(text)["Data"]
        if not isinstance(data["RegisteredDevices"], dict | None):  # another format
            return None
        held: dict[Unit, set[tuple[str, str]]] = {}
        for entry in data["PodDeviceEntries"] or ():  # null when nobody holds anything
            holder = _text(entry["PodUID"]), _text(entry["ContainerName"])
            for units in entry["DeviceIDs"].values():
                for unit in units:
                    held.setdefault((_text(entry["ResourceName"]), _text(unit)), set()).add(holder)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return {
        unit: tuple(PodRef(container=container, uid=uid) for uid, container in sorted(holders))
        for unit, holders in held.items()
    }


def exists(directory: Path) -> bool:
    """Tell whether kubelet has such a file.

    Where there is none, no device plugin has ever been registered.
    """
    return os.path.lexists(directory / FILE_NAME)


def read(directory: Path) -> Pods | None:
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
