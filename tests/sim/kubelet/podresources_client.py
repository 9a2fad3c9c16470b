"""The PodResources socket as a client of kubelet's sees it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from drabridge.sim.kubelet.go_grpc import unix_channel  # sets grpc's environment before grpc is imported
from podresources.wire import v1_pb2 as podresources_pb
from podresources.wire import v1_pb2_grpc as podresources_rpc
from tests.support.waiting import HANG_SECONDS


class PodResourcesClient:
    """Plain calls to the PodResources socket, a fresh connection each."""

    def __init__(self, root: Path) -> None:
        self._path = root / "pod-resources" / "kubelet.sock"

    async def call(self, method: str, request: Any, **options: Any) -> Any:
        async with unix_channel(self._path) as channel:
            return await getattr(podresources_rpc.PodResourcesListerStub(channel), method)(
                request, timeout=HANG_SECONDS
            )

    async def list(self) -> podresources_pb.ListPodResourcesResponse:
        return await self.call("List", podresources_pb.ListPodResourcesRequest())  # type: ignore[no-any-return]

    async def allocatable(self) -> podresources_pb.AllocatableResourcesResponse:
        return await self.call("GetAllocatableResources", podresources_pb.AllocatableResourcesRequest())  # type: ignore[no-any-return]

    async def get(self, namespace: str, name: str) -> podresources_pb.GetPodResourcesResponse:
        request = podresources_pb.GetPodResourcesRequest(pod_namespace=namespace, pod_name=name)
        return await self.call("Get", request)  # type: ignore[no-any-return]


def shape(devices: Iterable[podresources_pb.ContainerDevices]) -> list[tuple[str, str, int | None]]:
    """(resource, id, NUMA node or None), sorted: what a ContainerDevices list says whatever its order."""
    rows = []
    for entry in devices:
        (id_,) = entry.device_ids
        nodes = [node.ID for node in entry.topology.nodes] if entry.HasField("topology") else [None]
        rows += [(entry.resource_name, id_, node) for node in nodes]
    return sorted(rows, key=str)
