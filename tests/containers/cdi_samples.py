"""Devices for CDI files, and a file read back as a runtime reads it."""

from __future__ import annotations

import json

from drabridge.containers.cdi_spec import (
    CdiSpec,
)
from drabridge.containers.cdi_store import CdiStore
from drabridge.inventory.devices import Device, DeviceNode, Mount

UID = "34553fd1-cf06-469c-b877-c1432ff67333"
NODE = DeviceNode("/dev/radio0", "/dev/radio0", major=189, minor=4)
RENAMED = DeviceNode("/dev/radio7", "/dev/radio", "rwm", "b", 7, 7)
DEVICE = Device(
    "radio-a", "SN1", "example.com/radio", nodes=(NODE,), env={"B": "2", "A": "1"}, mounts=(Mount("/opt/fw", "/fw"),)
)


def read(store: CdiStore, spec: CdiSpec) -> dict[str, object]:
    document = json.loads((store.directory / spec.file_name).read_bytes())
    assert isinstance(document, dict)
    return document
