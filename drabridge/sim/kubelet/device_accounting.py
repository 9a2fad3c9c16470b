"""Account for devices as the device manager does, without sockets.

Source: ``pkg/kubelet/cm/devicemanager/manager.go``, ``pod_devices.go``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from deviceplugin.wire import v1beta1_pb2 as pb

HEALTHY = "Healthy"  # staging/.../deviceplugin/v1beta1/constants.go; any other text is unhealthy
NO_TOPOLOGY = -1  # pod_devices.go, nodeWithoutTopology


class KubeletPanicError(Exception):
    """The real process would end here by a nil dereference.

    The text names the function and the device.
    """


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device of a list.

    ``numa``: None without TopologyInfo, empty for a TopologyInfo that is present and empty.
    """

    id: str
    health: str
    numa: tuple[int, ...] | None = None

    @classmethod
    def from_wire(cls, device: pb.Device) -> DeviceInfo:
        numa = tuple(node.ID for node in device.topology.nodes) if device.HasField("topology") else None
        return cls(device.ID, device.health, numa)


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one container holds of one resource.

    Device ids by NUMA node (-1: none), and the plugin's serialised answer.
    """

    by_numa: Mapping[int, tuple[str, ...]]
    response: bytes

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(id_ for ids in self.by_numa.values() for id_ in ids)


@dataclass(slots=True)
class EndpointRecord:
    """A plugin as the manager remembers it.

    ``client`` is None for one that is known from the checkpoint only.
    ``pre_start`` is None while nobody registered since the kubelet's start (the real ``opts == nil``).
    """

    client: object | None = None
    pre_start: bool | None = None
    preferred: bool = False
    stopped_at: float | None = None

    def expired(self, now: float, grace_seconds: float) -> bool:
        return self.stopped_at is not None and now - self.stopped_at > grace_seconds


@dataclass(slots=True)
class DeviceState:
    """Devices by resource, and who holds them.

    Every method is a step of the real manager, with the same meaning.
    """

    all: dict[str, dict[str, DeviceInfo]] = field(default_factory=dict)
    healthy: dict[str, set[str]] = field(default_factory=dict)
    unhealthy: dict[str, set[str]] = field(default_factory=dict)
    allocated: dict[str, set[str]] = field(default_factory=dict)
    held: dict[tuple[str, str, str], Allocation] = field(default_factory=dict)  # (pod uid, container, resource)
    endpoints: dict[str, EndpointRecord] = field(default_factory=dict)

    # -- lists

    def update(self, resource: str, devices: Iterable[DeviceInfo]) -> None:
        """genericDeviceUpdateCallback: a message is the whole list; what is missing is forgotten."""
        known = {device.id: device for device in devices}
        self.all[resource] = known
        self.healthy[resource] = {d.id for d in known.values() if d.health == HEALTHY}
        self.unhealthy[resource] = known.keys() - self.healthy[resource]

    def disconnect(self, resource: str, now: float) -> None:
        """PluginDisconnected: every device becomes unhealthy, the grace period begins."""
        endpoint = self.endpoints.get(resource)
        if endpoint is None:
            return
        self.unhealthy[resource] = self.unhealthy.get(resource, set()) | self.healthy.get(resource, set())
        self.healthy[resource] = set()
        endpoint.stopped_at = now

    def capacity(self, now: float, grace_seconds: float) -> tuple[dict[str, int], dict[str, int], set[str]]:
        """Return (capacity, allocatable, removed), as GetCapacity does.

        Forgets resources whose plugin is gone for longer than the grace.
        """
        removed = {
            resource
            for resource in self.healthy.keys() | self.unhealthy.keys()
            if (endpoint := self.endpoints.get(resource)) is None or endpoint.expired(now, grace_seconds)
        }
        for resource in removed:
            self.endpoints.pop(resource, None)
            self.healthy.pop(resource, None)
            self.unhealthy.pop(resource, None)
        allocatable = {resource: len(ids) for resource, ids in self.healthy.items()}
        capacity = dict(allocatable)
        for resource, ids in self.unhealthy.items():
            capacity[resource] = capacity.get(resource, 0) + len(ids)
        return capacity, allocatable, removed

    # -- allocations

    def manages(self, resource: str) -> bool:
        """isDevicePluginResource."""
        return resource in self.healthy or resource in self.allocated

    def container_devices(self, uid: str, container: str, resource: str) -> frozenset[str] | None:
        """Ids held, or None where there is no record (the real code tells the two apart)."""
        allocation = self.held.get((uid, container, resource))
        return allocation.ids if allocation else None

    def container_allocations(self, uid: str, container: str) -> dict[str, Allocation]:
        return {key[2]: value for key, value in self.held.items() if key[:2] == (uid, container)}

    def recount(self) -> None:
        """``allocatedDevices = podDevices.devices()``."""
        self.allocated = {}
        for (_, _, resource), allocation in self.held.items():
            self.allocated.setdefault(resource, set()).update(allocation.ids)

    def collect(self, active_uids: Collection[str]) -> bool:
        """Free the devices of pods outside ``active_uids`` (UpdateAllocatedDevices); return whether there were any."""
        gone = [key for key in self.held if key[0] not in active_uids]
        for key in gone:
            del self.held[key]
        if gone:
            self.recount()
        return bool(gone)

    def insert(self, uid: str, container: str, resource: str, ids: Iterable[str], response: bytes) -> Allocation:
        """Record an allocation, as allocateContainerResources does at its end.

        Raises KubeletPanicError (a nil dereference in the real one) for an id that has left the list.
        """
        by_numa: dict[int, tuple[str, ...]] = {}
        for id_ in ids:
            for node in self.numa_nodes(resource, id_, "allocateContainerResources") or (NO_TOPOLOGY,):
                by_numa[node] = (*by_numa.get(node, ()), id_)
        allocation = Allocation(by_numa, response)
        self.held[uid, container, resource] = allocation
        return allocation

    def numa_nodes(self, resource: str, id_: str, function: str) -> tuple[int, ...]:
        """Return the NUMA nodes of a device, empty without any.

        Raises KubeletPanicError for an id that is not in the newest list.
        """
        device = self.all.get(resource, {}).get(id_)
        if device is None:
            raise KubeletPanicError(
                "panic: runtime error: invalid memory address or nil pointer dereference: "
                f"devicemanager.(*ManagerImpl).{function}: {resource} device {id_!r} is not in the newest list"
            )
        return device.numa or ()

    def aligned(self, resource: str) -> bool:
        """deviceHasTopologyAlignment: does any listed device name a NUMA node?"""
        return any(device.numa for device in self.all.get(resource, {}).values())

    def available(self, resource: str) -> set[str]:
        return self.healthy.get(resource, set()) - self.allocated.get(resource, set())

    def listed_healthy(self) -> Iterator[tuple[str, DeviceInfo]]:
        """GetAllocatableDevices: (resource, device) of every healthy device, in use or not."""
        for resource, ids in self.healthy.items():
            for id_ in ids:
                yield resource, self.all[resource][id_]
