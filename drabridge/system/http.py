"""Serve the agent's pages by HTTP/1.1 on asyncio, over TCP or a unix socket.

h11 parses requests. This module enforces limits: one request for each connection, the request's size and time, and the
number of connections. It answers monitoring systems and the operator's command with short texts. For anything larger,
use a real server.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import h11
from msgspec import Struct, field
from msgspec.structs import replace

from drabridge.system.supervise import end

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 16 * 1024  # request line and headers: ten times what Prometheus or kubelet's probes send
MAX_BODY_BYTES = 64 * 1024
CHUNK_BYTES = 1024  # read at once: heads between MAX_HEAD_BYTES less this and MAX_HEAD_BYTES may be refused or not
MAX_CONNECTIONS = 128  # one more ends a connection of the address that has most of them
READ_SECONDS = 5.0  # for the whole request: a slow sender is disconnected
WRITE_SECONDS = 10.0  # for the whole answer: a slow reader is disconnected
NO_LENGTH = "a body needs a content-length"


class Request(Struct, frozen=True):
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case
    body: bytes = b""
    loopback: bool = False  # it came to a loopback address: from this machine, or from this pod


class Response(Struct, frozen=True):
    body: bytes | str
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def json(value: Any, status: HTTPStatus = HTTPStatus.OK) -> Response:
        return Response(json.dumps(value, default=str) + "\n", status, "application/json")


Handler = Callable[[Request], Response | Awaitable[Response]]


class _RefusedError(Exception):
    """A request that is answered with ``status`` and the text of this error."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


async def _read(reader: asyncio.StreamReader, parser: h11.Connection) -> Request:
    """Read one request. Raises _RefusedError; ConnectionError if the peer hangs up before its end."""
    head = await _next(reader, parser)
    assert isinstance(head, h11.Request)  # the first event of a client, or an error
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
    if "transfer-encoding" in headers:
        raise _RefusedError(HTTPStatus.LENGTH_REQUIRED, NO_LENGTH)
    if int(headers.get("content-length", "0")) > MAX_BODY_BYTES:
        raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"body larger than {MAX_BODY_BYTES} bytes")
    body = b""
    while isinstance(event := await _next(reader, parser), h11.Data):
        body += event.data
    try:
        target = urlsplit(head.target.decode("latin-1"))
        query = dict(parse_qsl(target.query, keep_blank_values=True))
    except ValueError as error:
        raise _RefusedError(HTTPStatus.BAD_REQUEST, str(error)) from None
    return Request(head.method.decode("ascii"), target.path, query, headers, body)


async def _next(reader: asyncio.StreamReader, parser: h11.Connection) -> h11.Event:
    """Read until h11 has understood one more event of the request."""
    try:
        while not isinstance(event := parser.next_event(), h11.Event):
            data = await reader.read(CHUNK_BYTES)
            if not data:
                raise ConnectionError("the peer hung up before the end of its request")
            parser.receive_data(data)
    except h11.RemoteProtocolError as error:
        if str(error).startswith("bad Content-Length"):
            raise _RefusedError(HTTPStatus.LENGTH_REQUIRED, NO_LENGTH) from error
        raise _RefusedError(HTTPStatus(error.error_status_hint), str(error)) from error
    return event


def _came_to_loopback(writer: asyncio.StreamWriter) -> bool:
    """Tell whether the connection's own end is a loopback address; a unix socket has none."""
    own = writer.get_extra_info("sockname")
    try:
        return isinstance(own, tuple) and ipaddress.ip_address(own[0]).is_loopback
    except ValueError:  # an IPv6 address with a scope
        return False


def _encode(parser: h11.Connection, response: Response, *, head_only: bool) -> bytes:
    # A name from udev may have surrogates, which are not valid text: they are escaped, not an error.
    body = response.body.encode(errors="backslashreplace") if isinstance(response.body, str) else response.body
    headers = {
        "Content-Type": response.content_type,
        "Content-Length": str(len(body)),
        "Connection": "close",
        "X-Content-Type-Options": "nosniff",
        **response.headers,
    }
    encoded = [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]
    status = response.status
    head = parser.send(h11.Response(status_code=status, reason=status.phrase.encode("ascii"), headers=encoded))
    return (head or b"") + (b"" if head_only else body)


class _Connection(Struct):
    """The peer's address ("" on the unix socket), and whether its request has been read."""

    address: str
    asked: bool = False


def _address_of(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""


async def close_servers(servers: Iterable[asyncio.Server]) -> None:
    """Close servers without losing accepted connections: asyncio gives these no transport once the server is closed."""
    loop = asyncio.get_running_loop()
    for server in servers:
        for listening in server.sockets:
            loop.remove_reader(listening.fileno())
    await asyncio.sleep(0)
    for server in servers:
        server.close()


class HttpServer:
    """Serves ``routes``: ``{("GET", "/path"): handler}``. HEAD is answered from GET's handler."""

    def __init__(self, routes: Mapping[tuple[str, str], Handler]) -> None:
        self.routes = dict(routes)
        self.otherwise: Handler | None = None  # answers requests without a route; None: they are refused
        self._servers: list[asyncio.Server] = []
        self._closed = False
        self._path: Path | None = None  # the unix socket's path
        self._bound: os.stat_result | None = None  # the socket's file
        self._connections: dict[asyncio.Task[None], _Connection] = {}  # oldest first

    async def listen_tcp(self, host: str, port: int) -> tuple[str, int]:
        """Bind and return the address in use (port 0 asks the kernel for one).

        Raises OSError when it is taken.
        """
        server = await asyncio.start_server(self._connected, host, port, limit=MAX_HEAD_BYTES)
        self._servers.append(server)
        bound = server.sockets[0].getsockname()
        return bound[0], bound[1]

    async def listen_unix(self, path: Path) -> None:
        """Bind a unix socket that only root may open.

        A stale socket of ours is replaced; the caller holds the lock.
        """
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._connected, path, limit=MAX_HEAD_BYTES, start_serving=False)
        path.chmod(0o600)  # before the first accept: until now connecting waits
        await server.start_serving()
        self._servers.append(server)
        self._path, self._bound = path, path.stat()

    async def renew_unix(self, path: Path) -> bool:
        """Bind again if somebody removed or replaced the socket's file; return False if the file is in place."""
        if self._in_place():
            return False
        before, self._servers = self._servers, []
        await self.listen_unix(path)
        await close_servers(before)  # nobody can reach the old servers any more
        return True

    def _in_place(self) -> bool:
        """Tell whether the file at the unix socket's path is the one that was made for it."""
        if self._path is None or self._bound is None:
            return False
        try:
            return os.path.samestat(self._path.stat(), self._bound)
        except OSError:
            return False

    async def close(self) -> None:
        """Close all connections, and remove the unix socket's file if it is ours. The server never opens again."""
        self._closed = True
        if self._path is not None and self._in_place():
            self._path.unlink(missing_ok=True)
        await close_servers(self._servers)
        await end(*self._connections)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Record the connection at once, so that :meth:`close` also ends one whose task has not run yet."""
        if self._closed:
            writer.transport.abort()
            return
        writer.transport.set_write_buffer_limits(0)  # drain() then waits until the kernel has the whole answer
        connection = _Connection(_address_of(writer))
        task = asyncio.create_task(self._serve(reader, writer, connection))
        self._connections[task] = connection
        task.add_done_callback(lambda task: self._ended(task, writer))
        if len(self._connections) > MAX_CONNECTIONS:
            self._end_one()

    def _ended(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        self._connections.pop(task, None)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            writer.close()
            return
        writer.transport.abort()  # the peer hung up or was too slow: do not wait for it to read the rest
        if not isinstance(error, OSError | asyncio.CancelledError):  # TimeoutError is an OSError
            log.error("connection failed", exc_info=error)

    def _end_one(self) -> None:
        """End the oldest connection of the address with the most connections; prefer one without a request.

        So a flood of connections takes no place from others, above all not from kubelet's probes.
        """
        counts = Counter(connection.address for connection in self._connections.values())

        def badness(task: asyncio.Task[None]) -> tuple[int, bool]:
            connection = self._connections[task]
            return counts[connection.address], not connection.asked

        worst = max(self._connections, key=badness)
        del self._connections[worst]
        worst.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: _Connection) -> None:
        """Answer one request. Raises OSError when the peer hangs up or is too slow (TimeoutError)."""
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES - CHUNK_BYTES)
        head_only = False
        try:
            async with asyncio.timeout(READ_SECONDS):
                request = replace(await _read(reader, parser), loopback=_came_to_loopback(writer))
            connection.asked = True
            head_only = request.method == "HEAD"
            response = await self._answer(request)
        except _RefusedError as error:
            response = Response(f"{error}\n", error.status)
        writer.write(_encode(parser, response, head_only=head_only))
        async with asyncio.timeout(WRITE_SECONDS):
            await writer.drain()

    async def _answer(self, request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        handler = self.routes.get((method, request.path), self.otherwise)
        if handler is None:
            known = any(path == request.path for _, path in self.routes)
            status = HTTPStatus.METHOD_NOT_ALLOWED if known else HTTPStatus.NOT_FOUND
            listed = " ".join(sorted({path for _, path in self.routes}))
            return Response(f"{status.phrase.lower()}; here are: {listed}\n", status)
        try:
            result = handler(request)
            return result if isinstance(result, Response) else await result
        except Exception:
            log.exception("page failed", extra={"path": request.path})
            return Response("internal error; the agent's log has it\n", HTTPStatus.INTERNAL_SERVER_ERROR)
