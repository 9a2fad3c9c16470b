"""The plugin's gRPC servers: the service first, then the registration; both bound anew when a socket file is lost."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import grpc

from drabridge.dra.health_stream import HealthBoard, HealthV1, HealthV1Alpha1
from drabridge.dra.registration import RegistrationService
from drabridge.dra.service import ClaimService, DraV1, DraV1Beta1
from drabridge.dra.single_flight import to_the_end
from drabridge.dra.sockets import PluginSockets, identity
from drabridge.errors import HostError
from drabridge.wire import (
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2_grpc,
    health_v1_pb2_grpc,
    health_v1alpha1_pb2_grpc,
)

log = logging.getLogger(__name__)

CHECK_SECONDS = 5.0  # a lost socket file gives no signal: it must be looked for
SOCKET_MODE = 0o600


class DraServers:
    """Serves until closed. Kubelet connects lazily, so the order of the sockets is a courtesy, not a need."""

    def __init__(
        self,
        sockets: PluginSockets,
        driver: str,
        claims: ClaimService,
        health: HealthBoard,
        registration: RegistrationService,
    ) -> None:
        self.sockets = sockets
        self._driver = driver
        self._claims = claims
        self._health = health
        self._registration = registration
        self._servers: dict[Path, grpc.aio.Server] = {}
        self._identities: dict[Path, tuple[int, int, int] | None] = {}

    @property
    def listening(self) -> bool:
        """Whether claims can be served: the service's socket was ours at the last look."""
        return self._identities.get(self.sockets.service) is not None

    async def start(self) -> None:
        """Bind both sockets. Raises HostError, with nothing left bound."""
        for dead in self.sockets.prepare(self._driver):
            log.info("removed the socket of an instance that is gone", extra={"socket": str(dead)})
        try:
            await self._bind(self.sockets.service)
            await self._bind(self.sockets.registration)
        except BaseException:
            await self.stop(0)
            raise

    async def watch(self) -> None:
        """Bind again whatever loses its file. Strictly stop, then start: a server that stops unlinks the path."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self.check()

    async def check(self) -> None:
        """One look at both socket files."""
        for path, server in tuple(self._servers.items()):
            if self._identities[path] is not None and identity(path) == self._identities[path]:
                continue
            log.warning("our socket file is gone or was replaced; binding it again", extra={"socket": str(path)})
            await server.stop(0)
            self._identities[path] = None
            try:
                self.sockets.prepare(self._driver)
                await self._bind(path)
            except HostError as error:
                log.error("cannot bind the socket", extra={"socket": str(path), "error": str(error)})

    async def stop(self, grace_seconds: float) -> None:
        """No new calls, then the registration's end, then the service's; kubelet keeps the plugin for 30 s."""
        self._health.close()
        for path in (self.sockets.registration, self.sockets.service):
            server = self._servers.pop(path, None)
            if server is not None:
                await server.stop(grace_seconds)

    async def _bind(self, path: Path) -> None:
        server = grpc.aio.server()
        if path == self.sockets.service:
            dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(DraV1(self._claims), server)
            dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(DraV1Beta1(self._claims), server)
            health_v1_pb2_grpc.add_DRAResourceHealthServicer_to_server(HealthV1(self._health), server)
            health_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(HealthV1Alpha1(self._health), server)
        else:
            self._registration.add_to(server)
        listen(server, path)
        self._servers[path] = server  # stopped like the others, whatever comes now
        await to_the_end(server.start())  # grpcio 1.85 crashes where its start is cancelled, or stopped half-way
        self._identities[path] = identity(path)


def listen(server: grpc.aio.Server, path: Path) -> None:
    """Bind a server that is not started yet to a socket for root alone. Raises HostError."""
    mask = os.umask(0o777 & ~SOCKET_MODE)  # grpc binds with 0777 less the mask; there is no moment with more
    try:
        port = server.add_insecure_port(f"unix://{path}")
    except RuntimeError as error:
        raise HostError(f"cannot listen on {path}: {error}") from error
    finally:
        os.umask(mask)
    if not port:
        raise HostError(f"cannot listen on {path}")
