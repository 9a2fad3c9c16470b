"""The kubelet's client of one device plugin.

Source: ``pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go``, ``endpoint.go``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from deviceplugin.wire import v1beta1_pb2 as pb
from deviceplugin.wire import v1beta1_pb2_grpc as rpc
from drabridge.sim.kubelet.calls import Call, CallLog
from drabridge.sim.kubelet.faults import Faults
from drabridge.sim.kubelet.go_grpc import PluginCallError, dial, error_text
from drabridge.sim.kubelet.timings import Timings

R = TypeVar("R", bound=Message)


class ClientHandler(Protocol):
    """What the device manager is told about a plugin."""

    async def plugin_connected(self, resource: str, client: PluginClient) -> None: ...
    def plugin_disconnected(self, resource: str, client: PluginClient) -> None: ...
    def plugin_list(self, resource: str, response: pb.ListAndWatchResponse) -> None: ...


class PluginClient:
    """One connection to one plugin; connected once, never again."""

    def __init__(
        self, resource: str, path: Path, handler: ClientHandler, calls: CallLog, faults: Faults, timings: Timings
    ) -> None:
        self.resource = resource
        self.path = path
        self.stopped = False
        self._handler = handler
        self._calls = calls
        self._faults = faults
        self._timings = timings
        self._channel: grpc.aio.Channel | None = None
        self._stream: grpc.aio.UnaryStreamCall[pb.Empty, pb.ListAndWatchResponse] | None = None

    async def connect(self) -> None:
        """Dial, then ask for the options; both before Register answers. Raises PluginCallError."""
        if self._faults.hang_dial_back:
            await asyncio.Event().wait()
        try:
            self._channel = await dial(self.path, self._timings.dial_seconds)
        except PluginCallError as error:
            raise PluginCallError(f"failed to dial device plugin: {error}") from error
        await self._handler.plugin_connected(self.resource, self)

    async def run(self) -> None:
        """Read ListAndWatch until it ends, for whatever reason. The stream is never opened again."""
        request = pb.Empty()
        with self._calls.record("out", "ListAndWatch", self.resource, request) as call:
            try:
                stream = self._stream = self._stub().ListAndWatch(request)
                async for response in stream:
                    await self._faults.running.wait()
                    if self.stopped:  # a message that was read before the connection closed
                        break
                    self._calls.note(Call("in", "ListAndWatchResponse", self.resource, response))
                    self._handler.plugin_list(self.resource, response)
                    await self._pause()
                    await self._faults.running.wait()
                call.error = "EOF"
            except grpc.aio.AioRpcError as error:
                call.error = error_text(error)
            except PluginCallError as error:
                call.error = str(error)
            except asyncio.CancelledError:
                if _cancelled_from_outside():
                    raise
                call.error = "rpc error: code = Canceled desc = grpc: the client connection is closing"

    async def _pause(self) -> None:
        """Read slowly, for as long as the fault says now."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() < began + self._faults.list_delay_seconds:
            await asyncio.sleep(min(0.05, self._faults.list_delay_seconds))

    async def disconnect(self) -> None:
        """Close the connection and tell the manager."""
        await self.close()
        self._handler.plugin_disconnected(self.resource, self)

    async def close(self) -> None:
        """Close the connection; a stream that is being read ends."""
        self.stopped = True
        if self._stream is not None:  # up to grpcio 1.80 a stream outlives its channel's close
            self._stream.cancel()
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def options(self) -> pb.DevicePluginOptions:
        request = pb.Empty()
        return await self._call("GetDevicePluginOptions", request, self._stub().GetDevicePluginOptions(request))

    async def preferred(
        self, available: Iterable[str], must: Iterable[str], size: int
    ) -> pb.PreferredAllocationResponse:
        """No deadline, as in the real kubelet."""
        request = pb.PreferredAllocationRequest(
            container_requests=[
                pb.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
                )
            ]
        )
        return await self._call("GetPreferredAllocation", request, self._stub().GetPreferredAllocation(request))

    async def allocate(self, ids: Iterable[str]) -> pb.AllocateResponse:
        """No deadline, as in the real kubelet: a plugin that hangs stops every admission on the node."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        return await self._call("Allocate", request, self._stub().Allocate(request))

    async def pre_start(self, ids: Iterable[str]) -> None:
        request = pb.PreStartContainerRequest(devices_ids=ids)
        timeout = self._timings.pre_start_seconds
        await self._call(
            "PreStartContainer", request, self._stub().PreStartContainer(request, timeout=timeout), timeout
        )

    def _stub(self) -> rpc.DevicePluginAsyncStub:
        if self._channel is None:
            raise PluginCallError(f"endpoint {self.resource} has been stopped")
        return rpc.DevicePluginStub(self._channel)

    async def _call(self, method: str, request: Message, call: Awaitable[R], timeout: float | None = None) -> R:
        with self._calls.record("out", method, self.resource, request, deadline_seconds=timeout) as record:
            try:
                response = await call
            except grpc.aio.AioRpcError as error:
                raise PluginCallError(error_text(error)) from error
            except asyncio.CancelledError:
                if _cancelled_from_outside():
                    raise
                raise PluginCallError(
                    "rpc error: code = Canceled desc = grpc: the client connection is closing"
                ) from None
            await self._faults.running.wait()
            record.response = response
            return response


def _cancelled_from_outside() -> bool:
    """Whether somebody asked the task to end.

    grpc.aio raises CancelledError also when our own channel was closed; only a real request to cancel is passed on.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
