"""The kubelet's client of one device plugin.

Source: ``pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go``, ``endpoint.go``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from deviceplugin.wire import v1beta1_pb2 as pb
from deviceplugin.wire import v1beta1_pb2_grpc as rpc
from drabridge.sim.kubelet.calls import Call
from drabridge.sim.kubelet.go_grpc import CLOSING, PluginCallError, cancelled_from_outside, dial, error_text
from drabridge.sim.kubelet.node import Node

if TYPE_CHECKING:
    from drabridge.sim.kubelet.device_manager import DeviceManager


class PluginClient:
    """One connection to one plugin; connected once, never again."""

    def __init__(self, resource: str, path: Path, manager: DeviceManager, node: Node) -> None:
        self.resource = resource
        self.path = path
        self.stopped = False
        self._manager = manager
        self._node = node
        self._channel: grpc.aio.Channel | None = None
        self._stream: grpc.aio.UnaryStreamCall[pb.Empty, pb.ListAndWatchResponse] | None = None

    async def connect(self) -> None:
        """Dial, then ask for the options; both before Register answers. Raises PluginCallError."""
        if self._node.faults.hang_dial_back:
            await asyncio.Event().wait()
        try:
            self._channel = await dial(self.path, self._node.timings.dial_seconds)
        except PluginCallError as error:
            raise PluginCallError(f"failed to dial device plugin: {error}") from error
        await self._manager.plugin_connected(self.resource, self)

    async def run(self) -> None:
        """Read ListAndWatch until it ends, for whatever reason. The stream is never opened again."""
        request = pb.Empty()
        with self._node.calls.record("out", "ListAndWatch", self.resource, request) as call:
            try:
                stream = self._stream = self._stub().ListAndWatch(request)
                async for response in stream:
                    await self._node.faults.running.wait()
                    if self.stopped:  # a message that was read before the connection closed
                        break
                    self._node.calls.note(Call("in", "ListAndWatchResponse", self.resource, response))
                    self._manager.plugin_list(self.resource, response)
                    await self._pause()
                    await self._node.faults.running.wait()
                call.error = "EOF"
            except grpc.aio.AioRpcError as error:
                call.error = error_text(error)
            except PluginCallError as error:
                call.error = str(error)
            except asyncio.CancelledError:
                if cancelled_from_outside():
                    raise
                call.error = CLOSING

    async def _pause(self) -> None:
        """Pause after a message, for as long as the fault says at this moment."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() < began + self._node.faults.list_delay_seconds:
            await asyncio.sleep(min(0.05, self._node.faults.list_delay_seconds))

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
        call = self._stub().GetDevicePluginOptions(request)
        return await self._node.call("GetDevicePluginOptions", self.resource, request, call)

    async def preferred(
        self, available: Iterable[str], must: Iterable[str], size: int
    ) -> pb.PreferredAllocationResponse:
        """Call GetPreferredAllocation, without a deadline, as the real kubelet does."""
        asked = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        request = pb.PreferredAllocationRequest(container_requests=[asked])
        call = self._stub().GetPreferredAllocation(request)
        return await self._node.call("GetPreferredAllocation", self.resource, request, call)

    async def allocate(self, ids: Iterable[str]) -> pb.AllocateResponse:
        """Call Allocate, without a deadline, as the real kubelet does: a plugin that hangs blocks all admissions."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        return await self._node.call("Allocate", self.resource, request, self._stub().Allocate(request))

    async def pre_start(self, ids: Iterable[str]) -> None:
        request = pb.PreStartContainerRequest(devices_ids=ids)
        call = self._stub().PreStartContainer(request, timeout=self._node.timings.pre_start_seconds)
        await self._node.call("PreStartContainer", self.resource, request, call)

    def _stub(self) -> rpc.DevicePluginAsyncStub:
        if self._channel is None:
            raise PluginCallError(f"endpoint {self.resource} has been stopped")
        return rpc.DevicePluginStub(self._channel)
