"""Find devices that are the same hardware in other places of the tree, and companions of a device. Pure.

A device hands out its companions' nodes. If a companion is a device as well, only one of the two may have a holder.
A changed configuration may match held hardware by its child, its parent or its companion. Until the release, devices
above or below the held one count as the same hardware, unless the configuration that named it has both as devices.

A holder of a node has the hardware behind it. So devices with the same node are in one place: for example functions of
one IOMMU group, or a device that got the number of an unplugged one while a container still has that one's node. But
devices that share a companion, or a path that is the same for every device, are not the same hardware: the operator
wants these handed out with each device.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec.structs import replace

from drabridge.config.matcher import any_of
from drabridge.config.schema import Config, Resource
from drabridge.inventory import topology
from drabridge.inventory.devices import Device
from drabridge.inventory.match import holds
from drabridge.inventory.udev_device import UdevDevice
from drabridge.inventory.vfio import VFIO, is_twin


def handed_out(resource: Resource, device: UdevDevice, companions: Iterable[UdevDevice]) -> tuple[UdevDevice, ...]:
    """Return the device, then the companions whose nodes it brings. Nodes by path do not count: they may be shared."""
    if not any(node.source == "group" for node in resource.all_nodes):
        return (device,)
    return (device, *(companion for companion in companions if companion.devnode))


def separate(parts: Collection[str], devices: list[Device]) -> list[Device]:
    """Return the devices, but those in ``parts`` without places that they share with their whole or its other parts.

    Parts of one whole may have different holders at the same time: the configuration declares them, and the driver
    isolates them. Nothing isolates devices of one IOMMU group, so such a place stays.
    """
    if not parts:
        return devices
    names = {device.name for device in devices}
    common: dict[str, Tally[str]] = defaultdict(Tally)  # whole -> place -> how many of whole and parts are there
    for device in devices:
        common[device.root if device.name in parts else device.name].update(device.also_at)
    separated = []
    for device in devices:
        if device.name in parts and device.root in names:
            shared = common[device.root]
            apart = [place for place in device.also_at if shared[place] == 1 or place.startswith(VFIO)]
            device = replace(device, also_at=tuple(apart))
        separated.append(device)
    return separated


def resource_of(config: Config, device: UdevDevice) -> Resource | None:
    """Return the first resource of the configuration that matches a udev device; None if none does."""
    twin = is_twin(device)
    resources = (resource for resource in config.resources if (resource.vfio is not None) is twin)
    return next((resource for resource in resources if holds(any_of(resource.match), device)), None)


class FormerDevices:
    """Held devices that an earlier configuration named, by the syspaths of everything that they hand out."""

    def __init__(self) -> None:
        self._at: dict[str, dict[str, Config]] = defaultdict(dict)
        self._from: dict[str, dict[str, Config]] = defaultdict(dict)  # at that place, or above it

    def __bool__(self) -> bool:
        return bool(self._at)

    def add(self, config: Config, parts: Sequence[UdevDevice]) -> None:
        """Add a device that ``config`` named. ``parts``: the device, then what else it hands out."""
        syspath = parts[0].syspath
        for part in parts:
            self._at[part.syspath][syspath] = config
            for node in part.lineage():
                self._from[node.syspath][syspath] = config

    def same_as(self, parts: Sequence[UdevDevice]) -> set[str]:
        """Return the syspaths of the held devices that are the same hardware as a device with these ``parts``."""
        found: dict[str, Config] = {}
        for part in parts:
            found |= self._from.get(part.syspath, {})
            for node in part.lineage():
                found |= self._at.get(node.syspath, {})
        return {syspath for syspath, config in found.items() if resource_of(config, parts[0]) is None}


# --- companions -------------------------------------------------------------------------------------------------------


class DeviceTree:
    """The udev devices by place: what is below, beside and above a device, and in its IOMMU group."""

    def __init__(self, udev_devices: Mapping[str, UdevDevice]) -> None:
        self._devices = udev_devices

    def companions(self, resource: Resource, device: UdevDevice) -> Iterator[UdevDevice]:
        """Yield the companions of a device, in the order of syspaths."""
        group = resource.group
        if group is None:
            return
        rule = any_of(group.match) if group.match else None
        for other in self._in_scope(group.scope, device):
            if other.syspath != device.syspath and (holds(rule, other) if rule else other.devnode):
                yield other

    def _in_scope(self, scope: str, device: UdevDevice) -> Iterator[UdevDevice]:
        if scope == "children":
            yield from self._below(device.syspath)
        elif scope == "siblings" and device.above is not None:
            yield from self._below(device.above.syspath)
        elif scope == "parent":
            yield from device.ancestors()
        elif scope == "iommuGroup" and (group := topology.iommu_group(device)):
            yield from self._iommu_groups.get(group, ())

    def _below(self, syspath: str) -> Iterator[UdevDevice]:
        prefix = syspath + "/"
        for index in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            if not self._sorted[index].startswith(prefix):
                return
            yield self._devices[self._sorted[index]]

    @cached_property
    def _sorted(self) -> list[str]:
        return sorted(self._devices)

    @cached_property
    def _iommu_groups(self) -> Mapping[str, list[UdevDevice]]:
        found: dict[str, list[UdevDevice]] = defaultdict(list)
        for device in self._devices.values():
            if device.links.get("iommu_group"):
                found[topology.iommu_group(device)].append(device)
        return found
