"""Serve the plugin's two sockets, service and registration; if a socket's file is lost, bind it again."""

from __future__ import annotations

import asyncio
import logging
import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from drabridge.dra.concurrency import to_the_end
from drabridge.dra.health_stream import HealthBoard, HealthServicer
from drabridge.dra.observer import Observer
from drabridge.dra.registration import RegistrationService
from drabridge.dra.service import ClaimServicer
from drabridge.dra.sockets import PluginSockets, identity
from drabridge.errors import HostError
from drabridge.kube.versions import KUBELET_SERVICES, ServiceName

if TYPE_CHECKING:
    from drabridge.dra.prepare import Preparer

log = logging.getLogger(__name__)

CHECK_SECONDS = 5.0  # nobody reports a lost socket file, so its loss must be looked for
SOCKET_MODE = 0o600


class DraServers:
    """The gRPC servers of both sockets.

    Kubelet connects lazily, so it does not matter which is bound first.
    """

    def __init__(
        self,
        sockets: PluginSockets,
        preparer: Preparer,
        health: HealthBoard,
        registration: RegistrationService,
        observer: Observer,
    ) -> None:
        self.sockets = sockets
        self._preparer = preparer
        self._health = health
        self._registration = registration
        self._observer = observer
        self._servers: dict[Path, grpc.aio.Server] = {}
        self._identities: dict[Path, tuple[int, int, int] | None] = {}

    @property
    def listening(self) -> bool:
        """Whether claims can be served: the service's socket was ours at the last check."""
        return self._identities.get(self.sockets.service) is not None

    async def start(self) -> None:
        """Bind both sockets. Raises HostError, with nothing left bound."""
        for dead in self.sockets.prepare(self._registration.driver):
            log.info("socket of an ended instance removed", extra={"socket": str(dead)})
        try:
            await self._bind(self.sockets.service)
            await self._bind(self.sockets.registration)
        except BaseException:
            await self.stop(0)
            raise

    async def watch(self) -> None:
        """Check both sockets every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self.check()

    async def check(self) -> None:
        """Bind a socket again if its file is lost or replaced.

        The old server is stopped first, because it unlinks the path when it stops.
        """
        for path, server in tuple(self._servers.items()):
            if self._identities[path] is not None and identity(path) == self._identities[path]:
                continue
            log.warning("socket file lost or replaced; it is bound again", extra={"socket": str(path)})
            await server.stop(0)
            self._identities[path] = None
            try:
                self.sockets.prepare(self._registration.driver)
                await self._bind(path)
            except HostError as error:
                log.error("socket not bound", extra={"socket": str(path), "reason": str(error)})

    async def stop(self, grace_seconds: float) -> None:
        """Take no new calls; end the registration, then the service. Kubelet keeps the plugin for 30 s."""
        self._health.close()
        for path in (self.sockets.registration, self.sockets.service):
            server = self._servers.pop(path, None)
            if server is not None:
                await server.stop(grace_seconds)

    async def _bind(self, path: Path) -> None:
        server = grpc.aio.server()
        if path == self.sockets.service:
            self._add_services(server)
        else:
            self._registration.add_to(server)
        listen(server, path)
        self._servers[path] = server  # from now on stop() stops it
        await to_the_end(server.start())  # grpcio 1.85 crashes if start() is cancelled, or stop() runs before its end
        self._identities[path] = identity(path)

    def _add_services(self, server: grpc.aio.Server) -> None:
        """Add every version of every service, each with its own messages."""
        for service in KUBELET_SERVICES:
            messages = import_module(f"drabridge.wire.{service.wire}_pb2")
            generated = import_module(f"drabridge.wire.{service.wire}_pb2_grpc")
            match service.name:
                case ServiceName.CLAIMS:
                    servicer = ClaimServicer(self._preparer, self._observer, messages)
                    generated.add_DRAPluginServicer_to_server(servicer, server)
                case ServiceName.HEALTH:
                    generated.add_DRAResourceHealthServicer_to_server(HealthServicer(self._health, messages), server)


def listen(server: grpc.aio.Server, path: Path) -> None:
    """Bind a server that is not started yet to a socket that root alone can open. Raises HostError."""
    mask = os.umask(0o777 & ~SOCKET_MODE)  # grpc binds with 0777 less the mask: the mode is right from the beginning
    try:
        port = server.add_insecure_port(f"unix://{path}")
    except RuntimeError as error:
        raise HostError(f"cannot listen on {path}: {error}") from error
    finally:
        os.umask(mask)
    if not port:
        raise HostError(f"cannot listen on {path}")
