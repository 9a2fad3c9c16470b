"""Devices that are the same hardware in other places of the tree. Pure.

A device hands out its companions' nodes: where a companion is a device as well, only one of the two may have a holder.
A changed configuration may know held hardware by its child, its parent or its companion: until it is let go, what lies
in one line with it is taken for the same hardware, unless the configuration that named it had both side by side.

Who has a node has what is behind it. So devices with one node are one place as well: functions of one IOMMU group, and
what is given the number of a device that was unplugged while a container has its node. Not those that have a companion
in common, or a path that is the same for every device: the operator hands these out with each of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from drabridge.config.matcher import any_of
from drabridge.config.schema import Config, Resource
from drabridge.inventory.container_edits import VFIO
from drabridge.inventory.match import holds
from drabridge.inventory.model import Device
from drabridge.inventory.udev_device import UdevDevice


def handed_out(resource: Resource, record: UdevDevice, companions: Iterable[UdevDevice]) -> tuple[UdevDevice, ...]:
    """The device, then the companions whose nodes go with it. Nodes by path do not count: many share those."""
    if not any(node.source == "group" for node in resource.nodes):
        return (record,)
    return (record, *(companion for companion in companions if companion.devnode))


def separate(parts: Collection[str], devices: list[Device]) -> list[Device]:
    """The devices, where those of ``parts`` that hand out a node of their whole may have holders side by side: the
    configuration says that they are parts, and the driver keeps them apart. Nothing does in an IOMMU group.
    """
    if not parts:
        return devices
    wholes = {device.name: device for device in devices}
    separated = []
    for device in devices:
        if device.name in parts and (whole := wholes.get(device.root)) is not None:
            apart = [place for place in device.also_at if place not in whole.also_at or place.startswith(VFIO)]
            device = replace(device, also_at=tuple(apart))
        separated.append(device)
    return separated


def resource_of(config: Config, record: UdevDevice) -> Resource | None:
    """What the configuration takes a record for; None when it does not name it."""
    return next((resource for resource in config.resources if holds(any_of(resource.match), record)), None)


class FormerDevices:
    """Held devices that an earlier configuration named, by the places of what they hand out."""

    def __init__(self) -> None:
        self._at: dict[str, dict[str, Config]] = defaultdict(dict)
        self._from: dict[str, dict[str, Config]] = defaultdict(dict)  # there, or above it

    def __bool__(self) -> bool:
        return bool(self._at)

    def add(self, config: Config, parts: Sequence[UdevDevice]) -> None:
        """A device that ``config`` named; it is the first of ``parts``, which it hands out."""
        syspath = parts[0].syspath
        for part in parts:
            self._at[part.syspath][syspath] = config
            for node in part.lineage():
                self._from[node.syspath][syspath] = config

    def same_as(self, parts: Sequence[UdevDevice]) -> set[str]:
        """The syspaths of those that are the same hardware as a device that this configuration names."""
        found: dict[str, Config] = {}
        for part in parts:
            found |= self._from.get(part.syspath, {})
            for node in part.lineage():
                found |= self._at.get(node.syspath, {})
        return {syspath for syspath, config in found.items() if resource_of(config, parts[0]) is None}
