"""The health stream, v1 and v1alpha1: the whole list at once, on every change, and as a heartbeat.

Kubelet overwrites a device's time stamp when a message arrives and reads "Unknown" when none came for
``health_check_timeout_seconds`` (pkg/kubelet/cm/dra/healthinfo.go), so silence is never an option. 1.36 opens the
stream for every plugin, whatever it says it supports, and retries every 5 s when there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc

from drabridge.offers.reported_health import ReportedHealth
from drabridge.wire import health_v1_pb2, health_v1_pb2_grpc, health_v1alpha1_pb2, health_v1alpha1_pb2_grpc

HEARTBEAT_SECONDS = 10.0
TIMEOUT_SECONDS = 30  # kubelet's own default: three heartbeats


class HealthBoard:
    """The current list and everybody who watches it."""

    def __init__(self, pool: str, *, heartbeat_seconds: float = HEARTBEAT_SECONDS) -> None:
        self._pool = pool
        self._heartbeat_seconds = heartbeat_seconds
        self._devices: tuple[tuple[ReportedHealth, int], ...] = ()
        self._changed = asyncio.Event()
        self._closed = False

    def update(self, devices: tuple[ReportedHealth, ...]) -> None:
        """Tell every stream, if anything is different from before."""
        before = dict(self._devices)
        if tuple(before) == devices and self._devices:
            return
        now = int(time.time())
        self._devices = tuple((health, before.get(health, now)) for health in devices)
        self._wake()

    def repeat(self) -> None:
        """Tell every stream again: kubelet forgets the driver's health whenever one of its streams ends
        (pkg/kubelet/cm/dra/manager.go, HandleWatchResourcesStream).
        """
        self._wake()

    def close(self) -> None:
        """End the streams: a server that stops would wait for them until its grace is over."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(self, wire: Any) -> AsyncGenerator[Any, None]:
        """Messages of ``wire``, which is one of the two generated modules."""
        while not self._closed:
            changed = self._changed
            yield self._message(wire)
            # Not asyncio.wait_for: before Python 3.12 it loses a cancellation that comes with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._heartbeat_seconds):
                    await changed.wait()

    def _message(self, wire: Any) -> Any:
        return wire.NodeWatchResourcesResponse(
            devices=[
                wire.DeviceHealth(
                    device=wire.DeviceIdentifier(pool_name=self._pool, device_name=health.name),
                    health=wire.HEALTHY if health.healthy else wire.UNHEALTHY,
                    last_updated_time=since,
                    health_check_timeout_seconds=TIMEOUT_SECONDS,
                    message=health.message,
                )
                for health, since in self._devices
            ]
        )


class HealthV1(health_v1_pb2_grpc.DRAResourceHealthServicer):
    """``v1.DRAResourceHealth``, kubelet 1.37 and later."""

    def __init__(self, board: HealthBoard) -> None:
        self._board = board

    async def NodeWatchResources(
        self, request: health_v1_pb2.NodeWatchResourcesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[health_v1_pb2.NodeWatchResourcesResponse]:
        async with contextlib.aclosing(self._board.watch(health_v1_pb2)) as messages:
            async for message in messages:
                yield message


class HealthV1Alpha1(health_v1alpha1_pb2_grpc.DRAResourceHealthServicer):
    """``v1alpha1.DRAResourceHealth``, kubelet 1.34 to 1.39."""

    def __init__(self, board: HealthBoard) -> None:
        self._board = board

    async def NodeWatchResources(
        self, request: health_v1alpha1_pb2.NodeWatchResourcesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[health_v1alpha1_pb2.NodeWatchResourcesResponse]:
        async with contextlib.aclosing(self._board.watch(health_v1alpha1_pb2)) as messages:
            async for message in messages:
                yield message
