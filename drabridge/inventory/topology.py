"""Tell where a device sits: NUMA node, PCI address, PCIe root, IOMMU group. Pure.

To add an attribute of every device: a function here, and its row in ``STANDARD``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import PurePosixPath
from types import MappingProxyType

from msgspec import Struct

from drabridge.inventory.devices import PCI_BUS_ID, PCIE_ROOT, Attribute
from drabridge.inventory.udev_device import UdevDevice

NUMA_NODES = 1024
"""Limit of Linux (CONFIG_NODES_SHIFT) and of the standard attribute numaNode (deviceattribute/numa_linux.go).
Kubelet's device manager takes node numbers below 64: ``deviceplugin`` leaves higher ones out of its lists."""

MOST_NEAR = 16
"""Values in the list attribute. The API allows 48 values in all attributes and capacities, which are 32 at most."""

_NODES = "/sys/devices/system/node/node"
_OTHER_BUSES = frozenset(
    {"usb", "scsi", "ata_port", "hid", "i2c", "spi", "mmc", "sdio", "firewire", "thunderbolt", "mdev"}
)
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PCI_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def place_template(device: UdevDevice) -> str:
    """Return an identity template for the place where a device is plugged in. It needs no udev database."""
    lineage = list(device.lineage())
    usb = next((node for node in lineage if node.subsystem == "usb" and node.devtype == "usb_device"), None)
    slot = "{pci}" if any(node.subsystem == "pci" for node in lineage) else ""
    if usb is None:
        return slot or "{sysname}"
    own = "" if usb is device else "parent."
    interface = "-{parent.attr:bInterfaceNumber}" if own and any(n.devtype == "usb_interface" for n in lineage) else ""
    return (f"{slot}-" if slot else "") + f"usb-{{{own}attr:devpath}}{interface}"


def numa_nodes(device: UdevDevice) -> tuple[int, ...]:
    """Return the NUMA node of the device or of its nearest ancestor that has one; empty when none has.

    Firmware writes -1 for "unknown". It is never returned: kubelet could not place a pod on NUMA node -1.
    """
    for node in device.lineage():
        text = node.attributes.get("numa_node", "")
        if text.isascii() and text.isdecimal() and int(text) < NUMA_NODES:
            return (int(text),)
    return ()


def near_numa_nodes(device: UdevDevice, first_line: Callable[[str], str | None]) -> tuple[int, ...]:
    """Return the NUMA node of :func:`numa_nodes`, then the nearest other nodes on its socket (sub-NUMA clusters).

    They are found as in deviceattribute/numa_linux.go of k8s.io/dynamic-resource-allocation: a node with an unknown
    socket counts. ``first_line`` reads a file.
    """
    own = numa_nodes(device)
    for node in own:
        texts = (first_line(f"{_NODES}{node}/distance") or "").split()
        away = {index: int(text) for index, text in enumerate(texts) if text.isdecimal() and index != node}
        nearest = min(away.values(), default=0) if node < len(texts) else None
        near = [index for index, distance in away.items() if distance == nearest]
        socket = _socket(node, first_line) if near else ""
        own += tuple(one for one in near if not socket or _socket(one, first_line) in ("", socket))
    return own[:MOST_NEAR]


def _socket(node: int, first_line: Callable[[str], str | None]) -> str:
    """Return the number of a NUMA node's socket; "" where it is not known, or the node has no CPU."""
    cpu = re.match(r"\d+", first_line(f"{_NODES}{node}/cpulist") or "")
    if cpu is None:
        return ""
    return first_line(f"/sys/devices/system/cpu/cpu{cpu[0]}/topology/physical_package_id") or ""


def pci_function(device: UdevDevice) -> UdevDevice | None:
    """Return the device itself when it is a PCI function, else the nearest ancestor that is one."""
    return next((node for node in device.lineage() if node.subsystem == "pci" and is_pci_address(node.sysname)), None)


def is_pci_address(text: str) -> bool:
    """Whether a text is a PCI address with its domain, in lower case: ``0000:3b:00.0``."""
    return _PCI_ADDRESS.fullmatch(text) is not None


def pci_bus_id(device: UdevDevice) -> str:
    """Return ``0000:3b:00.0`` of the device or its nearest ancestor on a PCI bus; "" if there is none."""
    function = pci_function(device)
    return function.sysname if function else ""


def own_pci_bus_id(device: UdevDevice) -> str:
    """Return the value of the standard attribute pciBusID; "" for a device on another bus, such as USB, below it.

    Readers take the PCI function for the device. KubeVirt gives it to a virtual machine (VEP-10): for a USB device it
    would give away the USB controller with every device on it.
    """
    function = pci_function(device)
    if function is None:
        return ""
    between = takewhile(lambda node: node is not function, device.lineage())
    return "" if any(node.subsystem in _OTHER_BUSES for node in between) else function.sysname


def pcie_root(device: UdevDevice) -> str:
    """Return ``pci0000:3a``, the value of the standard attribute pcieRoot; "" for a device on no PCI bus.

    It is the first component below /sys/devices, or on machines whose host bridge is a platform device (arm64) the
    first that has this form.
    """
    function = pci_function(device)
    if function is None:
        return ""
    return next((part for part in PurePosixPath(function.syspath).parts if _PCI_ROOT.fullmatch(part)), "")


def pcie_switch(device: UdevDevice) -> str:
    """Return the PCI address of the nearest PCIe switch above the device: of its upstream port; empty without one.

    A switch is an upstream port with downstream ports, below a root port. Devices on its downstream ports reach each
    other without the root. The kind of a port is only in its configuration space, so three ports above a device are
    taken for downstream, upstream and root port.
    """
    function = pci_function(device)
    above = () if function is None else tuple(n.sysname for n in function.ancestors() if n.subsystem == "pci")
    return above[1] if len(above) > 2 else ""


def iommu_group(device: UdevDevice) -> str:
    """Return the number of the IOMMU group, as in /dev/vfio/<number>; empty without an IOMMU."""
    for node in device.lineage():
        if target := node.links.get("iommu_group"):
            return PurePosixPath(target).name
    return ""


class StandardAttribute(Struct, frozen=True):
    """An attribute of every device. ``value`` returns None or "" where a device has none; it must not wait.

    ``attributes`` and ``links``: the names of what it reads in sysfs, for the device or its ancestors.
    """

    value: Callable[[UdevDevice], Attribute | None]
    attributes: frozenset[str] = frozenset()
    links: frozenset[str] = frozenset()


STANDARD: Mapping[str, StandardAttribute] = MappingProxyType(
    {
        PCIE_ROOT: StandardAttribute(pcie_root),
        PCI_BUS_ID: StandardAttribute(own_pci_bus_id),
    }
)
"""Name in a ResourceSlice -> attribute. ``numaNode`` has no row: it may be a list, and ``numa: false`` omits it."""

ATTRIBUTES_READ = frozenset({"numa_node"}).union(*(row.attributes for row in STANDARD.values()))
LINKS_READ = frozenset({"physfn", "iommu_group"}).union(*(row.links for row in STANDARD.values()))
"""Links that are read for every device, whatever the configuration reads."""


def standard_attributes(device: UdevDevice) -> dict[str, Attribute]:
    """Return the attributes of ``STANDARD`` for which a device has a value, by name."""
    found = {name: row.value(device) for name, row in STANDARD.items()}
    return {name: value for name, value in found.items() if value is not None and value != ""}
