"""Describe PCI functions bound to vfio-pci: the group behind a node, what blocks the group, what a holder gets.

A function, or something below it (a disk, a GPU's partitions), may be a device for containers, and the function may be
a device for virtual machines as well. The latter device is called its twin. Both are at one place in sysfs, so only one
of them can have a holder in the ledger.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from drabridge.config.schema import Config, Resource
from drabridge.inventory import topology
from drabridge.inventory.devices import Device, DeviceNode, Presence
from drabridge.inventory.udev_device import UdevDevice, clean
from drabridge.inventory.udev_scope import VFIO_CDEV
from drabridge.system.files import link_name, names_in

VFIO = "/dev/vfio/"
_GROUP_NODE = re.compile(r"/dev/vfio/(\d+)", re.ASCII)
_OWN_NODE = re.compile(r"/dev/vfio/devices/vfio\d+", re.ASCII)  # the node of one function, for IOMMUFD
_HARMLESS = frozenset({"pci-stub", "pcieport"})
"""Drivers that leave DMA to vfio (``driver_managed_dma`` in Linux drivers/pci). vfio's are known by name."""


def group_of(path: str, number: tuple[int, int], sys: str = "/sys") -> str:
    """Return the number of the IOMMU group that a node gives access to; empty for other nodes."""
    if found := _GROUP_NODE.fullmatch(path):
        return found[1]
    if not _OWN_NODE.fullmatch(path):
        return ""
    place = os.path.realpath(f"{sys}/dev/char/{number[0]}:{number[1]}")
    while len(place) > len(sys):  # two levels above is its PCI function
        if group := link_name(f"{place}/iommu_group"):
            return group
        place = os.path.dirname(place)
    return ""


def why_not_viable(path: str, number: tuple[int, int], sys: str = "/sys") -> str:
    """Return a sentence that names the functions that block a node's IOMMU group; "" for other nodes and usable groups.

    While another driver does DMA with a device of the group, the kernel refuses the group (EPERM at the first use), and
    each of its functions by IOMMUFD (Linux drivers/iommu/iommu.c, iommu_device_use_default_domain and
    iommu_device_claim_dma_owner). Such a device may be a card's audio function, or a neighbour on an old bus.
    """
    group = group_of(path, number, sys)
    if not group:
        return ""
    folder = f"{sys}/kernel/iommu_groups/{group}/devices"
    drivers = {name: clean(link_name(f"{folder}/{name}/driver")) for name in names_in(folder)}
    in_the_way = [f"{clean(name)} has the driver {driver}" for name, driver in drivers.items() if does_dma(driver)]
    if not in_the_way:
        return ""
    what_to_do = "give every function of the group to vfio-pci"
    return f"vfio cannot open IOMMU group {group}: {', '.join(in_the_way)}; {what_to_do}"


def does_dma(driver: str) -> bool:
    """Whether a driver makes the IOMMU group of its device unusable for vfio."""
    return driver != "" and driver not in _HARMLESS and "vfio" not in driver


# --- twins ------------------------------------------------------------------------------------------------------------

CONTAINER, IOMMUFD = f"{VFIO}vfio", "/dev/iommu"
NO_GROUP = "it is in no IOMMU group: switch the IOMMU on in the firmware and on the kernel's command line"
_MARK = "/vfio-pci"  # sysfs has nothing of that name below a function


def wants_twins(configs: Iterable[Config]) -> bool:
    """Whether a resource hands out functions bound to vfio-pci (``vfio``)."""
    return any(resource.vfio is not None for config in configs for resource in config.resources)


def is_twin(device: UdevDevice) -> bool:
    """Whether a udev device is the twin of a function."""
    return device.syspath.endswith(_MARK)


def place_of(device: UdevDevice) -> str:
    """Return the syspath of the hardware; for a twin, that of its function."""
    return device.syspath.removesuffix(_MARK)


def with_twins(devices: Mapping[str, UdevDevice], configs: Iterable[Config]) -> Mapping[str, UdevDevice]:
    """Return the devices and a twin of each PCI function, by syspath; the same mapping if no resource wants twins.

    A twin has the node that its function has while it is bound to vfio-pci.
    """
    if not wants_twins(configs):
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
    """Return IOMMU group -> places of its devices: a holder of a function bound to vfio-pci has the whole group.

    ``devices``: for each device what it hands out, with the device first. It counts if one of these is in a group.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for parts in devices:
        for group in filter(None, map(topology.iommu_group, parts)):
            found[group].add(place_of(parts[0]))
    return {group: frozenset(places) for group, places in found.items()}


def places_beside(twin: UdevDevice, groups: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the other places that are handed out with a function: those of its IOMMU group, and the group's node."""
    group = topology.iommu_group(twin)
    return groups.get(group, frozenset()) - {place_of(twin)} | {VFIO + group} if group else frozenset()


def as_handed_out(device: Device, resource: Resource, twin: UdevDevice) -> Device:
    """Return the device of a twin with what its holder gets.

    The group's node has no number yet: the kernel makes it when the function is bound, and the runtime looks it up.
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
    """Return the variable in which KubeVirt looks for the addresses of its devices: ``PCI_RESOURCE_NVIDIA_COM_GPU``.

    kubevirt/kubevirt pkg/util/util.go, ResourceNameToEnvVar.
    """
    return "PCI_RESOURCE_" + resource.upper().replace("/", "_").replace(".", "_")
