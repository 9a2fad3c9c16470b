"""The PodResources service of the simulated kubelet (``pkg/kubelet/apis/podresources/server_v1.go``)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from drabridge.sim.kubelet.device_accounting import NO_TOPOLOGY
from drabridge.sim.kubelet.device_manager import DeviceManager
from drabridge.sim.kubelet.dra_claims import dynamic_resources
from drabridge.sim.kubelet.dra_manager import DraManager
from drabridge.sim.kubelet.faults import ListFault
from drabridge.sim.kubelet.node import Node
from drabridge.sim.kubelet.pods import Container, PodRecord, PodSpec
from podresources.wire import v1_pb2 as pb


class TokenBucket:
    """Gets ``rate`` tokens per second and keeps ``burst`` at most. It starts full (``golang.org/x/time/rate``)."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._last = float(burst), 0.0

    def take(self, now: float) -> bool:
        """Whether a call at ``now`` seconds is allowed; a refused call costs nothing."""
        self._tokens = min(float(self._burst), self._tokens + (now - self._last) * self._rate)
        self._last = now
        allowed = self._tokens >= 1
        self._tokens -= allowed
        return allowed


Context = grpc.aio.ServicerContext[Any, Any]
HUGE_BYTES = 18_000_000


class PodResources:
    """Builds the answers, behind a rate limit and faults. ``pods``: every pod this kubelet process knows by now."""

    def __init__(
        self, node: Node, manager: DeviceManager, dra: DraManager, pods: Callable[[], Iterable[PodRecord]]
    ) -> None:
        self._manager = manager
        self._dra = dra
        self._pods = pods
        self._gates = node.gates
        self._share_ids = node.release.share_ids
        self._calls = node.calls
        self._faults = node.faults
        self._bucket = TokenBucket(node.timings.podresources_qps, node.timings.podresources_burst)

    def list(self) -> pb.ListPodResourcesResponse:
        """List active pods; without its gate, every known pod.

        As a side effect it frees what finished pods held.
        """
        self._manager.collect()
        pods = [pod for pod in self._pods() if pod.active or not self._gates["KubeletPodResourcesListUseActivePods"]]
        return pb.ListPodResourcesResponse(pod_resources=[self._pod(pod.spec) for pod in pods])

    def get(self, namespace: str, name: str) -> pb.GetPodResourcesResponse:
        """Get one pod.

        Raises LookupError with the real text for a pod that is missing, finished, or when Get is switched off.
        """
        if not self._gates["KubeletPodResourcesGet"]:
            raise LookupError("PodResources API Get method disabled")
        for pod in self._pods():
            if (pod.spec.namespace, pod.spec.name) == (namespace, name) and pod.active:
                return pb.GetPodResourcesResponse(pod_resources=self._pod(pod.spec))
        raise LookupError(f"pod {name} in namespace {namespace} not found")

    def allocatable(self) -> pb.AllocatableResourcesResponse:
        """GetAllocatableResources: healthy devices, held or not, one entry for each NUMA node.

        A device whose TopologyInfo is present and empty gets no entry at all (observed).
        """
        answer = pb.AllocatableResourcesResponse()
        for resource, device in self._manager.state.listed_healthy():
            for node in (NO_TOPOLOGY,) if device.numa is None else device.numa:
                answer.devices.append(_entry(resource, device.id, None if device.numa is None else node))
        return answer

    def _pod(self, pod: PodSpec) -> pb.PodResources:
        """Return a pod's containers in answers: sidecars are there, plain init containers are not."""
        shown = [c for c in pod.init_containers if c.is_sidecar] + list(pod.containers)
        return pb.PodResources(
            name=pod.name,
            namespace=pod.namespace,
            containers=[self._container(pod, container) for container in shown],
        )

    def _container(self, pod: PodSpec, container: Container) -> pb.ContainerResources:
        """One ContainerDevices for each device and NUMA node."""
        answer = pb.ContainerResources(name=container.name)
        held = self._manager.state.container_allocations(pod.uid, container.name)
        for resource, allocation in held.items():
            for node, ids in allocation.by_numa.items():
                answer.devices.extend(_entry(resource, id_, None if node == NO_TOPOLOGY else node) for id_ in ids)
        if self._gates["KubeletPodResourcesDynamicResources"]:
            claims = dynamic_resources(self._dra.cache, pod, container, share_ids=self._share_ids)
            answer.dynamic_resources.extend(claims)
        return answer

    # -- the service

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """Return the handlers. Answers are sent as bytes, so that a fault can send invalid messages."""
        table: dict[str, tuple[type[Message], Callable[[Any], Message]]] = {
            "List": (pb.ListPodResourcesRequest, lambda _: self.list()),
            "Get": (pb.GetPodResourcesRequest, lambda r: self.get(r.pod_namespace, r.pod_name)),
            "GetAllocatableResources": (pb.AllocatableResourcesRequest, lambda _: self.allocatable()),
        }
        methods = {name: self._method(name, *entry) for name, entry in table.items()}
        return (grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods),)

    def _method(
        self, name: str, request_type: type[Message], answer: Callable[[Any], Message]
    ) -> grpc.RpcMethodHandler[Any, bytes]:
        async def handle(request: Message, context: Context) -> bytes:
            await self._faults.running.wait()
            with self._calls.record("in", name, "podresources", request) as call:
                if not self._bucket.take(time.monotonic()):
                    call.error = "rejected by rate limit"
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, call.error)
                if self._faults.podresources is not ListFault.NONE:
                    return await self._fault(context)
                try:
                    response = answer(request)
                except LookupError as error:
                    call.error = str(error.args[0])
                    await context.abort(grpc.StatusCode.UNKNOWN, call.error)
                call.response = response
                return response.SerializeToString()

        method: Callable[[Message, Context], Awaitable[bytes]] = handle
        return grpc.unary_unary_rpc_method_handler(
            method,
            request_deserializer=request_type.FromString,
            response_serializer=bytes,
        )

    async def _fault(self, context: Context) -> bytes:
        match self._faults.podresources:
            case ListFault.ERROR:
                await context.abort(grpc.StatusCode.UNKNOWN, "injected failure")
            case ListFault.HANG:
                await asyncio.Event().wait()
            case ListFault.NONSENSE:
                pod = pb.PodResources(name="\n", containers=[pb.ContainerResources()] * 2)
                pod.containers[0].devices.add(resource_name="", device_ids=[""] * 3).topology.nodes.add(ID=-(2**63))
                return pb.ListPodResourcesResponse(pod_resources=[pod, pod]).SerializeToString()
            case ListFault.HUGE:
                pods = [pb.PodResources(name="p" * 1000, namespace=str(n)) for n in range(HUGE_BYTES // 1000)]
                return pb.ListPodResourcesResponse(pod_resources=pods).SerializeToString()
        return b"\xff\xff\xff\xff\x07nonsense"


def _entry(resource: str, id_: str, node: int | None) -> pb.ContainerDevices:
    entry = pb.ContainerDevices(resource_name=resource, device_ids=[id_])
    if node is not None:
        entry.topology.nodes.add(ID=node)
    return entry
