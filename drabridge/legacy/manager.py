"""Run a device-plugin server for each resource, and tell which lists kubelet has taken."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from deviceplugin import ListedHealth, Observer, PluginServer, ServerState, Watcher
from drabridge.config.schema import Config
from drabridge.legacy.resource import LegacyContext, LegacyResource
from drabridge.system.supervise import end, forever

log = logging.getLogger(__name__)

QUIET_SECONDS = 1.0  # an Allocate takes milliseconds; if one hangs, kubelet must be asked nevertheless
ANSWER_SECONDS = 0.1  # until kubelet has recorded our answer: 1 to 2 ms on an idle machine, far more on a busy one
POLL_SECONDS = 0.02


def socket_prefix(driver: str) -> str:
    """Return the prefix of our socket files. It is short (a path has 107 bytes), and differs for each driver."""
    return f"drabridge-{hashlib.sha256(driver.encode()).hexdigest()[:4]}"


class _Served:
    """One resource with its server and its task."""

    def __init__(self, plugin: LegacyResource, server: PluginServer) -> None:
        self.plugin = plugin
        self.server = server
        self.stopping = False
        name = f"server of {plugin.resource}"
        self.task = asyncio.create_task(forever(name, server.run, lambda: self.stopping), name=name)


class LegacyManager:
    """The resources of the configuration with their servers, in kubelet's plugin ``directory``."""

    def __init__(
        self, directory: Path, context: LegacyContext, observer: Observer, watcher: Watcher | None = None
    ) -> None:
        self._directory = directory
        self._context = context
        self._observer = observer
        self._watcher = watcher or Watcher()
        self._served: dict[str, _Served] = {}

    async def configure(self, config: Config) -> None:
        """Serve exactly the resources of ``config``: start new servers, stop old ones, leave the others alone."""
        wanted = {resource.name: resource for resource in config.resources}
        leaving = [name for name, served in self._served.items() if name not in wanted]
        for name, resource in wanted.items():
            served = self._served.get(name)
            if served is not None and served.plugin.reconfigure(resource, config.legacy.inject):
                continue
            if served is not None:
                leaving.append(name)
        await asyncio.gather(*(self._stop(name) for name in leaving))
        for name, resource in wanted.items():
            if name not in self._served:
                plugin = LegacyResource(resource, config.legacy.inject, self._context)
                server = PluginServer(
                    plugin,
                    directory=self._directory,
                    name=socket_prefix(config.driver),
                    watcher=self._watcher,
                    observer=self._observer,
                )
                self._served[name] = _Served(plugin, server)

    def follow_inventory(self) -> None:
        """Take the inventory's devices, and bring every device list up to date."""
        for served in self._served.values():
            served.plugin.follow_inventory(served.server.recent_ids)

    def follow_ledger(self) -> None:
        """Bring every device list up to date with the ledger. An unchanged list is not sent."""
        for served in self._served.values():
            served.plugin.follow_ledger()

    @property
    def states(self) -> tuple[ServerState, ...]:
        return tuple(served.server.state for served in self._served.values())

    @property
    def busy_ids(self) -> frozenset[str]:
        """Return the ids in an Allocate or GetPreferredAllocation that is not answered yet."""
        return frozenset().union(*(served.server.inflight_ids for served in self._served.values()))

    @property
    def recent_ids(self) -> frozenset[str]:
        """Return the ids that kubelet asked about a short while ago; they must not leave a list."""
        return frozenset().union(*(served.server.recent_ids for served in self._served.values()))

    @property
    def _idle_seconds(self) -> float:
        return min((served.server.idle_seconds for served in self._served.values()), default=math.inf)

    async def wait_answered(self) -> None:
        """Wait until kubelet has recorded the answer to every Allocate, for ``QUIET_SECONDS`` at most.

        Kubelet records a device some time after the answer, and nothing shows when. So this waits until that time is
        over.
        """
        deadline = time.monotonic() + QUIET_SECONDS
        while self._idle_seconds < ANSWER_SECONDS and time.monotonic() < deadline:
            await asyncio.sleep(POLL_SECONDS)

    async def delivered(self, resources: Iterable[str], timeout_seconds: float) -> bool:
        """Wait until kubelet has taken the current list of each resource; false if not connected or too slow."""
        return await self._sent({name: self._version(name) for name in resources}, timeout_seconds)

    async def resend(self, resources: Iterable[str], timeout_seconds: float) -> bool:
        """Send the same lists again, so that kubelet writes its checkpoint; wait as :meth:`delivered` does.

        There is one checkpoint for all resources: if none of ``resources`` is served any more, all other lists are
        sent.
        """
        known = [name for name in resources if name in self._served] or list(self._served)
        versions = {name: self._served[name].plugin.devices().resend() for name in known if self._version(name)}
        return await self._sent(versions, timeout_seconds)

    def resend_soon(self, resources: Iterable[str]) -> None:
        """Send the same lists again without waiting: kubelet has just shown that it acts on an older one."""
        for name in resources:
            if self._version(name):
                self._served[name].plugin.devices().resend()

    def healthy_ids(self) -> dict[str, frozenset[str]]:
        """Return resource -> the Healthy ids in the list that kubelet has.

        Resources are left out while a newer list is on its way, or if the list was cut because it is too large for
        kubelet.
        """
        found = {}
        for name, served in self._served.items():
            current, state = served.plugin.devices().current, served.server.state
            if current is None or not state.registered or state.left_out:
                continue
            if state.sent_version == current.version:
                found[name] = frozenset(one.id for one in current.value if one.health is ListedHealth.HEALTHY)
        return found

    async def register_again(self, resource: str) -> None:
        """Register again, to be the last that did. For a second or two kubelet has no device of the resource."""
        if resource in self._served:
            await self._served[resource].server.register_again()

    async def close(self, grace_seconds: float = 1.0) -> None:
        """Stop every server and remove its socket. CDI files stay: containers may be started again without us."""
        await asyncio.gather(*(self._stop(name, grace_seconds) for name in list(self._served)))

    def _version(self, name: str) -> int:
        served = self._served.get(name)
        return served.plugin.devices().version if served else 0

    async def _sent(self, versions: Mapping[str, int], timeout_seconds: float) -> bool:
        waiting = [(self._served[name].server, version) for name, version in versions.items() if name in self._served]
        if len(waiting) < len(versions) or not all(server.state.registered for server, _ in waiting):
            return False
        try:
            async with asyncio.timeout(timeout_seconds):
                for server, version in waiting:
                    await server.wait_sent(version)
        except TimeoutError:
            return False
        return True

    async def _stop(self, name: str, grace_seconds: float = 1.0) -> None:
        served = self._served.pop(name)
        served.stopping = True
        await served.server.stop(grace_seconds)
        await end(served.task)
