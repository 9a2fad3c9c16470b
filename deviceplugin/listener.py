"""Run one gRPC server on one fresh unix socket; tell whether its path still leads to it."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import grpc
import grpc.aio

from deviceplugin.errors import SocketError
from deviceplugin.service import DevicePluginService
from deviceplugin.sockets import SocketFileIdentity, check_directory, fresh_path, identify_socket, probe
from deviceplugin.wire import v1beta1_pb2_grpc as pb_grpc

log = logging.getLogger("deviceplugin")

STOP_SLACK_SECONDS = 0.5
"""How long gRPC may take to stop beyond the grace. If the peers run, it takes milliseconds."""

_lingering: set[asyncio.Task[None]] = set()  # the loop keeps only weak references to tasks


class Listener:
    """A server that listens on ``path``, which is private (0600). ``start`` makes it."""

    def __init__(self, server: grpc.aio.Server, path: Path, identity: SocketFileIdentity) -> None:
        self._server = server
        self._identity = identity
        self.path = path

    @classmethod
    async def start(cls, service: DevicePluginService, directory: Path, name: str, resource: str) -> Listener:
        """Bind a socket and serve on it. Raises SocketError with what a person can do about it."""
        check_directory(directory)
        path = fresh_path(directory, name, resource)
        server = grpc.aio.server()
        pb_grpc.add_DevicePluginServicer_to_server(service, server)
        try:
            if server.add_insecure_port(f"unix:{path}") == 0:  # grpcio before 1.60 returns 0, later versions raise
                raise RuntimeError("grpc answered port 0")
            # By chmod, because the umask belongs to the whole process. Until here the mode is at most 0755, which lets
            # nobody else connect: that takes the write permission. And nobody knows the name before Register.
            path.chmod(0o600)
            starting = asyncio.ensure_future(server.start())
            try:
                await asyncio.shield(starting)
            finally:
                await starting  # grpcio 1.85 crashes where its start is cancelled, or stopped half-way
            identity = identify_socket(path)
            if identity is None or (code := probe(path)) != 0:
                reason = "it vanished at once" if identity is None else os.strerror(code)
                raise SocketError(f"our own socket {path} does not answer: {reason}", hint="it will be tried again")
        except BaseException as error:
            await server.stop(None)
            if not isinstance(error, RuntimeError | OSError):
                raise
            raise SocketError(f"cannot serve on {path}: {error}", hint="check the directory and free space") from error
        return cls(server, path, identity)

    def in_place(self) -> bool:
        """Tell whether the path still leads to our socket. gRPC does not notice if it leads elsewhere."""
        return self._identity.same_file(identify_socket(self.path))

    async def stop(self, grace_seconds: float) -> None:
        """Stop serving. Calls in flight may go on for ``grace_seconds``.

        The caller ends the streams first: they would use up all of the grace.

        gRPC removes the path; the name is ours alone, so it cannot be another's file. A frozen peer (SIGSTOP) that left
        a list unread keeps gRPC's stop waiting for as long as the peer lives (measured on 1.85.1). Then this returns,
        with the listening socket closed and the path removed, and leaves the connection behind.
        """
        stopping = asyncio.create_task(self._server.stop(grace_seconds or None))
        _lingering.add(stopping)
        stopping.add_done_callback(_lingering.discard)
        done, _ = await asyncio.wait({stopping}, timeout=grace_seconds + STOP_SLACK_SECONDS)
        if not done:
            log.warning(
                "connection left behind", extra={"path": str(self.path), "reason": "a peer neither reads nor hangs up"}
            )
            if self.in_place():
                self.path.unlink(missing_ok=True)
