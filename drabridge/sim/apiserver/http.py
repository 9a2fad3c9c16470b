"""Speak HTTP/1.1 over asyncio streams: just enough for an API server.

Answers in chunks can be cut at will.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from drabridge.errors import HostError

MAX_HEADER_BYTES = 64 * 1024
MAX_BODY_BYTES = 3 * 1024 * 1024
"""The real server refuses larger bodies (apiserver ``MaxRequestBodyBytes``)."""


@dataclass(frozen=True)
class HttpRequest:
    """One request, read in full. Header names are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @cached_property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)

    @cached_property
    def query(self) -> dict[str, str]:
        """First value of each parameter."""
        return {
            name: values[0] for name, values in parse_qs(urlsplit(self.target).query, keep_blank_values=True).items()
        }


@dataclass(slots=True, eq=False)
class Reply:
    """Where the answer goes."""

    writer: asyncio.StreamWriter
    status: int = 0
    sent_bytes: int = 0
    keep_alive: bool = True
    streaming: bool = False

    async def send(self, status: int, body: Any) -> None:
        """Send a whole answer: JSON, or bytes that are JSON already."""
        data = body if isinstance(body, bytes) else dump(body)
        self._head(status, f"Content-Length: {len(data)}")
        self.writer.write(data)
        self.sent_bytes += len(data)
        await self.writer.drain()

    async def start_stream(self) -> None:
        self.streaming = True
        self._head(200, "Transfer-Encoding: chunked")
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        self.writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.sent_bytes += len(data)
        await self.writer.drain()

    async def end_stream(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    def cut(self) -> None:
        """Reset the connection: no goodbye, no last chunk."""
        self.keep_alive = False
        self.writer.transport.abort()

    def _head(self, status: int, framing: str) -> None:
        self.status = status
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "Content-Type: application/json", framing]
        if not self.keep_alive:
            lines.append("Connection: close")
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))


Handler = Callable[[HttpRequest, Reply], Awaitable[None]]


def dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class BadRequestError(Exception):
    """What came in is not HTTP that we can read; the text is for the log and for the client."""


async def serve(reader: asyncio.StreamReader, reply_to: asyncio.StreamWriter, handler: Handler) -> None:
    """Answer requests of one connection until either side closes it. Broken connections end it silently."""
    try:
        while True:
            request = await read_request(reader)
            if request is None:
                return
            keep = request.headers.get("connection", "").lower() != "close"
            reply = Reply(reply_to, keep_alive=keep)
            await handler(request, reply)
            if not reply.keep_alive:
                return
    except BadRequestError as error:
        await Reply(reply_to, keep_alive=False).send(400, {"kind": "Status", "code": 400, "message": str(error)})
    except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
        return
    finally:
        reply_to.close()


async def read_request(reader: asyncio.StreamReader) -> HttpRequest | None:
    """Return the next request, or None at the end of the connection. Raises BadRequestError."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise BadRequestError("connection closed inside the request's head") from error
        return None
    except asyncio.LimitOverrunError as error:
        raise BadRequestError(f"request head is larger than {MAX_HEADER_BYTES} bytes") from error
    first, *rest = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise BadRequestError(f"not an HTTP/1.x request line: {first[:80]!r}")
    headers = {}
    for line in rest:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadRequestError(f"not a header line: {line[:80]!r}")
        headers[name.strip().lower()] = value.strip()
    return HttpRequest(parts[0], parts[1], headers, await _body(reader, headers))


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    text = headers.get("content-length", "0")
    if not text.isdecimal():
        raise BadRequestError(f"Content-Length is not a number: {text!r}")
    if int(text) > MAX_BODY_BYTES:
        raise BadRequestError(f"Request entity too large: limit is {MAX_BODY_BYTES}")
    return await reader.readexactly(int(text))


# --- TLS: a throw-away certificate for 127.0.0.1, made by the openssl command -----------------------------------------


_COMMAND = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=drabridge-sim "
    "-addext subjectAltName=IP:127.0.0.1,DNS:localhost"
)


def tls_context() -> tuple[ssl.SSLContext, bytes]:
    """(context of the server, PEM of the certificate). Raises HostError when openssl is missing or fails."""
    with tempfile.TemporaryDirectory(prefix="drabridge-tls-") as folder:
        key, certificate = Path(folder, "key.pem"), Path(folder, "cert.pem")
        command = [*_COMMAND.split(), "-keyout", str(key), "-out", str(certificate)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=20)
        except (OSError, subprocess.SubprocessError) as error:
            raise HostError(
                f"cannot make a certificate for the simulated API server: {error}",
                hint="install openssl, or use tls=False",
            ) from error
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context, certificate.read_bytes()
