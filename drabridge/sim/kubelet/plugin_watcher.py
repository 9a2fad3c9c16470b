"""The plugin watcher on ``plugins_registry`` (``pkg/kubelet/pluginmanager``).

It looks at the directory at every reconcile instead of waiting for inotify. A socket created, replaced or deleted is
noticed by the next reconcile at the latest, as in the real one; a socket that is renamed away counts as deleted here,
where the real watcher ignores it.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

from drabridge.sim.kubelet.dra_client import DraClient
from drabridge.sim.kubelet.dra_plugins import DraPlugins, PluginRefusedError
from drabridge.sim.kubelet.go_grpc import PluginCallError, dial
from drabridge.sim.kubelet.node import Node
from drabridge.wire import pluginregistration_pb2 as pb
from drabridge.wire import pluginregistration_pb2_grpc as rpc

Identity = tuple[int, int, int]  # device, inode, ctime in ns: an inode number alone is used again


@dataclass(slots=True)
class Watched:
    """One socket: which file it is, whether it is registered, when to try again."""

    identity: Identity
    client: DraClient | None = None
    not_before: float = 0.0
    backoff: float = 0.0
    work: asyncio.Task[None] | None = field(default=None, repr=False)


class PluginWatcher:
    """Keep registered exactly the DRA drivers that have a socket. Other types of plugins are not known here."""

    def __init__(self, node: Node, plugins: DraPlugins) -> None:
        self._node = node
        self._plugins = plugins
        self._watched: dict[Path, Watched] = {}

    async def run(self) -> None:
        """Reconcile until cancelled. The directory is the kubelet's: created with mode 0750."""
        await asyncio.sleep(self._node.timings.plugin_manager_start_seconds)
        self._node.plugins_registry.mkdir(mode=0o750, parents=True, exist_ok=True)
        try:
            while True:
                await self._node.faults.running.wait()
                await self._reconcile()
                await asyncio.sleep(self._node.timings.reconcile_seconds)
        finally:
            work = [watched.work for watched in self._watched.values() if watched.work is not None]
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def _reconcile(self) -> None:
        found = find_sockets(self._node.plugins_registry)
        for path in [p for p, watched in self._watched.items() if found.get(p) != watched.identity]:
            watched = self._watched[path]
            if watched.work is not None and not watched.work.done():
                continue
            del self._watched[path]
            if watched.client is not None:
                await self._plugins.deregister(watched.client)
        for path, identity in found.items():
            watched = self._watched.setdefault(path, Watched(identity))
            idle = watched.work is None or watched.work.done()
            if watched.client is None and idle and time.monotonic() >= watched.not_before:
                watched.work = asyncio.create_task(self._attempt(path, watched), name=f"register {path.name}")

    async def _attempt(self, path: Path, watched: Watched) -> None:
        """Try once to register. The pause after a failure begins with 0.5 s and doubles up to 2 min 2 s."""
        timings = self._node.timings
        try:
            watched.client = await self._register(path)
            watched.backoff = 0.0
        except PluginCallError:
            watched.backoff = min(
                max(watched.backoff * 2, timings.plugin_backoff_seconds), timings.plugin_backoff_max_seconds
            )
            watched.not_before = time.monotonic() + watched.backoff

    async def _register(self, path: Path) -> DraClient:
        """GenerateRegisterPluginFunc. Raises PluginCallError."""
        timings = self._node.timings
        channel = await dial(path, timings.dial_seconds)
        try:
            stub = rpc.RegistrationStub(channel)
            request = pb.InfoRequest()
            answer = stub.GetInfo(request, timeout=timings.get_info_seconds)
            info = await self._node.call("GetInfo", path.name, request, answer)
            return await self._register_info(path, info, stub)
        finally:
            await channel.close()

    async def _register_info(self, path: Path, info: pb.PluginInfo, stub: rpc.RegistrationAsyncStub) -> DraClient:
        try:
            client = self._plugins.register(info.name, Path(info.endpoint or path), info.supported_versions)
        except PluginRefusedError as error:
            text = f"RegisterPlugin error -- plugin validation failed with err: {error}"
            await self._notify(path, stub, pb.RegistrationStatus(plugin_registered=False, error=text))
            raise PluginCallError(text) from error
        try:
            fault = self._node.faults.notify_error
            await self._notify(path, stub, pb.RegistrationStatus(plugin_registered=not fault, error=fault))
            if fault:
                raise PluginCallError(f"RegisterPlugin error -- {fault}")
        except PluginCallError:
            await self._plugins.deregister(client)
            raise
        return client

    async def _notify(self, path: Path, stub: rpc.RegistrationAsyncStub, status: pb.RegistrationStatus) -> None:
        answer = stub.NotifyRegistrationStatus(status, timeout=self._node.timings.notify_seconds)
        await self._node.call("NotifyRegistrationStatus", path.name, status, answer)


def find_sockets(directory: Path) -> dict[Path, Identity]:
    """Sockets anywhere below, names with a leading dot left out (pluginwatcher/plugin_watcher.go)."""
    found: dict[Path, Identity] = {}
    for base, folders, names in os.walk(directory):
        folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
        for name in sorted(names):
            if name.startswith("."):
                continue
            path = Path(base, name)
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            if stat.S_ISSOCK(status.st_mode):
                found[path] = (status.st_dev, status.st_ino, status.st_ctime_ns)
    return found
