"""Describe who holds what on one node, as immutable records.

There are two levels. ``Pod``, ``Container`` and their parts are close to the wire. ``PodAllocation`` is the normalised
view: one device held by one container, over both device APIs. No client can find out what the API itself does not tell:

- **No pod UID.** A pod that was deleted and created again under its name (every StatefulSet) looks like one pod.
- **Init containers** that are not sidecars never appear, although they hold devices while they run.
- **Whole claims.** A container that uses one request of a ResourceClaim is shown with every device of that claim.
- **No health.** A device that went bad while it is held still shows as held; health is in the pod's status only.
- **DRA devices that nobody holds** are not listed anywhere; the device-plugin ones are (``Allocatable``).
- Before a claim is prepared, and while kubelet does not know one of a container's claims, its DRA list is empty.
- Kubelets before 1.34 also list pods that have ended, with what they held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct


class Api(StrEnum):
    """The device API that gave out a device."""

    DEVICE_PLUGIN = "deviceplugin"
    DRA = "dra"


class SocketIdentity(NamedTuple):
    """Which socket file answered. Inode numbers are re-used at once, so the change time belongs to it."""

    device: int
    inode: int
    ctime_ns: int


class Holder(NamedTuple):
    """A container, as far as this API can name one (there is no pod UID)."""

    namespace: str
    pod: str
    container: str

    def __str__(self) -> str:
        return "/".join(self)


class DeviceKey(NamedTuple):
    """Identifies a device on this node. Unused fields are empty strings.

    ``source`` is the resource name (device plugin) or the driver (DRA); ``device`` the id or the device's name.
    CDI ids are no part of it: kubelet 1.34 to 1.36 accumulates them over the devices of a claim.
    """

    api: Api
    source: str
    pool: str
    device: str
    share_id: str

    def __str__(self) -> str:
        return "/".join(part for part in self[1:] if part)


class AllocationKey(NamedTuple):
    """Identifies an allocation. Without a claim, the claim's names are empty strings."""

    holder: Holder
    device: DeviceKey
    claim_namespace: str
    claim: str


class DeviceEntry(Struct, frozen=True):
    """``ContainerDevices``: kubelet sends one per device and NUMA node, so a device may be in several."""

    resource: str
    device_ids: tuple[str, ...]
    numa_nodes: tuple[int, ...] = ()


class Memory(Struct, frozen=True):
    """``ContainerMemory``: memory or huge pages pinned by the memory manager's Static policy."""

    memory_type: str
    size_bytes: int
    numa_nodes: tuple[int, ...] = ()


class ClaimDevice(Struct, frozen=True):
    """``ClaimResource``: one allocated device of a claim.

    ``cdi_ids`` may name earlier devices of the claim too.
    """

    driver: str
    pool: str
    device: str
    share_id: str | None = None
    cdi_ids: tuple[str, ...] = ()


class Claim(Struct, frozen=True):
    """``DynamicResource``: a ResourceClaim that the container refers to.

    It has no devices until it is prepared.
    """

    namespace: str
    name: str
    devices: tuple[ClaimDevice, ...] = ()


class Container(Struct, frozen=True):
    """``ContainerResources``.

    ``cpu_ids`` are exclusive CPUs only (static policy); empty means the shared pool.
    """

    name: str
    devices: tuple[DeviceEntry, ...] = ()
    claims: tuple[Claim, ...] = ()
    cpu_ids: tuple[int, ...] = ()
    memory: tuple[Memory, ...] = ()


class Pod(Struct, frozen=True):
    """``PodResources``.

    ``cpu_ids`` and ``memory`` are the whole pod's (Kubernetes 1.37, gate PodLevelResourceManagers; else empty): the
    containers' own are parts of them, and what is left is shared by the pod's other containers (kubernetes#138738).
    """

    namespace: str
    name: str
    containers: tuple[Container, ...] = ()
    cpu_ids: tuple[int, ...] = ()
    memory: tuple[Memory, ...] = ()


class PodAllocation(Struct, frozen=True):
    """One device held by one container.

    Device plugin: ``resource`` and ``device_ids`` (one id) are set, ``numa_nodes`` merged over kubelet's entries.
    DRA: ``driver``, ``pool``, ``device``, ``claim``, ``claim_namespace`` and perhaps ``share_id`` are set; ``cdi_ids``
    is the shortest list that kubelet gave for the device, and may still name earlier devices of the same claim.
    """

    namespace: str
    pod: str
    container: str
    api: Api
    resource: str | None = None
    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    claim: str | None = None
    claim_namespace: str | None = None
    share_id: str | None = None
    device_ids: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] = ()
    numa_nodes: tuple[int, ...] = ()

    @property
    def holder(self) -> Holder:
        """The container that holds it."""
        return Holder(self.namespace, self.pod, self.container)

    @property
    def device_key(self) -> DeviceKey:
        """Which device it is, whoever holds it."""
        if self.api is Api.DEVICE_PLUGIN:
            return DeviceKey(self.api, self.resource or "", "", self.device_ids[0], "")
        return DeviceKey(self.api, self.driver or "", self.pool or "", self.device or "", self.share_id or "")

    @property
    def key(self) -> AllocationKey:
        """Identity: who holds which device by which claim. Stable between snapshots."""
        return AllocationKey(self.holder, self.device_key, self.claim_namespace or "", self.claim or "")


class AllocatableDevice(Struct, frozen=True):
    """A healthy device of a live device plugin, whether or not somebody holds it."""

    resource: str
    device_id: str
    numa_nodes: tuple[int, ...] = ()

    @property
    def device_key(self) -> DeviceKey:
        """The same key that an allocation of this device has."""
        return DeviceKey(Api.DEVICE_PLUGIN, self.resource, "", self.device_id, "")


class Allocatable(Struct, frozen=True):
    """``GetAllocatableResources``: capacity, not what is free. Never a DRA device.

    A device that its plugin reported with an empty topology is missing here (kubelet 1.36.2), though it can be held.
    """

    devices: tuple[AllocatableDevice, ...]
    cpu_ids: tuple[int, ...]
    memory: tuple[Memory, ...]
    socket: SocketIdentity

    def count_by_resource(self) -> dict[str, int]:
        """Tell how many healthy devices each resource has."""
        return dict(Counter(device.resource for device in self.devices))


class NodeSnapshot(Struct, frozen=True):
    """One complete answer of ``List``; ``socket`` tells which kubelet process gave it."""

    pods: tuple[Pod, ...]
    allocations: tuple[PodAllocation, ...]
    socket: SocketIdentity

    @property
    def has_dynamic_resources(self) -> bool:
        """Whether any container refers to a ResourceClaim, prepared or not."""
        return any(container.claims for pod in self.pods for container in pod.containers)


def holders_by_device(allocations: Iterable[PodAllocation]) -> dict[DeviceKey, list[PodAllocation]]:
    """Return held device -> the allocations that hold it; several when a claim is shared."""
    found: dict[DeviceKey, list[PodAllocation]] = {}
    for allocation in allocations:
        found.setdefault(allocation.device_key, []).append(allocation)
    return found


def shared_claims(allocations: Iterable[PodAllocation]) -> frozenset[tuple[str, str]]:
    """``(namespace, name)`` of the claims that more than one container uses."""
    users: dict[tuple[str, str], set[Holder]] = {}
    for allocation in allocations:
        if allocation.claim is not None:
            users.setdefault((allocation.claim_namespace or "", allocation.claim), set()).add(allocation.holder)
    return frozenset(claim for claim, holders in users.items() if len(holders) > 1)
