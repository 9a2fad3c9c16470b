"""The Registration service on ``kubelet.sock``.

Source: ``pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go``, ``handler.go``.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import grpc
import grpc.aio

from deviceplugin.wire import v1beta1_pb2 as pb
from deviceplugin.wire import v1beta1_pb2_grpc as rpc
from drabridge.sim.apiserver.validation import is_extended_resource_name
from drabridge.sim.kubelet.device_manager import DeviceManager
from drabridge.sim.kubelet.go_grpc import PluginCallError
from drabridge.sim.kubelet.node import Node
from drabridge.sim.kubelet.plugin_client import PluginClient

VERSION = "v1beta1"


class RefusedRegistrationError(Exception):
    """The text a plugin gets, with status UNKNOWN: the real handler returns plain errors."""


def check_request(request: pb.RegisterRequest) -> None:
    """Check a registration. Raises RefusedRegistrationError with the observed text."""
    if request.version != VERSION:
        raise RefusedRegistrationError(
            f'requested API version "{request.version}" is not supported by kubelet. Supported version is ["{VERSION}"]'
        )
    if not is_extended_resource_name(request.resource_name):
        raise RefusedRegistrationError(f'the ResourceName "{request.resource_name}" is invalid')


def endpoint_path(directory: Path, endpoint: str) -> Path:
    """Join as Go's ``filepath.Join(dir, endpoint)`` does.

    The result is cleaned: a sub-path or ``../x`` leaves the directory, an absolute one does not.
    """
    return Path(os.path.normpath(f"{directory}/{endpoint}"))


class Registration(rpc.RegistrationServicer):
    """Answer Register, and keep one client for each resource.

    The bug with duplicate registrations lives here.
    """

    def __init__(self, node: Node, manager: DeviceManager) -> None:
        self._node = node
        self._manager = manager
        self._clients: dict[str, PluginClient] = {}
        self._streams: dict[asyncio.Task[None], PluginClient] = {}

    async def Register(
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[pb.RegisterRequest, pb.Empty]
    ) -> pb.Empty:
        await self._node.faults.running.wait()
        with self._node.calls.record("in", "Register", request.resource_name, request) as call:
            try:
                if self._node.faults.refuse_register:
                    raise RefusedRegistrationError(self._node.faults.refuse_register)
                check_request(request)
                await self.connect(request.resource_name, endpoint_path(self._node.device_plugin_dir, request.endpoint))
                await self._node.faults.running.wait()
                call.response = pb.Empty()
                return call.response
            except (RefusedRegistrationError, PluginCallError) as error:
                call.error = str(error)
        await context.abort(grpc.StatusCode.UNKNOWN, call.error)
        raise AssertionError("abort raises")

    async def connect(self, resource: str, path: Path) -> None:
        """Dial back and ask for options before returning, ListAndWatch after (connectClient).

        Raises PluginCallError.
        Unless plugins may overlap, clients are kept by resource name: a second registration replaces the first while
        its stream goes on, and a failed second one forgets the first, whose end then goes unnoticed.
        """
        key = str(path) if self._node.release.plugins_overlap else resource
        client = PluginClient(resource, path, self._manager, self._node)
        self._clients[key] = client
        try:
            await client.connect()
        except BaseException:
            self._clients.pop(key, None)
            await client.close()
            raise
        task = asyncio.create_task(self._run(key, client), name=f"ListAndWatch {resource}")
        self._streams[task] = client
        task.add_done_callback(self._stream_ended)

    async def _run(self, key: str, client: PluginClient) -> None:
        """runClient: when the stream ends, disconnect the client that is kept now, which may be another one."""
        await client.run()
        current = self._clients.pop(key, None)
        if current is None:
            return
        await current.close()
        endpoint = self._manager.state.endpoints.get(client.resource)
        if self._node.release.plugins_overlap and endpoint is not None and endpoint.client is not client:
            return
        self._manager.plugin_disconnected(client.resource, current)

    def _stream_ended(self, task: asyncio.Task[None]) -> None:
        del self._streams[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error  # to the loop's exception handler: a fault of the simulation itself

    def streams(self, resource: str) -> int:
        """Return how many ListAndWatch streams of a resource are being read."""
        return sum(client.resource == resource for client in self._streams.values())

    async def drop_stream(self, resource: str) -> None:
        """Break the connections of this resource under their streams: a fault."""
        for client in [c for c in self._streams.values() if c.resource == resource]:
            await client.close()

    async def close(self) -> None:
        """End with the process: connections break, and no peer is told."""
        tasks = dict(self._streams)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in {*tasks.values(), *self._clients.values()}:
            await client.close()
        self._clients.clear()
