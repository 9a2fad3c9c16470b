"""Turn kubelet's answers into the model. Pure, and the only module that reads protobuf messages.

Kubelet's quirks that this module removes (observed on 1.36.2, source in pkg/kubelet/apis/podresources):

- one entry per device *and NUMA node*: a device on two nodes comes twice, in random order;
- DRA devices repeated after failed prepares (kubernetes #141335), without bound;
- ``cdi_devices`` that accumulate over the devices of one driver in one claim: never an identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from podresources.errors import ProtocolViolation
from podresources.model import (
    Allocatable,
    AllocatableDevice,
    Api,
    Claim,
    ClaimDevice,
    Container,
    DeviceEntry,
    Memory,
    NodeSnapshot,
    Pod,
    PodAllocation,
    SocketIdentity,
)
from podresources.wire import v1_pb2

NO_NODES: tuple[int, ...] = ()


def snapshot(response: v1_pb2.ListPodResourcesResponse, socket: SocketIdentity) -> NodeSnapshot:
    """Normalise ``List``'s answer. Raises ProtocolViolation when a record lacks its name."""
    pods = tuple(pod_from_wire(pod) for pod in response.pod_resources)
    return NodeSnapshot(pods, tuple(allocation for pod in pods for allocation in allocations_of(pod)), socket)


def allocatable(response: v1_pb2.AllocatableResourcesResponse, socket: SocketIdentity) -> Allocatable:
    """Normalise ``GetAllocatableResources``' answer, one record per device."""
    devices = [
        AllocatableDevice(resource, device_id, nodes)
        for (resource, device_id), nodes in _merge_numa(map(_device_entry, response.devices)).items()
    ]
    return Allocatable(tuple(devices), tuple(sorted(response.cpu_ids)), _memory(response.memory), socket)


def pod_from_wire(pod: v1_pb2.PodResources) -> Pod:
    """Read one pod, close to the wire."""
    name, namespace = pod.name, pod.namespace
    if not name or not namespace:
        raise _nameless(f"a pod (name {name!r}, namespace {namespace!r})")
    return Pod(namespace, name, tuple(map(_container, pod.containers)), tuple(sorted(pod.cpu_ids)), _memory(pod.memory))


def allocations_of(pod: Pod) -> Iterator[PodAllocation]:
    """Yield the normalised view of one pod: one PodAllocation per container and device, each once."""
    namespace, name = pod.namespace, pod.name
    for container in pod.containers:
        for (resource, device_id), nodes in _merge_numa(container.devices).items():
            yield PodAllocation(
                namespace,
                name,
                container.name,
                Api.DEVICE_PLUGIN,
                resource=resource,
                device_ids=(device_id,),
                numa_nodes=nodes,
            )
        for claim, device in _distinct(container.claims):
            yield PodAllocation(
                namespace,
                name,
                container.name,
                Api.DRA,
                driver=device.driver,
                pool=device.pool,
                device=device.device,
                claim=claim.name,
                claim_namespace=claim.namespace,
                share_id=device.share_id,
                cdi_ids=device.cdi_ids,
            )


def _container(container: v1_pb2.ContainerResources) -> Container:
    if not container.name:
        raise _nameless("a container")
    return Container(
        container.name,
        tuple(map(_device_entry, container.devices)),
        tuple(map(_claim, container.dynamic_resources)),
        tuple(sorted(container.cpu_ids)),
        _memory(container.memory),
    )


def _device_entry(entry: v1_pb2.ContainerDevices) -> DeviceEntry:
    resource = entry.resource_name
    if not resource:
        raise _nameless("a device entry (resource_name is empty)")
    return DeviceEntry(resource, tuple(entry.device_ids), _numa_nodes(entry))


def _claim(claim: v1_pb2.DynamicResource) -> Claim:
    return Claim(claim.claim_namespace, claim.claim_name, tuple(map(_claim_device, claim.claim_resources)))


def _claim_device(device: v1_pb2.ClaimResource) -> ClaimDevice:
    if not device.driver_name or not device.device_name:
        raise _nameless(f"a claim's device (driver {device.driver_name!r}, device {device.device_name!r})")
    return ClaimDevice(
        device.driver_name,
        device.pool_name,
        device.device_name,
        device.share_id if device.HasField("share_id") else None,
        tuple(cdi.name for cdi in device.cdi_devices),
    )


def _memory(entries: Iterable[v1_pb2.ContainerMemory]) -> tuple[Memory, ...]:
    return tuple(Memory(entry.memory_type, entry.size, _numa_nodes(entry)) for entry in entries)


def _numa_nodes(entry: v1_pb2.ContainerDevices | v1_pb2.ContainerMemory) -> tuple[int, ...]:
    """Return the node numbers, sorted.

    ``()`` when the topology is unset or present but empty, which mean the same to a reader.
    """
    nodes = entry.topology.nodes
    match len(nodes):
        case 0:
            return NO_NODES
        case 1:
            return _one_node(nodes[0].ID)
        case _:
            return tuple(sorted({node.ID for node in nodes}))


@lru_cache(maxsize=64)
def _one_node(node: int) -> tuple[int, ...]:
    """Return the same tuple for every device of a node: thousands of devices, a handful of nodes."""
    return (node,)


def _merge_numa(entries: Iterable[DeviceEntry]) -> dict[tuple[str, str], tuple[int, ...]]:
    """``(resource, device id)`` -> every NUMA node that any entry named."""
    merged: dict[tuple[str, str], tuple[int, ...]] = {}
    for entry in entries:
        for device_id in entry.device_ids:
            key = (entry.resource, device_id)
            nodes = merged.get(key, NO_NODES)
            merged[key] = tuple(sorted({*nodes, *entry.numa_nodes})) if nodes else entry.numa_nodes
    return merged


def _distinct(claims: Iterable[Claim]) -> Iterable[tuple[Claim, ClaimDevice]]:
    """Yield each driver/pool/device/share of a claim once, with its shortest CDI list: repeats lengthen it."""
    found: dict[tuple[str, ...], tuple[Claim, ClaimDevice]] = {}
    for claim in claims:
        for device in claim.devices:
            key = (claim.namespace, claim.name, device.driver, device.pool, device.device, device.share_id or "")
            known = found.get(key)
            if known is None or len(device.cdi_ids) < len(known[1].cdi_ids):
                found[key] = (claim, device)
    return found.values()


def _nameless(what: str) -> ProtocolViolation:
    return ProtocolViolation(
        f"Kubelet listed {what} without a name",
        hint="The socket may not be kubelet's PodResources socket; check the path",
    )
