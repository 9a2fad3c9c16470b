"""The simulated node: everything that outlives the kubelet's process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypedDict, TypeVar

import grpc.aio
from google.protobuf.message import Message

from drabridge.sim.kubelet.calls import CallLog
from drabridge.sim.kubelet.faults import Faults
from drabridge.sim.kubelet.go_grpc import CLOSING, PluginCallError, cancelled_from_outside, error_text
from drabridge.sim.kubelet.pods import Event, PodRecord
from drabridge.sim.kubelet.runtime import Runtime
from drabridge.sim.kubelet.timings import Timings
from drabridge.sim.releases import Release

R = TypeVar("R", bound=Message)


class ClusterApi(Protocol):
    """What the simulated kubelet asks of an API server.

    Both requests raise drabridge.errors.ClusterError when the server cannot be asked or refuses.
    """

    async def get_claim(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Return a ResourceClaim of ``resource.k8s.io/v1`` as its JSON object, or None if there is none."""

    async def delete_slices(self, node_name: str, driver: str | None) -> None:
        """DeleteCollection of ResourceSlices by ``spec.nodeName``, and by ``spec.driver`` unless it is None."""


class NodeStatus(TypedDict):
    """``status.capacity`` and ``status.allocatable``, extended resources only."""

    capacity: dict[str, int]
    allocatable: dict[str, int]


@dataclass(slots=True)
class NodeResources:
    """The extended resources of a Node's status (``pkg/kubelet/nodestatus/setters.go``, MachineInfo).

    They live in the API server: a key that was ever there stays, with 0 once its plugin is gone for good.
    """

    capacity: dict[str, int] = field(default_factory=dict)
    allocatable: dict[str, int] = field(default_factory=dict)

    def apply(self, capacity: Mapping[str, int], allocatable: Mapping[str, int], removed: Iterable[str]) -> None:
        """Fold in an answer of the device manager; allocatable starts as a copy of capacity."""
        self.capacity |= capacity
        self.capacity |= dict.fromkeys(removed, 0)
        self.allocatable = self.capacity | dict(allocatable)

    def zero(self) -> None:
        """Set everything to 0.

        A kubelet with an empty device-plugin directory takes the node for a new one (kubelet_node_status.go).
        """
        self.capacity = dict.fromkeys(self.capacity, 0)
        self.allocatable = dict(self.capacity)

    def status(self) -> NodeStatus:
        return NodeStatus(capacity=dict(self.capacity), allocatable=dict(self.allocatable))


@dataclass(slots=True)
class Node:
    """Directories, pods, runtime, events and the Node object, shared by successive kubelet processes.

    ``root`` is the kubelet's ``--root-dir``; ``device_plugin_dir`` does not follow it in a real kubelet
    (pkg/kubelet/cm/devicemanager/manager.go, NewManagerImpl), so it has its own setting.
    """

    name: str
    root: Path
    device_plugin_dir: Path
    timings: Timings
    release: Release
    gates: Mapping[str, bool]
    rng: random.Random
    runtime: Runtime
    calls: CallLog
    topology_policy: str = "none"
    numa_nodes: tuple[int, ...] = (0,)
    faults: Faults = field(default_factory=Faults)
    events: list[Event] = field(default_factory=list)
    pods: dict[str, PodRecord] = field(default_factory=dict)
    orphans: list[PodRecord] = field(default_factory=list)  # force-deleted, and their containers may still run
    live: NodeResources = field(default_factory=NodeResources)
    published: NodeResources = field(default_factory=NodeResources)

    @property
    def kubelet_socket(self) -> Path:
        return self.device_plugin_dir / "kubelet.sock"

    @property
    def podresources_socket(self) -> Path:
        return self.root / "pod-resources" / "kubelet.sock"

    @property
    def plugins_registry(self) -> Path:
        return self.root / "plugins_registry"

    async def call(self, method: str, peer: str, request: Message, call: Awaitable[R]) -> R:
        """Await the answer of a plugin. Raises PluginCallError with the text that Go's error has."""
        with self.calls.record("out", method, peer, request) as record:
            try:
                response = await call
            except grpc.aio.AioRpcError as error:
                raise PluginCallError(error_text(error)) from error
            except asyncio.CancelledError:
                if cancelled_from_outside():
                    raise
                raise PluginCallError(CLOSING) from None
            await self.faults.running.wait()
            record.response = response
            return response

    def event(self, record: PodRecord, reason: str, message: str) -> None:
        self.events.append(Event(reason, message, record.spec.name))

    def running_containers(self, *, orphans: bool = False) -> Iterator[tuple[str, str]]:
        """(pod uid, container); with ``orphans`` also what runs of pods that are gone."""
        for record in (*self.pods.values(), *(self.orphans if orphans else ())):
            for container in record.running:
                yield record.spec.uid, container
