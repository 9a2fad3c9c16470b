"""Find what the kernel has behind a device node that other nodes give access to as well.

An IOMMU group has one owner, whether its functions are opened by the group's node or, with IOMMUFD, by their own
(Documentation/userspace-api/iommufd.rst). Who has a disk has its partitions, and who has a device-mapper or md device
has a part of its members, at least: several logical volumes may be on one disk. Who has a function that leads to an
NVMe disk has that disk; several functions may, and one may lead to several disks, which two may have side by side.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

from drabridge.inventory.model import COMPANION
from drabridge.inventory.vfio import VFIO, group_of
from drabridge.system.files import names_in

DEPTH = 8  # a crypt on a volume on a RAID on partitions is 4


def behind(path: str, kind: Literal["c", "b"], number: tuple[int, int], sys: str = "/sys") -> tuple[str, ...]:
    """Return the places behind a node, as :func:`drabridge.inventory.container_edits.places_of` writes them.

    Members are written as companions are: two devices may share them, but nobody may have one of them beside.
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
    """Yield the PCI functions that lead to an NVMe disk which is below none of them (Linux drivers/nvme/host)."""
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
