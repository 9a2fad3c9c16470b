"""Find the companions of a device: udev devices below, beside and above it, and in its IOMMU group."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from drabridge.config.matcher import any_of
from drabridge.config.schema import Resource
from drabridge.inventory import topology
from drabridge.inventory.match import holds
from drabridge.inventory.udev_device import UdevDevice


class DeviceTree:
    """The udev devices by place: what is below, beside and above a device, and in its IOMMU group."""

    def __init__(self, udev_devices: Mapping[str, UdevDevice]) -> None:
        self._devices = udev_devices
        self._sorted: list[str] | None = None
        self._groups: dict[str, list[UdevDevice]] | None = None

    def companions(self, resource: Resource, device: UdevDevice) -> Iterator[UdevDevice]:
        """The companions of a device, in the order of syspaths."""
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
            yield from self._iommu_groups().get(group, ())

    def _below(self, syspath: str) -> Iterator[UdevDevice]:
        if self._sorted is None:
            self._sorted = sorted(self._devices)
        prefix = syspath + "/"
        for index in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            if not self._sorted[index].startswith(prefix):
                return
            yield self._devices[self._sorted[index]]

    def _iommu_groups(self) -> Mapping[str, list[UdevDevice]]:
        if self._groups is None:
            self._groups = {}
            for device in self._devices.values():
                if device.links.get("iommu_group"):
                    self._groups.setdefault(topology.iommu_group(device), []).append(device)
        return self._groups
