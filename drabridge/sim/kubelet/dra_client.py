"""The kubelet's connection to one DRA driver (``pkg/kubelet/cm/dra/plugin/dra_plugin.go``)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from drabridge.sim.kubelet.calls import Call
from drabridge.sim.kubelet.device_health import HealthBook
from drabridge.sim.kubelet.dra_claims import ClaimInfo
from drabridge.sim.kubelet.go_grpc import PluginCallError, error_text, unix_channel
from drabridge.sim.kubelet.node import Node
from drabridge.wire import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    health_v1_pb2,
    health_v1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
)

V1 = "v1.DRAPlugin"
V1BETA1 = "v1beta1.DRAPlugin"
HEALTH_V1 = "v1.DRAResourceHealth"
HEALTH_V1ALPHA1 = "v1alpha1.DRAResourceHealth"

# service name -> (messages, stubs); the two versions differ by share_id alone
_SERVICES: dict[str, tuple[Any, Any]] = {
    V1: (dra_v1_pb2, dra_v1_pb2_grpc),
    V1BETA1: (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc),
}
_HEALTH: dict[str, tuple[Any, Any]] = {
    HEALTH_V1: (health_v1_pb2, health_v1_pb2_grpc),
    HEALTH_V1ALPHA1: (health_v1alpha1_pb2, health_v1alpha1_pb2_grpc),
}


class DraClient:
    """One persistent connection for the DRA service and the health stream.

    It connects as soon as the driver listens.
    """

    def __init__(self, node: Node, driver: str, endpoint: Path, service: str) -> None:
        self.driver = driver
        self.endpoint = endpoint
        self.connected = False
        self._node = node
        self._service = service
        self._channel = unix_channel(endpoint)

    async def call(self, name: str, claims: Sequence[ClaimInfo]) -> Mapping[str, Any]:
        """NodePrepareResources or NodeUnprepareResources for all claims at once; answers by claim uid.

        Raises PluginCallError.
        """
        messages, stubs = _SERVICES[self._service]
        named = [messages.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name) for claim in claims]
        request = getattr(messages, f"{name}Request")(claims=named)
        method = getattr(stubs.DRAPluginStub(self._channel), name)
        answer = method(request, timeout=self._node.timings.dra_call_seconds)
        try:
            answers: Mapping[str, Any] = (await self._node.call(name, self.driver, request, answer)).claims
        except PluginCallError as error:
            raise PluginCallError(f"{name}: {error}") from error
        return answers

    async def monitor(self, changed: asyncio.Event) -> None:
        """Follow the connection; ``changed`` is set whenever it begins or ends."""
        while True:
            state = self._channel.get_state(try_to_connect=True)
            connected = state is grpc.ChannelConnectivity.READY
            if connected != self.connected:
                self.connected = connected
                changed.set()
            await self._channel.wait_for_state_change(state)

    async def watch_health(self, service: str, book: HealthBook) -> None:
        """Read NodeWatchResources of a health service forever.

        It is opened again after each end, also where the driver does not implement it.
        """
        timings = self._node.timings
        messages, stubs = _HEALTH[service]
        while True:
            request = messages.NodeWatchResourcesRequest()
            with self._node.calls.record("out", "NodeWatchResources", self.driver, request) as call:
                try:
                    async for response in stubs.DRAResourceHealthStub(self._channel).NodeWatchResources(request):
                        await self._node.faults.running.wait()
                        self._node.calls.note(Call("in", "NodeWatchResourcesResponse", self.driver, response))
                        now, default = time.monotonic(), timings.health_default_timeout_seconds
                        book.report(self.driver, response.devices, now, default)
                    call.error = "EOF"
                except grpc.aio.AioRpcError as error:
                    call.error = error_text(error)
                finally:
                    book.clear(self.driver)
            await asyncio.sleep(timings.health_retry_seconds)

    async def close(self) -> None:
        self.connected = False
        await self._channel.close()
