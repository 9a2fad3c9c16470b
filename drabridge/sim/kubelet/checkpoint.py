"""Read and write the device manager's checkpoint file, in the format observed on 1.36.2.

Source: ``cm/devicemanager/checkpoint/checkpoint.go``.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drabridge.sim.kubelet.device_accounting import Allocation

FILE_NAME = "kubelet_internal_checkpoint"  # cm/devicemanager/types.go, kubeletDeviceManagerCheckpoint
CHECKSUM = 1
"""A stand-in: the real number is of Go's deep-printed struct, which nothing outside Go reproduces."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Who holds what, and the healthy ids of each registered resource when the file was written."""

    held: Mapping[tuple[str, str, str], Allocation]
    registered: Mapping[str, tuple[str, ...]]


def _entry(key: tuple[str, str, str], allocation: Allocation) -> dict[str, Any]:
    uid, container, resource = key
    # Go sorts map keys as text, so "-1" comes first.
    devices = {node: list(ids) for node, ids in sorted((str(n), i) for n, i in allocation.by_numa.items())}
    return {
        "PodUID": uid,
        "ContainerName": container,
        "ResourceName": resource,
        "DeviceIDs": devices,
        "AllocResp": base64.b64encode(allocation.response).decode(),
    }


def encode(held: Mapping[tuple[str, str, str], Allocation], registered: Mapping[str, Iterable[str]]) -> str:
    """Return the file's text. ``PodDeviceEntries`` is ``null`` when nobody holds anything: a nil slice in Go."""
    entries = [_entry(key, allocation) for key, allocation in held.items()]
    data = {
        "PodDeviceEntries": entries or None,
        "RegisteredDevices": {resource: list(ids) for resource, ids in sorted(registered.items())},
    }
    return json.dumps({"Data": data, "Checksum": CHECKSUM})


def read(directory: Path) -> Checkpoint | None:
    """Read the file; None if it is missing or no checkpoint: the kubelet then works without it."""
    try:
        data = json.loads((directory / FILE_NAME).read_text())["Data"]
        held = {
            (e["PodUID"], e["ContainerName"], e["ResourceName"]): Allocation(
                {int(node): tuple(ids) for node, ids in e["DeviceIDs"].items()},
                base64.b64decode(e["AllocResp"] or "", validate=True),
            )
            for e in data["PodDeviceEntries"] or ()
        }
        registered = {resource: tuple(ids or ()) for resource, ids in (data["RegisteredDevices"] or {}).items()}
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Checkpoint(held, registered)


def write(directory: Path, text: str, name: str = FILE_NAME) -> None:
    """Write the file atomically, by a dot-file and rename (``pkg/kubelet/util/store/filestore.go``).

    Raises OSError, for example when the directory is gone. No fsync, unlike the real one: this node does not lose
    power.
    """
    temporary = directory / f".{name}{secrets.randbelow(10**9)}"
    temporary.write_text(text)
    os.replace(temporary, directory / name)
