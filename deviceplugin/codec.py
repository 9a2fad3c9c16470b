"""Convert between the library's values and the protobuf messages of deviceplugin/v1beta1."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from deviceplugin.broadcast import Versioned
from deviceplugin.model import ContainerAllocation, ListedDevice
from deviceplugin.wire import v1beta1_pb2 as pb

VERSION = "v1beta1"
"""The only version in kubelet's ``SupportedVersions`` (deviceplugin/v1beta1/constants.go)."""

LIST_MAX_BYTES = 4 * 1024 * 1024
"""What kubelet's client accepts in one message: grpc-go's default. More ends the stream."""

NUMA_LIMIT = 64
"""NUMA node numbers are bits of a uint64 in kubelet (topologymanager/bitmask)."""


class ListCache:
    """Builds the message of a version once, however many streams send it.

    A list that kubelet would refuse as too large is cut. An id that was in a message once stays in, before all others,
    and no change of its health makes the message too large. So kubelet always learns that a device became unhealthy.
    ``left_out``: how many ids are not in the newest message.
    """

    def __init__(self) -> None:
        self._built: tuple[int, pb.ListAndWatchResponse] | None = None
        self._told: frozenset[str] = frozenset()
        self.left_out = 0

    def message(self, snapshot: Versioned[tuple[ListedDevice, ...]]) -> pb.ListAndWatchResponse:
        if self._built is None or self._built[0] != snapshot.version:
            devices = fitting(snapshot.value, self._told)
            self._told = frozenset(device.id for device in devices)
            self.left_out = len(snapshot.value) - len(devices)
            self._built = (snapshot.version, encode_list(devices))
        return self._built[1]


def fitting(devices: Sequence[ListedDevice], told: Collection[str]) -> Sequence[ListedDevice]:
    """Return as many devices as fit into one message, those in ``told`` first; their order stays."""
    if sum(map(_most_bytes, devices)) <= LIST_MAX_BYTES:
        return devices
    left, chosen = LIST_MAX_BYTES, set[str]()
    for device in sorted(devices, key=lambda device: device.id not in told):
        left -= _most_bytes(device)
        if left < 0:
            break
        chosen.add(device.id)
    return [device for device in devices if device.id in chosen]


def _most_bytes(device: ListedDevice) -> int:
    """Return how many bytes a device takes in a message at most, whatever its health.

    24 bytes are more than its tags, lengths and health take.
    """
    return len(device.id.encode()) + 6 * len(device.numa_nodes) + 24


def encode_list(devices: Iterable[ListedDevice]) -> pb.ListAndWatchResponse:
    """Encode the complete list.

    An entry without an id is left out, and so is the second one with the same id.

    ``topology`` is set only for a device with a real NUMA node: -1 makes Topology Manager refuse pods, and an empty
    TopologyInfo hides the device from PodResources.
    """
    response = pb.ListAndWatchResponse()
    seen: set[str] = set()
    for device in devices:
        if not device.id or device.id in seen:
            continue
        seen.add(device.id)
        entry = response.devices.add(ID=device.id, health=device.health.value)
        for node in sorted({n for n in device.numa_nodes if 0 <= n < NUMA_LIMIT}):
            entry.topology.nodes.add(ID=node)
    return response


def encode_allocation(allocation: ContainerAllocation) -> pb.ContainerAllocateResponse:
    """Encode one container's answer.

    Kubelet waits, so empty fields, which are most of them, are not touched.
    """
    answer = pb.ContainerAllocateResponse()
    if allocation.envs:
        answer.envs.update(allocation.envs)
    for m in allocation.mounts:
        answer.mounts.add(container_path=m.container_path, host_path=m.host_path, read_only=m.read_only)
    for d in allocation.devices:
        answer.devices.add(container_path=d.container_path, host_path=d.host_path, permissions=d.permissions)
    if allocation.annotations:
        answer.annotations.update(allocation.annotations)
    for name in allocation.cdi_devices:
        answer.cdi_devices.add(name=name)
    return answer


def unique_sorted(ids: Iterable[str]) -> list[str]:
    """Return the ids of a request, each once, sorted: kubelet's order is that of a Go map, random."""
    return sorted(set(ids))
