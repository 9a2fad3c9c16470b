"""Find the hardware behind a device node to which other nodes give access as well.

An IOMMU group has one owner, whether its functions are opened by the group's node or, with IOMMUFD, by their own
(Documentation/userspace-api/iommufd.rst). A holder of a disk also has its partitions. A holder of a device-mapper or md
device has at least a part of each member disk: several logical volumes may share one disk. A holder of a PCI function
that leads to an NVMe disk has that disk. Several functions may lead to one disk, and one function to several disks;
these disks may have different holders.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

from drabridge.inventory.devices import COMPANION
from drabridge.inventory.vfio import VFIO, group_of
from drabridge.system.files import names_in

DEPTH = 8  # LUKS on a logical volume on a RAID on partitions needs 4


def behind(path: str, kind: Literal["c", "b"], number: tuple[int, int], sys: str = "/sys") -> tuple[str, ...]:
    """Return the places behind a node, as :func:`drabridge.inventory.container_edits.places_of` writes them.

    Members are marked like companions: two devices may share a member, but a member itself then has no other holder.
    """
    if kind == "b":
        place = os.path.realpath(f"{sys}/dev/block/{number[0]}:{number[1]}")
        return tuple(dict.fromkeys((*_below(place, "", DEPTH), *_functions(place))))
    if path.startswith(VFIO) and (group := group_of(path, number, sys)):
        return (VFIO + group,)
    return ()


def _below(place: str, mark: str, depth: int) -> Iterator[str]:
    """Yield ``b8:1`` for each partition of a block device, ``+b8:1`` for each member, and what is behind those."""
    if depth == 0:
        return
    whole = os.path.dirname(place) if os.path.exists(f"{place}/partition") else place
    parts = [(f"{place}/{name}", mark) for name in names_in(place) if os.path.exists(f"{place}/{name}/partition")]
    members = [(f"{whole}/slaves/{name}", COMPANION) for name in names_in(f"{whole}/slaves")]
    for found, sign in (*parts, *members):
        if number := _number(found):
            yield f"{sign}b{number}"
            yield from _below(os.path.realpath(found), sign, depth - 1)


def _functions(place: str) -> Iterator[str]:
    """Yield the PCI functions of an NVMe disk that is below its subsystem in sysfs (Linux drivers/nvme/host)."""
    disk = os.path.dirname(place) if os.path.exists(f"{place}/partition") else place
    subsystem = os.path.dirname(disk)
    for name in names_in(subsystem) if os.path.basename(subsystem).startswith("nvme-subsys") else ():
        function = os.path.realpath(f"{subsystem}/{name}/device")
        if os.path.lexists(f"{function}/iommu_group"):
            yield function


def _number(place: str) -> str:
    try:
        with open(f"{place}/dev", encoding="ascii") as file:
            text = file.read().strip()
    except (OSError, ValueError):
        return ""
    return text if text.replace(":", "").isdecimal() else ""
