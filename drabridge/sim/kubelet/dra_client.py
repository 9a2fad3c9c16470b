"""The kubelet's connection to one DRA driver (``pkg/kubelet/cm/dra/plugin/dra_plugin.go``)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from drabridge.sim.kubelet.calls import Call
from drabridge.sim.kubelet.device_health import HealthBook
from drabridge.sim.kubelet.dra_claims import ClaimInfo, PreparedDevice
from drabridge.sim.kubelet.go_grpc import error_text, unix_channel
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


@dataclass(frozen=True, slots=True)
class Prepared:
    """A claim's part of an answer: devices, or an error."""

    devices: tuple[PreparedDevice, ...] = ()
    error: str = ""


class DraClient:
    """One persistent connection for the DRA service and the health stream.

    It connects when somebody listens.
    """

    def __init__(self, node: Node, driver: str, endpoint: Path, service: str) -> None:
        self.driver = driver
        self.endpoint = endpoint
        self.connected = False
        self._node = node
        self._service = service
        self._channel = unix_channel(endpoint)

    async def prepare(self, claims: Sequence[ClaimInfo]) -> dict[str, Prepared]:
        """NodePrepareResources for all claims at once; answers by claim uid. Raises PluginCallError."""
        messages, stubs = _SERVICES[self._service]
        request = messages.NodePrepareResourcesRequest(claims=[self._claim(messages, claim) for claim in claims])
        answer = await self._call(
            "NodePrepareResources", request, stubs.DRAPluginStub(self._channel).NodePrepareResources
        )
        return {
            uid: Prepared(tuple(_device(d) for d in part.devices), part.error) for uid, part in answer.claims.items()
        }

    async def unprepare(self, claims: Sequence[ClaimInfo]) -> dict[str, str]:
        """NodeUnprepareResources; error texts (empty: done) by claim uid. Raises PluginCallError."""
        messages, stubs = _SERVICES[self._service]
        request = messages.NodeUnprepareResourcesRequest(claims=[self._claim(messages, claim) for claim in claims])
        stub = stubs.DRAPluginStub(self._channel)
        answer = await self._call("NodeUnprepareResources", request, stub.NodeUnprepareResources)
        return {uid: part.error for uid, part in answer.claims.items()}

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
        """Read NodeWatchResources of a health service for ever.

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
                        reports = [
                            (
                                d.device.pool_name,
                                d.device.device_name,
                                d.health,
                                d.health_check_timeout_seconds,
                                d.message,
                            )
                            for d in response.devices
                        ]
                        book.report(self.driver, reports, time.monotonic(), timings.health_default_timeout_seconds)
                    call.error = "EOF"
                except grpc.aio.AioRpcError as error:
                    call.error = error_text(error)
                finally:
                    book.clear(self.driver)
            await asyncio.sleep(timings.health_retry_seconds)

    async def close(self) -> None:
        self.connected = False
        await self._channel.close()

    @staticmethod
    def _claim(messages: Any, claim: ClaimInfo) -> Any:
        return messages.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name)

    async def _call(self, name: str, request: Any, method: Any) -> Any:
        answer = method(request, timeout=self._node.timings.dra_call_seconds)
        return await self._node.call(name, self.driver, request, answer)


def _device(device: Any) -> PreparedDevice:
    share = device.share_id if "share_id" in device.DESCRIPTOR.fields_by_name and device.HasField("share_id") else None
    return PreparedDevice(
        device.pool_name, device.device_name, tuple(device.request_names), tuple(device.cdi_device_ids), share
    )
