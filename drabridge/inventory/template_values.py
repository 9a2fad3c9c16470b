"""Compute the values of template fields for one device: ``{attr:serial}``, ``{pci}``, ``{nvidia.uuid}``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from msgspec import Struct, field

from drabridge.config.template import Field, Lookup
from drabridge.inventory import topology
from drabridge.inventory.host import Host
from drabridge.inventory.nvidia import Failure
from drabridge.inventory.udev_device import UdevDevice

_DIGITS = re.compile(r"\d+\Z", re.ASCII)

_PLAIN: Mapping[str, Callable[[UdevDevice], str]] = MappingProxyType(
    {
        "sysname": lambda device: device.sysname,
        "sysnum": lambda device: found.group() if (found := _DIGITS.search(device.sysname)) else "",
        "devnode": lambda device: device.devnode,
        "devname": lambda device: os.path.basename(device.devnode),
        "major": lambda device: str(device.devnum[0]) if device.devnum else "",
        "minor": lambda device: str(device.devnum[1]) if device.devnum else "",
        "subsystem": lambda device: device.subsystem,
        "devtype": lambda device: device.devtype,
        "driver": lambda device: bound_driver(device),
        "pci": topology.pci_bus_id,
        "pcie_root": topology.pcie_root,
        "pcie_switch": topology.pcie_switch,
        "numa": lambda device: "".join(map(str, topology.numa_nodes(device))),
        "iommu_group": topology.iommu_group,
    }
)

_KEYED: Mapping[str, Callable[[UdevDevice, str], str | None]] = MappingProxyType(
    {
        "attr": lambda device, key: device.attributes.get(key),
        "property": lambda device, key: device.properties.get(key),
        "link": lambda device, key: os.path.basename(device.links.get(key, "")),
    }
)


def _parents(device: UdevDevice) -> Iterator[UdevDevice]:
    """Yield the ancestors, without the hubs that its USB device is plugged into.

    A hub may have a serial, and a root hub always has one: the address of its controller (Linux drivers/usb/core/hcd.c,
    register_root_hub). Otherwise a device below the hub that has no serial would get the hub's.
    """
    on_usb = False
    for node in device.lineage():
        usb = node.subsystem == "usb" and node.devtype == "usb_device"
        if node is not device and not (usb and on_usb):
            yield node
        on_usb = on_usb or usb


def serial_of(device: UdevDevice) -> str:
    """Return the serial number of the device, or of its nearest ancestor that has one; "" if none has."""
    for node in (device, *_parents(device)):
        if found := node.attributes.get("serial") or node.properties.get("ID_SERIAL_SHORT"):
            return found
    return ""


def bound_driver(device: UdevDevice) -> str:
    """Return the kernel driver of the device or of its nearest ancestor with one (for a tty: its USB interface's)."""
    return next((node.driver for node in device.lineage() if node.driver), "")


class MatchedDevice(Struct, frozen=True):
    """A device that a resource matched, with everything that templates may refer to."""

    udev: UdevDevice
    companions: tuple[UdevDevice, ...] = ()
    nvidia: Mapping[str, str] = field(default_factory=dict)
    identity: Mapping[str, str] = field(default_factory=dict)  # id, name, resource; empty before they are assigned
    nvml_failures: tuple[Failure, ...] = ()
    exec_failures: tuple[str, ...] = ()

    def lookup(self, host: Host, **overrides: str) -> Lookup:
        """Return a function from template field to value. ``overrides``: plain fields with another value."""
        known = {**self.identity, **overrides}

        def value(field: Field) -> str | None:
            if field.source in known:
                return known[field.source]
            if field.source == "file":
                return host.first_line(field.key)
            if (get := _KEYED.get(field.source)) is not None:
                if not field.of_parent:
                    return get(self.udev, field.key)
                return next((found for node in _parents(self.udev) if (found := get(node, field.key))), None)
            if field.source in _PLAIN:
                return _PLAIN[field.source](self.udev)
            return self.nvidia.get(field.source.removeprefix("nvidia."))

        return value
