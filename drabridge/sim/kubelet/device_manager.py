"""The device manager at work: lists in, allocations out (``pkg/kubelet/cm/devicemanager/manager.go``)."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from deviceplugin.wire import v1beta1_pb2 as pb
from drabridge.sim.kubelet import checkpoint, topology
from drabridge.sim.kubelet.device_accounting import DeviceInfo, DeviceState, EndpointRecord
from drabridge.sim.kubelet.go_grpc import PluginCallError
from drabridge.sim.kubelet.node import Node
from drabridge.sim.kubelet.plugin_client import PluginClient
from drabridge.sim.kubelet.pods import Container, PodSpec

T = TypeVar("T")


class AllocationError(Exception):
    """Why a container gets no devices; the text is the real kubelet's."""


class DeviceManager:
    """The accounting plus RPCs.

    ``active_uids`` and ``already_running`` return what the node knows; the process sets ``sources_ready``.
    """

    def __init__(self, node: Node, active_uids: Callable[[], Collection[str]]) -> None:
        self.state = DeviceState()
        self.sources_ready = False
        self.running_at_start: frozenset[tuple[str, str]] = frozenset()  # (pod uid, container)
        self._node = node
        self._rng = node.rng
        self._active_uids = active_uids
        self._reusable: tuple[str, dict[str, set[str]]] = ("", {})
        self._affinity: dict[tuple[str, str], frozenset[int]] = {}
        self._pending_admission = ""

    # -- start and lists

    def restore(self, now: float) -> None:
        """readCheckpoint: allocations, and a stopped endpoint without options for each registered resource."""
        saved = checkpoint.read(self._node.device_plugin_dir)
        if saved is None:
            return
        self.state.held = dict(saved.held)
        for resource in saved.registered:
            self.state.healthy[resource] = set()
            self.state.unhealthy[resource] = set()
            self.state.endpoints[resource] = EndpointRecord(stopped_at=now)
        self.state.recount()

    async def plugin_connected(self, resource: str, client: PluginClient) -> None:
        """PluginConnected: the endpoint is replaced before the first list comes. Raises PluginCallError."""
        try:
            options = await client.options()
        except PluginCallError as error:
            raise PluginCallError(f"failed to get device plugin options: {error}") from error
        self.state.endpoints[resource] = EndpointRecord(
            client, options.pre_start_required, options.get_preferred_allocation_available
        )

    def plugin_disconnected(self, resource: str, client: PluginClient) -> None:
        self.state.disconnect(resource, time.monotonic())

    def plugin_list(self, resource: str, response: pb.ListAndWatchResponse) -> None:
        """Every message rewrites the checkpoint."""
        self.state.update(resource, map(DeviceInfo.from_wire, response.devices))
        self.write_checkpoint()

    def capacity(self) -> tuple[dict[str, int], dict[str, int], set[str]]:
        """(capacity, allocatable, resources forgotten because their plugin has been gone for too long)."""
        capacity, allocatable, removed = self.state.capacity(
            time.monotonic(), self._node.timings.endpoint_grace_seconds
        )
        if removed:
            self.write_checkpoint()
        return capacity, allocatable, removed

    def write_checkpoint(self) -> None:
        """Write the checkpoint; ignore a missing directory: the real kubelet only logs that."""
        with contextlib.suppress(OSError):
            checkpoint.write(self._node.device_plugin_dir, checkpoint.encode(self.state.held, self.state.healthy))

    def collect(self) -> None:
        """UpdateAllocatedDevices: nothing before all sources of pods are ready.

        If it frees something during an Allocate, what is being allocated counts as free afterwards
        (kubernetes/kubernetes#137534).
        """
        if self.sources_ready:
            self.state.collect({*self._active_uids(), self._pending_admission})

    # -- admission

    async def admit_container(self, pod: PodSpec, container: Container) -> None:
        """Topology first, then Allocate, for one container.

        Raises AllocationError, topology.TopologyAffinityError, or KubeletPanicError.
        """
        if self._node.topology_policy != topology.NONE:
            self._affinity.pop((pod.uid, container.name), None)
            affinity = self._admit_topology(pod, container)
            if affinity is not None:
                self._affinity[pod.uid, container.name] = affinity
        await self._allocate(pod, container)

    def admission_over(self) -> None:
        """End the protection of the pod's entries: its admission is over.

        Observed: the entries of a finished pod are removed at once.
        """
        self._pending_admission = ""

    def _admit_topology(self, pod: PodSpec, container: Container) -> frozenset[int] | None:
        reusable = self._reusable_of(pod.uid)
        demands: dict[str, topology.Demand] = {}
        for resource, needed in container.limits.items():
            if self.state.manages(resource) and self.state.aligned(resource):
                demands[resource] = topology.demand(
                    self.state,
                    resource,
                    needed,
                    held=self.state.container_devices(pod.uid, container.name, resource),
                    reusable=reusable.get(resource, set()),
                )
        return topology.single_numa_node(demands, self._node.numa_nodes)

    def _reusable_of(self, uid: str) -> dict[str, set[str]]:
        """devicesToReuse: the manager keeps it for one pod at a time."""
        if self._reusable[0] != uid:
            self._reusable = (uid, {})
        return self._reusable[1]

    async def _allocate(self, pod: PodSpec, container: Container) -> None:
        """Allocate: later containers reuse the devices of plain init containers, but not those of sidecars."""
        self._pending_admission = pod.uid
        reusable = self._reusable_of(pod.uid)
        await self._allocate_container(pod, container, reusable)
        plain_init = container in pod.init_containers and not container.is_sidecar
        for resource, allocation in self.state.container_allocations(pod.uid, container.name).items():
            known = reusable.setdefault(resource, set())
            if plain_init:
                known |= allocation.ids
            else:
                known -= allocation.ids

    async def _allocate_container(self, pod: PodSpec, container: Container, reusable: dict[str, set[str]]) -> None:
        """allocateContainerResources: one RPC with one container request for each resource."""
        collected = changed = False
        for resource, needed in self._shuffled(container.limits.items()):
            if not self.state.manages(resource) or pod.served_by_claim(container.name, resource):
                continue
            if not collected:
                self.collect()
                collected = True
            ids = await self._choose(pod.uid, container.name, resource, needed, reusable.get(resource, set()))
            if not ids:
                continue
            changed = True
            response = await self._call_allocate(resource, ids)
            self.state.insert(pod.uid, container.name, resource, ids, response.SerializeToString())
        if changed:
            self.write_checkpoint()

    async def _call_allocate(self, resource: str, ids: list[str]) -> pb.ContainerAllocateResponse:
        endpoint = self.state.endpoints.get(resource)
        if endpoint is None:
            self.state.recount()
            raise AllocationError(f"unknown Device Plugin {resource}")
        try:
            response = await _client(endpoint, resource).allocate(self._shuffled(ids))
        except PluginCallError as error:
            self.state.recount()
            raise AllocationError(str(error)) from error
        if not response.container_responses:
            raise AllocationError(f"no containers return in allocation response {response}")
        return response.container_responses[0]

    async def _choose(self, uid: str, container: str, resource: str, required: int, reusable: set[str]) -> list[str]:
        """devicesToAllocate; the order of its checks is what people see after a restart or a reboot."""
        state = self.state
        previous = state.container_devices(uid, container, resource)
        if previous is not None and len(previous) != required:
            raise AllocationError(
                f'pod "{uid}" container "{container}" changed request for resource "{resource}" '
                f"from {len(previous)} to {required}"
            )
        if not self.sources_ready and (uid, container) in self.running_at_start:
            return []  # the container runs: nothing to do, whatever the plugin's state
        if resource not in state.healthy:
            raise AllocationError(f"cannot allocate unregistered device {resource}")
        if not state.healthy[resource]:
            raise AllocationError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if not state.healthy[resource] >= (previous or frozenset()):
            raise AllocationError(
                f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
            )
        if previous is not None or required == 0:
            return []
        picked = _Picker(required, state.allocated.setdefault(resource, set()), self._rng)
        if picked.take(reusable):
            return picked.ids
        available = state.available(resource)
        if len(available) < picked.needed:
            raise AllocationError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {picked.needed}, Available: {len(available)}"
            )
        aligned, others = self._by_affinity(uid, container, resource, available)
        if picked.needed < len(aligned):
            preferred = await self._preferred(resource, {*aligned, *picked.ids}, picked.ids, required)
            picked.within(state.allocated.setdefault(resource, set()))
            if picked.take(preferred & set(aligned)) or picked.take(aligned):
                return picked.ids
        else:
            if picked.take(aligned):
                return picked.ids
            preferred = await self._preferred(resource, available | set(picked.ids), picked.ids, required)
            picked.within(state.allocated.setdefault(resource, set()))
            if picked.take(preferred & available) or any(picked.take(group) for group in others):
                return picked.ids
        raise AllocationError(
            f"unexpectedly allocated less resources than required. Requested: {required}, Got: {len(picked.ids)}"
        )

    def _by_affinity(
        self, uid: str, container: str, resource: str, available: set[str]
    ) -> tuple[set[str], tuple[set[str], ...]]:
        affinity = self._affinity.get((uid, container))
        if affinity is None or not self.state.aligned(resource):
            return set(), (available,)
        return topology.split_by_affinity(self.state, resource, available, affinity)

    async def _preferred(self, resource: str, available: Iterable[str], must: Iterable[str], size: int) -> set[str]:
        """Ask the plugin which devices it prefers (callGetPreferredAllocationIfAvailable).

        An error rejects the pod and leaks the ids taken so far, as in 1.36.2.
        """
        endpoint = self.state.endpoints.get(resource)
        if endpoint is None:
            raise AllocationError(f"endpoint not found in cache for a registered resource: {resource}")
        if not endpoint.preferred:
            return set()
        try:
            answer = await _client(endpoint, resource).preferred(self._shuffled(available), self._shuffled(must), size)
        except PluginCallError as error:
            raise AllocationError(f"device plugin GetPreferredAllocation rpc failed with err: {error}") from error
        return set(answer.container_responses[0].deviceIDs) if answer.container_responses else set()

    # -- start of a container

    async def run_options(
        self, pod: PodSpec, container: Container
    ) -> list[tuple[str, frozenset[str], pb.ContainerAllocateResponse]]:
        """Return what a container is started with (GetDeviceRunContainerOptions).

        PreStartContainer first if required, then the cached answers, in random order.
        Returns (resource, ids, answer). Raises AllocationError. A resource without a record (a lost
        checkpoint) is allocated now.
        """
        reallocate = False
        for resource, needed in container.limits.items():
            if not self.state.manages(resource) or needed == 0:
                continue
            await self._pre_start(pod.uid, container.name, resource)
            reallocate |= self.state.container_devices(pod.uid, container.name, resource) is None
        if reallocate:
            await self._allocate_container(pod, container, self._reusable_of(pod.uid))
        return [
            (resource, allocation.ids, pb.ContainerAllocateResponse.FromString(allocation.response))
            for resource, allocation in self._shuffled(
                self.state.container_allocations(pod.uid, container.name).items()
            )
        ]

    async def _pre_start(self, uid: str, container: str, resource: str) -> None:
        endpoint = self.state.endpoints.get(resource)
        if endpoint is None:
            raise AllocationError(f"endpoint not found in cache for a registered resource: {resource}")
        if not endpoint.pre_start:
            return
        ids = self.state.container_devices(uid, container, resource)
        if ids is None:
            raise AllocationError(
                f"no devices found allocated in local cache for pod {uid}, container {container}, resource {resource}"
            )
        try:
            await _client(endpoint, resource).pre_start(self._shuffled(ids))
        except PluginCallError as error:
            raise AllocationError(f"device plugin PreStartContainer rpc failed with err: {error}") from error

    def _shuffled(self, items: Iterable[T]) -> list[T]:
        return go_map_order(items, self._rng)


class _Picker:
    """allocateRemainingFrom: takes ids in random order until enough, and marks them allocated at once."""

    def __init__(self, required: int, allocated: set[str], rng: random.Random) -> None:
        self.ids: list[str] = []
        self.needed = required
        self._allocated = allocated
        self._rng = rng

    def within(self, allocated: set[str]) -> None:
        """Use the manager's new set, which was counted again while the plugin was asked."""
        self._allocated = allocated

    def take(self, candidates: Iterable[str]) -> bool:
        """Take devices from the candidates; return True once nothing more is needed."""
        for id_ in go_map_order(set(candidates) - set(self.ids), self._rng):
            self._allocated.add(id_)
            self.ids.append(id_)
            self.needed -= 1
            if self.needed == 0:
                return True
        return False


def go_map_order(items: Iterable[T], rng: random.Random) -> list[T]:
    """Return the items in random order, as a Go map has them. They are sorted first: only the seed decides."""
    ordered = sorted(items, key=str)
    rng.shuffle(ordered)
    return ordered


def _client(endpoint: EndpointRecord, resource: str) -> PluginClient:
    """Return the endpoint's client. Raises PluginCallError if it stopped (endpoint.go, errEndpointStopped)."""
    client = endpoint.client
    if endpoint.stopped_at is not None or not isinstance(client, PluginClient):
        raise PluginCallError(f"endpoint {resource} has been stopped")
    return client
