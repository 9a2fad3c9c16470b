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
    """``status.capacity`` and ``status.allocatable``, extended resources only: replaced as a whole, never changed.

    They live in the API server: a key that was ever there stays, with 0 once its plugin is gone for good
    (``pkg/kubelet/nodestatus/setters.go``, MachineInfo).
    """

    capacity: dict[str, int]
    allocatable: dict[str, int]


def nothing(names: Iterable[str] = ()) -> NodeStatus:
    """Return a status with 0 of each resource."""
    zero = dict.fromkeys(names, 0)
    return NodeStatus(capacity=zero, allocatable=zero)


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
    live: NodeStatus = field(default_factory=nothing)
    published: NodeStatus = field(default_factory=nothing)

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
