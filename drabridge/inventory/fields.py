"""What the fields of templates mean for one device: ``{attr:serial}``, ``{pci}``, ``{nvidia.uuid}``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from drabridge.config.template import Field, Lookup
from drabridge.inventory import topology
from drabridge.inventory.host import Host
from drabridge.inventory.udev_device import UdevDevice

_DIGITS = re.compile(r"\d+\Z", re.ASCII)

_PLAIN: Mapping[str, Callable[[UdevDevice], str]] = MappingProxyType(
    {
        "sysname": lambda record: record.sysname,
        "sysnum": lambda record: found.group() if (found := _DIGITS.search(record.sysname)) else "",
        "devnode": lambda record: record.devnode,
        "devname": lambda record: os.path.basename(record.devnode),
        "major": lambda record: str(record.devnum[0]) if record.devnum else "",
        "minor": lambda record: str(record.devnum[1]) if record.devnum else "",
        "subsystem": lambda record: record.subsystem,
        "devtype": lambda record: record.devtype,
        "driver": lambda record: driver(record),
        "pci": topology.pci_bus_id,
        "pcie_root": topology.pcie_root,
        "numa": lambda record: "".join(map(str, topology.numa_nodes(record))),
        "iommu_group": topology.iommu_group,
    }
)

_KEYED: Mapping[str, Callable[[UdevDevice, str], str | None]] = MappingProxyType(
    {
        "attr": lambda record, key: record.attributes.get(key),
        "property": lambda record, key: record.properties.get(key),
        "link": lambda record, key: os.path.basename(record.links.get(key, "")),
    }
)


def driver(record: UdevDevice) -> str:
    """The kernel driver of the device, or of its nearest ancestor that has one (a tty's is its USB interface's)."""
    return next((node.driver for node in record.lineage() if node.driver), "")


def lookup(record: UdevDevice, host: Host, nvidia: Mapping[str, str], **more: str) -> Lookup:
    """A function from field to value. ``nvidia`` are the GPU's facts; ``more`` overrides plain fields (id, devname)."""

    def value(field: Field) -> str | None:
        if field.source in more:
            return more[field.source]
        if field.source == "file":
            return host.first_line(field.key)
        if field.source in _KEYED:
            get = _KEYED[field.source]
            if not field.of_parent:
                return get(record, field.key)
            return next((found for node in record.ancestors() if (found := get(node, field.key))), None)
        if field.source in _PLAIN:
            return _PLAIN[field.source](record)
        return nvidia.get(field.source.removeprefix("nvidia."))

    return value
