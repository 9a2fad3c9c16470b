"""Tell whether vfio can open an IOMMU group: whether all of it is free of the host's own drivers."""

from __future__ import annotations

import os
import re

from drabridge.inventory.udev_device import clean

VFIO = "/dev/vfio/"
_GROUP_NODE = re.compile(r"/dev/vfio/(\d+)", re.ASCII)
_OWN_NODE = re.compile(r"/dev/vfio/devices/vfio\d+", re.ASCII)  # of one function, for IOMMUFD
_HARMLESS = frozenset({"pci-stub", "pcieport"})
"""Drivers that leave DMA to vfio (``driver_managed_dma`` in Linux drivers/pci); vfio's own have it in their names."""


def group_of(path: str, number: tuple[int, int], sys: str = "/sys") -> str:
    """Return the number of the IOMMU group that a node gives access to; empty for other nodes."""
    if found := _GROUP_NODE.fullmatch(path):
        return found[1]
    if not _OWN_NODE.fullmatch(path):
        return ""
    place = os.path.realpath(f"{sys}/dev/char/{number[0]}:{number[1]}")
    while len(place) > len(sys):  # of its PCI function, two levels above
        try:
            return os.path.basename(os.readlink(f"{place}/iommu_group"))
        except OSError:
            place = os.path.dirname(place)
    return ""


def why_not_viable(path: str, number: tuple[int, int], sys: str = "/sys") -> str:
    """One sentence that names the functions in the way; empty for other nodes, and for a group that can be opened.

    The kernel refuses a group, with EPERM at the first use, and a function of it by IOMMUFD, as long as another driver
    does DMA with a device of it (Linux drivers/iommu/iommu.c, iommu_device_use_default_domain and
    iommu_device_claim_dma_owner): a card's audio function, a neighbour on an old bus.
    """
    group = group_of(path, number, sys)
    if not group:
        return ""
    folder = f"{sys}/kernel/iommu_groups/{group}/devices"
    try:
        devices = sorted(os.listdir(folder))
    except OSError:
        return ""
    drivers = {name: _driver(os.path.join(folder, name)) for name in devices}
    in_the_way = [f"{clean(name)} has the driver {driver}" for name, driver in drivers.items() if does_dma(driver)]
    if not in_the_way:
        return ""
    what_to_do = "give every function of the group to vfio-pci"
    return f"vfio cannot open IOMMU group {group}: {', '.join(in_the_way)}; {what_to_do}"


def _driver(device: str) -> str:
    try:
        return clean(os.path.basename(os.readlink(os.path.join(device, "driver"))))
    except OSError:
        return ""


def does_dma(driver: str) -> bool:
    """Whether a driver keeps vfio from the group of its device."""
    return driver != "" and driver not in _HARMLESS and "vfio" not in driver
