"""Show PCI functions once more to resources that hand them out bound to vfio-pci. Pure.

A function may be a device for containers, or have such below it (a disk, a GPU's partitions), and a device for virtual
machines as well. The second one is its twin. Both are at one place in sysfs, so the ledger gives only one a holder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from drabridge.config.schema import Config, Resource
from drabridge.inventory import topology
from drabridge.inventory.model import Device, DeviceNode, Presence
from drabridge.inventory.udev_device import UdevDevice
from drabridge.inventory.udev_scope import VFIO_CDEV
from drabridge.inventory.vfio import VFIO

CONTAINER, IOMMUFD = f"{VFIO}vfio", "/dev/iommu"
NO_GROUP = "it is in no IOMMU group: switch the IOMMU on in the firmware and on the kernel's command line"
_MARK = "/vfio-pci"  # sysfs has nothing of that name below a function


def wanted(configs: Iterable[Config]) -> bool:
    """Whether a resource hands functions out bound to vfio-pci."""
    return any(resource.vfio is not None for config in configs for resource in config.resources)


def is_twin(device: UdevDevice) -> bool:
    """Whether a udev device is the twin of a function."""
    return device.syspath.endswith(_MARK)


def place_of(device: UdevDevice) -> str:
    """Where the hardware is: of a twin its function's path."""
    return device.syspath.removesuffix(_MARK)


def with_twins(devices: Mapping[str, UdevDevice], configs: Iterable[Config]) -> Mapping[str, UdevDevice]:
    """Return the devices by syspath, with a twin of each PCI function; the same mapping where no resource wants them.

    A twin's node is what the function has once it is bound to vfio-pci.
    """
    if not wanted(configs):
        return devices
    nodes = {one.above.syspath: one for one in devices.values() if one.subsystem == VFIO_CDEV and one.above}
    twins = {}
    for syspath, device in devices.items():
        if device.subsystem == "pci" and topology.is_pci_address(device.sysname):
            node = nodes.get(syspath, device)
            twins[syspath + _MARK] = replace(
                device, syspath=syspath + _MARK, seen_at=syspath, devnode=node.devnode, devnum=node.devnum
            )
    return {**devices, **twins}


def by_group(devices: Iterable[Sequence[UdevDevice]]) -> Mapping[str, frozenset[str]]:
    """The places of devices by IOMMU group: who has a function bound to vfio-pci has its whole group.

    ``devices``: of each what it hands out, itself first. A part of it in a group is enough.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for parts in devices:
        for group in filter(None, map(topology.iommu_group, parts)):
            found[group].add(place_of(parts[0]))
    return {group: frozenset(places) for group, places in found.items()}


def places_beside(twin: UdevDevice, groups: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The other places of what is handed out with a function."""
    group = topology.iommu_group(twin)
    return groups.get(group, frozenset()) - {place_of(twin)} | {VFIO + group} if group else frozenset()


def as_handed_out(device: Device, resource: Resource, twin: UdevDevice) -> Device:
    """The device of a twin with what its holder gets.

    The group's node has no number: the kernel makes it at the bind, and the runtime looks when it makes the container.
    """
    group = topology.iommu_group(twin)
    if not group:
        why = "; ".join(filter(None, (NO_GROUP, device.reason)))
        return replace(device, presence=Presence.FAULTY, reason=why)
    nodes = [CONTAINER, f"{VFIO}{group}", *([IOMMUFD] if twin.devnode else [])]
    return replace(
        device,
        nodes=(*device.nodes, *(DeviceNode(path, path) for path in nodes)),
        env=MappingProxyType({kubevirt_name(resource.name): twin.sysname, **device.env}),
    )


def kubevirt_name(resource: str) -> str:
    """``PCI_RESOURCE_NVIDIA_COM_GPU``: where KubeVirt looks for the addresses of what it got by limits.

    kubevirt/kubevirt pkg/util/util.go, ResourceNameToEnvVar.
    """
    return "PCI_RESOURCE_" + resource.upper().replace("/", "_").replace(".", "_")
