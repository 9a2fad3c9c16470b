"""Stream the health of all devices to kubelet: at once, after every change, and as a heartbeat.

Kubelet overwrites a device's time stamp when a message arrives, and shows the health as "Unknown" when none comes for
``health_check_timeout_seconds`` (pkg/kubelet/cm/dra/healthinfo.go): so the stream is never silent for long. Kubelet
1.36 opens it for every plugin, whatever the plugin says it supports, and tries again every 5 s when there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from types import ModuleType
from typing import Any

import grpc

from drabridge.offers.reported_health import ReportedHealth

HEARTBEAT_SECONDS = 10.0
TIMEOUT_SECONDS = 30  # kubelet's own default: three heartbeats


class HealthBoard:
    """The current health of all devices of the pool, and the streams that are told of it."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._devices: tuple[tuple[ReportedHealth, int], ...] = ()
        self._changed = asyncio.Event()
        self._closed = False
        self.opened = False  # kubelet has opened a stream

    def update(self, devices: tuple[ReportedHealth, ...]) -> None:
        """Take the health of all devices; tell every stream if anything differs."""
        before = dict(self._devices)
        if tuple(before) == devices and self._devices:
            return
        now = int(time.time())
        self._devices = tuple((health, before.get(health, now)) for health in devices)
        self._wake()

    def repeat(self) -> None:
        """Tell every stream again.

        Kubelet forgets the driver's health whenever one of its streams ends (pkg/kubelet/cm/dra/manager.go,
        HandleWatchResourcesStream).
        """
        self._wake()

    def close(self) -> None:
        """End the streams: a server that stops would wait for them until the end of its grace."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(self, messages: ModuleType) -> AsyncGenerator[Any, None]:
        """Yield the list now, after every change and every heartbeat, in the types of ``messages``."""
        self.opened = True
        while not self._closed:
            changed = self._changed
            yield self._message(messages)
            # Not asyncio.wait_for: before Python 3.12 it loses a cancellation that comes with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await changed.wait()

    def _message(self, wire: ModuleType) -> Any:
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


class HealthServicer:
    """One version of ``<version>.DRAResourceHealth``."""

    def __init__(self, board: HealthBoard, messages: ModuleType) -> None:
        """``messages``: the generated module of this version."""
        self._board = board
        self._messages = messages

    async def NodeWatchResources(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        async with contextlib.aclosing(self._board.watch(self._messages)) as messages:
            async for message in messages:
                yield message
