"""The kubelet's peers for its tests: a small device plugin, a small DRA driver, and clients, all over real sockets."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from drabridge.sim.kubelet.go_grpc import unix_channel  # sets grpc's environment before grpc is imported

import grpc  # isort: skip
import grpc.aio  # isort: skip

from deviceplugin.wire import v1beta1_pb2 as pb
from deviceplugin.wire import v1beta1_pb2_grpc as rpc
from drabridge.errors import ClusterError
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.timings import Timings
from drabridge.wire import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)
from tests.support.waiting import HANG_SECONDS

GPU = "y.example.com/gpu"


def device(id_: str, health: str = "Healthy", numa: Iterable[int] | None = None) -> pb.Device:
    """``numa=()`` sends a TopologyInfo that is present and empty."""
    message = pb.Device(ID=id_, health=health)
    if numa is not None:
        message.topology.SetInParent()
        message.topology.nodes.extend(pb.NUMANode(ID=node) for node in numa)
    return message


class Plugin(rpc.DevicePluginServicer):
    """One resource, one socket. Attributes decide the answers; ``calls`` holds (method, ids)."""

    def __init__(self, root: Path, name: str, devices: Iterable[pb.Device], resource: str = GPU) -> None:
        self.path = root / "device-plugins" / name
        self.kubelet_socket = root / "device-plugins" / "kubelet.sock"
        self.resource = resource
        self.calls: list[tuple[str, list[str]]] = []
        self.options: pb.DevicePluginOptions | None = pb.DevicePluginOptions(get_preferred_allocation_available=True)
        self.preferred: list[str] = []
        self.preferred_error = ""
        self.preferred_gate = asyncio.Event()
        self.preferred_gate.set()
        self.preferred_requests: list[pb.ContainerPreferredAllocationRequest] = []
        self.response: pb.AllocateResponse | None = None
        self.refuse: tuple[grpc.StatusCode, str] | None = None
        self.allocate_gate = asyncio.Event()
        self.allocate_gate.set()
        self.pre_start_error = ""
        self.streams = 0
        self._devices = list(devices)
        self._changed = asyncio.Condition()
        self._end_streams = False
        self._version = 0
        self._server: grpc.aio.Server | None = None

    async def serve(self) -> None:
        self._end_streams = False
        self._server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.path}")
        await self._server.start()

    async def register(self, *, version: str = "v1beta1", endpoint: str = "", resource_name: str = "") -> None:
        request = pb.RegisterRequest(
            version=version, endpoint=endpoint or self.path.name, resource_name=resource_name or self.resource
        )
        async with unix_channel(self.kubelet_socket) as channel:
            await rpc.RegistrationStub(channel).Register(request, timeout=HANG_SECONDS)

    async def send(self, devices: Iterable[pb.Device]) -> None:
        async with self._changed:
            self._devices = list(devices)
            self._version += 1
            self._changed.notify_all()

    async def end_streams(self) -> None:
        async with self._changed:
            self._end_streams = True
            self._changed.notify_all()

    async def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await self.end_streams()
            await server.stop(0.2)

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:
        self.calls.append(("GetDevicePluginOptions", []))
        if self.options is None:
            await context.abort(grpc.StatusCode.INTERNAL, "options are broken")
            raise AssertionError
        return self.options

    async def ListAndWatch(self, request: pb.Empty, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:
        self.calls.append(("ListAndWatch", []))
        self.streams += 1
        try:
            sent = -1
            while not self._end_streams:
                if sent != self._version:
                    sent = self._version
                    yield pb.ListAndWatchResponse(devices=self._devices)
                    continue
                async with self._changed:
                    if sent == self._version and not self._end_streams:
                        await self._changed.wait()
        finally:
            self.streams -= 1

    async def GetPreferredAllocation(self, request: pb.PreferredAllocationRequest, context: Any) -> Any:
        (wanted,) = request.container_requests
        self.calls.append(("GetPreferredAllocation", sorted(wanted.available_deviceIDs)))
        self.preferred_requests.append(wanted)
        await self.preferred_gate.wait()
        if self.preferred_error:
            await context.abort(grpc.StatusCode.INTERNAL, self.preferred_error)
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=self.preferred)]
        )

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:
        (wanted,) = request.container_requests
        self.calls.append(("Allocate", sorted(wanted.devices_ids)))
        await self.allocate_gate.wait()
        if self.refuse is not None:
            await context.abort(*self.refuse)
        if self.response is not None:
            return self.response
        ids = sorted(wanted.devices_ids)
        return pb.AllocateResponse(
            container_responses=[
                pb.ContainerAllocateResponse(
                    envs={"IDS": ",".join(ids)}, cdi_devices=[pb.CDIDevice(name=f"y.example.com/gpu={i}") for i in ids]
                )
            ]
        )

    async def PreStartContainer(self, request: pb.PreStartContainerRequest, context: Any) -> Any:
        self.calls.append(("PreStartContainer", sorted(request.devices_ids)))
        if self.pre_start_error:
            await context.abort(grpc.StatusCode.INTERNAL, self.pre_start_error)
        return pb.PreStartContainerResponse()


class Driver:
    """A DRA driver on two sockets; answers are decided by attributes, calls are kept as (method, claim names)."""

    def __init__(self, root: Path, name: str = "obs.example.com") -> None:
        self.name = name
        self.service_socket = root / "plugins" / name / "dra.sock"
        self.registration_socket = root / "plugins_registry" / f"{name}-reg.sock"
        self.endpoint: Path | None = None  # as kubelet calls it, if that is not service_socket
        self.versions = ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        self.calls: list[tuple[str, list[str]]] = []
        self.statuses: list[pluginregistration_pb2.RegistrationStatus] = []
        self.remaining: list[float] = []
        self.devices: Mapping[str, list[dra_v1_pb2.Device]] = {}  # claim name -> devices
        self.error = ""
        self.unprepare_error = ""
        self.info_error = ""
        self.health = asyncio.Queue[health_v1alpha1_pb2.NodeWatchResourcesResponse]()
        self.health_streams = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self._servers: list[grpc.aio.Server] = []

    async def serve(self, *, register: bool = True) -> None:
        self.service_socket.parent.mkdir(parents=True, exist_ok=True)
        self.registration_socket.parent.mkdir(parents=True, exist_ok=True)
        service = grpc.aio.server()
        dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(_V1(self), service)
        dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(_V1Beta1(self), service)
        health_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(_Health(self), service)
        service.add_insecure_port(f"unix:{self.service_socket}")
        await service.start()
        self._servers.append(service)
        if register:
            await self.serve_registration()

    async def serve_registration(self) -> None:
        server = grpc.aio.server()
        pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(_Registration(self), server)
        server.add_insecure_port(f"unix:{self.registration_socket}")
        await server.start()
        self._servers.append(server)

    async def stop(self) -> None:
        while self._servers:
            await self._servers.pop().stop(0)

    def answer(self, method: str, request: Any, context: Any) -> Any:
        self.calls.append((method, [claim.name for claim in request.claims]))
        self.remaining.append(context.time_remaining())
        return request.claims


class _V1(dra_v1_pb2_grpc.DRAPluginServicer):
    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:
        answer = dra_v1_pb2.NodePrepareResourcesResponse()
        asked = self._driver.answer("Prepare", request, context)
        await self._driver.gate.wait()
        for claim in asked:
            part = answer.claims[claim.uid]
            part.error = self._driver.error
            if not part.error:
                part.devices.extend(self._driver.devices.get(claim.name, ()))
        return answer

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        answer = dra_v1_pb2.NodeUnprepareResourcesResponse()
        for claim in self._driver.answer("Unprepare", request, context):
            answer.claims[claim.uid].error = self._driver.unprepare_error
        return answer


class _V1Beta1(dra_v1beta1_pb2_grpc.DRAPluginServicer):
    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:
        answer = dra_v1beta1_pb2.NodePrepareResourcesResponse()
        for claim in self._driver.answer("Prepare v1beta1", request, context):
            answer.claims[claim.uid].SetInParent()
        return answer

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        answer = dra_v1beta1_pb2.NodeUnprepareResourcesResponse()
        for claim in self._driver.answer("Unprepare v1beta1", request, context):
            answer.claims[claim.uid].SetInParent()
        return answer


class _Health(health_v1alpha1_pb2_grpc.DRAResourceHealthServicer):
    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def NodeWatchResources(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self._driver.health_streams += 1
        try:
            while True:
                yield await self._driver.health.get()
        finally:
            self._driver.health_streams -= 1


class _Registration(pluginregistration_pb2_grpc.RegistrationServicer):
    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def GetInfo(self, request: Any, context: Any) -> Any:
        self._driver.calls.append(("GetInfo", []))
        if self._driver.info_error:
            await context.abort(grpc.StatusCode.INTERNAL, self._driver.info_error)
        return pluginregistration_pb2.PluginInfo(
            type="DRAPlugin",
            name=self._driver.name,
            endpoint=str(self._driver.endpoint or self._driver.service_socket),
            supported_versions=self._driver.versions,
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:
        self._driver.statuses.append(request)
        return pluginregistration_pb2.RegistrationStatusResponse()


class FakeApi:
    """Claims in a dict; deletions of slices are remembered with the loop's time."""

    def __init__(self) -> None:
        self.claims: dict[tuple[str, str], dict[str, Any]] = {}
        self.deleted: list[tuple[str, str | None, float]] = []
        self.failures = 0

    def add_claim(self, name: str, uid: str, pods: Iterable[str], *drivers: str) -> None:
        self.claims["default", name] = {
            "metadata": {"namespace": "default", "name": name, "uid": uid},
            "status": {
                "allocation": {"devices": {"results": [{"driver": d, "device": "gpu-0"} for d in drivers]}},
                "reservedFor": [{"resource": "pods", "name": "p", "uid": uid} for uid in pods],
            },
        }

    async def get_claim(self, namespace: str, name: str) -> dict[str, Any] | None:
        return self.claims.get((namespace, name))

    async def delete_slices(self, node_name: str, driver: str | None) -> None:
        if self.failures:
            self.failures -= 1
            raise ClusterError("the API server is away")
        self.deleted.append((node_name, driver, asyncio.get_running_loop().time()))


@asynccontextmanager
async def short_dir() -> AsyncIterator[Path]:
    """A directory whose sockets stay below 108 bytes."""
    path = Path(tempfile.mkdtemp(prefix="dra", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@asynccontextmanager
async def running(root: Path, **options: Any) -> AsyncIterator[SimKubelet]:
    """A started kubelet with fast timings unless told otherwise."""
    kubelet = SimKubelet(root, **({"timings": Timings.fast()} | options))
    await kubelet.start()
    try:
        yield kubelet
    finally:
        kubelet.thaw()
        await kubelet.stop()


@asynccontextmanager
async def serving(*peers: Plugin | Driver) -> AsyncIterator[None]:
    """Serve the peers; stop them at the end."""
    try:
        for peer in peers:
            await peer.serve()
        yield
    finally:
        for peer in peers:
            await peer.stop()


async def back_in_time(plugin: Plugin, kubelet: SimKubelet, healthy: int = 4) -> None:
    """The plugin serves and registers again before the kubelet hears of its pods (``faults.pods_arrive``)."""
    await plugin.stop()
    await plugin.serve()
    await plugin.register()
    await kubelet.wait_for_resource(GPU, healthy=healthy)
    kubelet.faults.pods_arrive.set()


@asynccontextmanager
async def plugin(kubelet: SimKubelet, resource: str, ids: Sequence[str]) -> AsyncIterator[Plugin]:
    """Another plugin, registered; kubelet has its list."""
    other = Plugin(kubelet.node.device_plugin_dir.parent, "vendor.sock", [device(name) for name in ids], resource)
    await other.serve()
    try:
        await other.register()
        await kubelet.wait_for_resource(resource, healthy=len(ids))
        yield other
    finally:
        await other.stop()
