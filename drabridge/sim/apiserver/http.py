"""Speak HTTP/1.1 over asyncio streams: requests are read in full, answers can be cut at will."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import h11

from drabridge.errors import HostError
from drabridge.sim.apiserver.request import Request

MAX_HEADER_BYTES = 64 * 1024
MAX_BODY_BYTES = 3 * 1024 * 1024
"""The real server refuses larger bodies (apiserver ``MaxRequestBodyBytes``)."""


class Connection:
    """One connection: the request that is being answered, and where its answer goes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, MAX_HEADER_BYTES)

    async def serve(self, handler: Handler) -> None:
        """Answer requests until either side closes the connection. Broken connections end it silently."""
        try:
            while request := await self._request():
                await handler(request, self)
                if self._http.our_state is not h11.DONE:
                    return
                self._http.start_next_cycle()
        except h11.RemoteProtocolError as error:
            if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                with contextlib.suppress(ConnectionError):
                    await self.send(error.error_status_hint, {"kind": "Status", "message": str(error)})
        except (ConnectionError, TimeoutError):
            return
        finally:
            self._writer.close()

    async def send(self, status: int, body: Any) -> int:
        """Send a whole answer: JSON, or bytes that are JSON already. Returns the bytes of its body."""
        data = body if isinstance(body, bytes) else dump(body)
        self._start(status, ("Content-Length", str(len(data))))
        self._write(h11.Data(data))
        await self.end()
        return len(data)

    async def start_stream(self) -> None:
        self._start(200, ("Transfer-Encoding", "chunked"))
        await self._writer.drain()

    async def chunk(self, data: bytes) -> None:
        self._write(h11.Data(data))
        await self._writer.drain()

    async def end(self) -> None:
        self._write(h11.EndOfMessage())
        await self._writer.drain()

    def cut(self) -> None:
        """Reset the connection, without a last chunk."""
        self._writer.transport.abort()

    def _start(self, status: int, framing: tuple[str, str]) -> None:
        headers = [("Content-Type", "application/json"), framing]
        self._write(h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase))

    def _write(self, event: h11.Event) -> None:
        self._writer.write(self._http.send(event) or b"")

    async def _event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(65536))
        return event

    async def _request(self) -> Request | None:
        """Return the next request, or None at the end of the connection. Raises RemoteProtocolError."""
        head, body = await self._event(), bytearray()
        if not isinstance(head, h11.Request):
            return None
        while isinstance(data := await self._event(), h11.Data):
            body += data.data
            if len(body) > MAX_BODY_BYTES:
                text = f"Request entity too large: limit is {MAX_BODY_BYTES}"
                raise h11.RemoteProtocolError(text, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        url = urlsplit(head.target.decode("latin-1"))
        headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        return Request(
            head.method.decode(),
            unquote(url.path),
            query,
            headers.get("user-agent", ""),
            headers.get("content-type", "application/json").partition(";")[0].strip(),
            headers.get("authorization", ""),
            bytes(body),
        )


Handler = Callable[[Request, Connection], Awaitable[None]]


def dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


# --- TLS: a throw-away certificate for 127.0.0.1, made by the openssl command -----------------------------------------


_COMMAND = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=drabridge-sim "
    "-addext subjectAltName=IP:127.0.0.1,DNS:localhost"
)


def tls_context() -> tuple[ssl.SSLContext, bytes]:
    """Return (context of the server, PEM of the certificate). Raises HostError if openssl is missing or fails."""
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
