"""Keep registered DRA drivers, and delete the slices of drivers that are gone.

Source: ``cm/dra/plugin/dra_plugin_manager.go``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from drabridge.errors import ClusterError
from drabridge.sim.kubelet.device_health import HealthBook
from drabridge.sim.kubelet.dra_client import DraClient
from drabridge.sim.kubelet.node import ClusterApi, Node
from drabridge.sim.releases import Release

_FIRST_WIPE_RETRY_SECONDS, _LAST_WIPE_RETRY_SECONDS = 1.0, 300.0  # same file: back-off 1 s, doubled, 5 min at most


class PluginRefusedError(Exception):
    """A plugin cannot be registered; the text goes to it by NotifyRegistrationStatus."""


def choose_service(driver: str, endpoint: str, offered: Sequence[str], release: Release) -> str:
    """Return the first of the plugin's own list that this kubelet knows. Raises PluginRefusedError."""
    if not offered:
        raise PluginRefusedError(f"empty list for supported versions of DRA plugin {driver}")
    for service in offered:
        if service in release.dra_services:
            return service
    listed, known = (" ".join(f'"{name}"' for name in names) for names in (offered, release.dra_services))
    raise PluginRefusedError(
        f"invalid supported gRPC versions of DRA driver plugin {driver} at endpoint {endpoint}: "
        f"none of services supported by the plugin ([{listed}]) are supported by the kubelet ([{known}])"
    )


def choose_health(offered: Sequence[str], release: Release) -> str | None:
    """Return the health service to open (``pickHealthService`` of ``cm/dra/plugin``); None opens none."""
    if not release.health_is_advertised:
        return release.health_services[0]
    return next((service for service in release.health_services if service in offered), None)


class DraPlugins:
    """A list of clients for each driver; the newest connected one is used, else the newest."""

    def __init__(self, node: Node, api: ClusterApi | None) -> None:
        self.health = HealthBook()
        self._node = node
        self._api = api
        self._clients: dict[str, list[DraClient]] = {}
        self._tasks: dict[DraClient, list[asyncio.Task[None]]] = {}
        self._changed: dict[str, asyncio.Event] = {}
        self._wipers: dict[str, asyncio.Task[None]] = {}

    def register(self, driver: str, endpoint: Path, offered: Sequence[str]) -> DraClient:
        """Register a driver. Raises PluginRefusedError."""
        service = choose_service(driver, str(endpoint), offered, self._node.release)
        if any(client.endpoint == endpoint for client in self._clients.get(driver, ())):
            raise PluginRefusedError(f"endpoint {endpoint} already registered for DRA driver plugin {driver}")
        health = choose_health(offered, self._node.release) if self._node.gates["ResourceHealthStatus"] else None
        client = DraClient(self._node, driver, endpoint, service)
        self._clients.setdefault(driver, []).append(client)
        changed = self._changed.setdefault(driver, asyncio.Event())
        tasks = [asyncio.create_task(client.monitor(changed), name=f"connection of {driver}")]
        if health is not None:
            tasks.append(asyncio.create_task(client.watch_health(health, self.health), name=f"health of {driver}"))
        self._tasks[client] = tasks
        if driver not in self._wipers:
            self._wipers[driver] = asyncio.create_task(self._wipe_when_gone(driver), name=f"wiping of {driver}")
        return client

    async def deregister(self, client: DraClient) -> None:
        """DeRegisterPlugin: the connection closes; the driver's slices follow unless it is back in time."""
        self._clients[client.driver].remove(client)
        await self._end(client)
        self._changed[client.driver].set()

    def get(self, driver: str) -> DraClient | None:
        clients = self._clients.get(driver, [])
        connected = [client for client in clients if client.connected]
        usable = connected or clients
        return usable[-1] if usable else None

    def is_connected(self, driver: str) -> bool:
        return any(client.connected for client in self._clients.get(driver, ()))

    async def wipe_all(self) -> None:
        """Delete every slice of the node, at each start of a kubelet; retry until the API server does it."""
        await asyncio.sleep(self._node.timings.slice_wipe_at_start_seconds)
        await self._wipe(None)

    async def _wipe_when_gone(self, driver: str) -> None:
        changed = self._changed[driver]
        while True:
            changed.clear()
            if self.is_connected(driver):
                await changed.wait()
                continue
            try:
                async with asyncio.timeout(self._node.timings.slice_wipe_seconds):
                    await self._until_connected(driver)
            except TimeoutError:
                await self._wipe(driver)
                await self._until_connected(driver)

    async def _until_connected(self, driver: str) -> None:
        while not self.is_connected(driver):
            await self._changed[driver].wait()
            self._changed[driver].clear()

    async def _wipe(self, driver: str | None) -> None:
        if self._api is None:
            return
        backoff = _FIRST_WIPE_RETRY_SECONDS
        while True:
            try:
                await self._api.delete_slices(self._node.name, driver)
            except ClusterError:
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, _LAST_WIPE_RETRY_SECONDS)
            else:
                return

    async def _end(self, client: DraClient) -> None:
        tasks = self._tasks.pop(client)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()

    async def close(self) -> None:
        """End, as the process does."""
        for wiper in self._wipers.values():
            wiper.cancel()
        await asyncio.gather(*self._wipers.values(), return_exceptions=True)
        for client in list(self._tasks):
            await self._end(client)
