"""A small kubelet over real sockets: registration that dials back, one client per resource, wiped sockets at start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest
from msgspec.structs import replace

from deviceplugin import (
    Broadcast,
    ContainerAllocation,
    DeviceList,
    Fact,
    ListedDevice,
    PluginServer,
    Timeouts,
)
from deviceplugin.wire import v1beta1_pb2 as pb
from deviceplugin.wire import v1beta1_pb2_grpc as pb_grpc
from tests.support.waiting import HANG_SECONDS, PATIENCE, until

QUICK = Timeouts(
    register_seconds=3.0 * PATIENCE,
    stream_seconds=0.3 * PATIENCE,
    settle_seconds=0.1,
    backoff_first_seconds=0.2,
    backoff_max_seconds=0.4,
    stable_seconds=5.0,
    poll_seconds=30.0,  # what inotify does not tell is not noticed: no test passes thanks to the poll
    allocate_seconds=0.3 * PATIENCE,
    pre_start_seconds=0.3 * PATIENCE,
    end_streams_seconds=0.2,
)
"""The library's pauses, shorter; what ends a call that hangs leaves a machine that stands still the time it needs."""

IMPATIENT = replace(QUICK, stream_seconds=0.3, allocate_seconds=0.3)
"""For tests that wait for the end of what hangs."""

RESOURCE = "example.com/radio"

F = TypeVar("F", bound=Fact)


class Facts:
    """An observer that keeps what it saw."""

    def __init__(self) -> None:
        self.seen: list[Fact] = []

    def observe(self, fact: Fact) -> None:
        self.seen.append(fact)

    def of(self, kind: type[F]) -> list[F]:
        """The facts of one kind, in order."""
        return [fact for fact in self.seen if isinstance(fact, kind)]


class ListPlugin:
    """The least plugin: a list. Subclasses add the optional interfaces."""

    def __init__(self, *devices: ListedDevice, resource: str = RESOURCE) -> None:
        self.resource = resource
        self.list: DeviceList = Broadcast()
        self.list.publish(devices)

    def devices(self) -> DeviceList:
        return self.list


class AllocatingPlugin(ListPlugin):
    """Answers Allocate with an environment variable that names the ids; ``before`` may wait or raise."""

    def __init__(self, *devices: ListedDevice, resource: str = RESOURCE) -> None:
        super().__init__(*devices, resource=resource)
        self.allocated: list[tuple[str, ...]] = []
        self.before: Callable[[Sequence[str]], Any] | None = None

    async def allocate(self, ids: Sequence[str]) -> ContainerAllocation:
        if self.before is not None:
            await self.before(ids)
        self.allocated.append(tuple(ids))
        return ContainerAllocation(envs={"IDS": ",".join(ids)})


class Client:
    """Kubelet's side of one registration: the connection and the list it read last."""

    def __init__(self, channel: grpc.aio.Channel, options: pb.DevicePluginOptions, endpoint: str) -> None:
        self.channel = channel
        self.stub: pb_grpc.DevicePluginAsyncStub = pb_grpc.DevicePluginStub(channel)
        self.options = options
        self.endpoint = endpoint
        self.lists: list[pb.ListAndWatchResponse] = []
        self.reader: asyncio.Task[None] | None = None

    @property
    def health(self) -> dict[str, str]:
        return {device.ID: device.health for device in self.lists[-1].devices} if self.lists else {}


class MiniKubelet(pb_grpc.RegistrationServicer):
    """Kubelet 1.36's device manager as a plugin sees it, its one-client-per-resource defect included.

    ``refuse`` makes Register fail with that text; ``lose`` is how many streams to drop after their first list;
    ``ignore`` accepts Register but never opens a stream.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "kubelet.sock"
        self.registered_at: list[float] = []
        self.requests: list[pb.RegisterRequest] = []
        self.errors: list[str] = []
        self.clients: dict[str, Client] = {}
        self.most_streams = 0
        self.refuse = ""
        self.lose = 0
        self.ignore = False
        self._server: grpc.aio.Server | None = None
        self._streams: set[asyncio.Task[None]] = set()

    async def start(self, *, wipe: bool = True) -> None:
        """Like kubelet: remove every visible socket of the directory, then bind kubelet.sock."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in self.directory.iterdir():
            if wipe and not path.name.startswith(".") and stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        self._server = grpc.aio.server()
        pb_grpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def stop(self) -> None:
        """Like a killed kubelet: every connection ends at once."""
        for task in tuple(self._streams):
            task.cancel()
        for client in self.clients.values():
            await client.channel.close()
        self.clients.clear()
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(None)
        await asyncio.gather(*self._streams, return_exceptions=True)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:
        self.registered_at.append(time.monotonic())
        self.requests.append(request)
        if self.refuse or "/" not in request.resource_name:
            await self._fail(context, self.refuse or f'the ResourceName "{request.resource_name}" is invalid')
        if request.version != "v1beta1":
            await self._fail(context, f"requested API version {request.version!r} is not supported by kubelet")
        channel = grpc.aio.insecure_channel(
            f"unix:{self.directory / request.endpoint}", options=[("grpc.use_local_subchannel_pool", 1)]
        )
        stub: pb_grpc.DevicePluginAsyncStub = pb_grpc.DevicePluginStub(channel)
        try:
            await asyncio.wait_for(channel.channel_ready(), HANG_SECONDS)
            options = await stub.GetDevicePluginOptions(pb.Empty())
        except (TimeoutError, grpc.aio.AioRpcError) as error:
            await channel.close()
            await self._fail(context, f"failed to get device plugin options: {error}")
        client = Client(channel, options, request.endpoint)
        self.clients[request.resource_name] = client
        if not self.ignore:
            task = asyncio.create_task(self._read(request.resource_name, client))
            client.reader = task
            self._streams.add(task)
            task.add_done_callback(self._streams.discard)
            self.most_streams = max(self.most_streams, len(self._streams))
        return pb.Empty()

    async def _fail(self, context: Any, text: str) -> None:
        self.errors.append(text)
        await context.abort(grpc.StatusCode.UNKNOWN, text)

    async def _read(self, resource: str, client: Client) -> None:
        stream = client.stub.ListAndWatch(pb.Empty())
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for message in stream:
                client.lists.append(message)
                if self.lose:
                    self.lose -= 1
                    break
        stream.cancel()  # closing the channel is not enough for grpcio 1.80
        current = self.clients.pop(resource, None)  # by name: it may be another, newer one
        await client.channel.close()
        if current is not None and current is not client:
            await current.channel.close()

    def client(self, resource: str = RESOURCE) -> Client:
        return self.clients[resource]

    def health(self, resource: str = RESOURCE) -> dict[str, str]:
        """What kubelet believes; empty without a live stream."""
        client = self.clients.get(resource)
        return client.health if client else {}

    async def allocate(self, *containers: Sequence[str], resource: str = RESOURCE) -> pb.AllocateResponse:
        request = pb.AllocateRequest(
            container_requests=[pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        )
        return await self.client(resource).stub.Allocate(request)


@asynccontextmanager
async def running(server: PluginServer) -> AsyncIterator[asyncio.Task[None]]:
    """The server runs inside, and has ended without an error afterwards."""
    task = asyncio.create_task(server.run())
    try:
        yield task
    finally:
        await asyncio.wait_for(server.stop(), HANG_SECONDS)
        await asyncio.wait_for(task, HANG_SECONDS)


def sockets_in(directory: Path) -> list[str]:
    """The names of the sockets in ``directory`` without kubelet's."""
    return sorted(e.name for e in os.scandir(directory) if stat.S_ISSOCK(e.stat().st_mode) and e.name != "kubelet.sock")


class Served:
    """A plugin, its server and kubelet, registered with each other."""

    def __init__(self, plugin: ListPlugin, server: PluginServer, kubelet: MiniKubelet, facts: Facts) -> None:
        self.plugin = plugin
        self.server = server
        self.kubelet = kubelet
        self.facts = facts

    @property
    def stub(self) -> pb_grpc.DevicePluginAsyncStub:
        return self.kubelet.client().stub

    async def believes(self, health: dict[str, str]) -> None:
        await until(lambda: self.kubelet.health() == health)

    async def refused(self, *ids: str) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.kubelet.allocate(ids)
        return caught.value


DEVICES = (ListedDevice("a"), ListedDevice("b"))


BOTH = {"a": "Healthy", "b": "Healthy"}


def make(directory: Path, facts: Facts | None = None, timeouts: Timeouts = QUICK) -> PluginServer:
    return PluginServer(ListPlugin(*DEVICES), directory=directory, name="t", timeouts=timeouts, observer=facts)
