"""Send one HTTP request and take its whole answer, within one time limit however slowly its bytes come.

The one such client: for the agent's control socket, here and in ``drabridge``'s commands, and for the API server.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

FAILURES = (OSError, http.client.HTTPException, ArithmeticError, ValueError, RecursionError)
"""What a request, and reading its answer, may raise; a ValueError may quote what could not be sent."""


def request_unix(
    path: Path, page: str, body: str | None = None, *, seconds: float, most_bytes: int
) -> tuple[int, bytes]:
    """Ask a program that listens at a unix socket; return status and body. Raises FAILURES."""
    ends = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(seconds)
        peer.connect(str(path))
        return request(peer, ("localhost", 80), page, body, ends=ends, most_bytes=most_bytes)


def request(
    peer: socket.socket,
    address: tuple[str, int],
    page: str,
    body: str | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    ends: float,
    most_bytes: int,
) -> tuple[int, bytes]:
    """Ask over a connection, GET or with a body POST; return status and body.

    ``address`` is for the header Host; ``ends`` is on the monotonic clock. Raises FAILURES, among them TimeoutError.
    The connection is of no use afterwards.
    """
    connection = http.client.HTTPConnection(*address)
    connection.sock = peer
    method = "GET" if body is None else "POST"
    connection.request(method, page, body, {"Connection": "close", **(headers or {})})
    response = http.client.HTTPResponse(_Answer(b"".join(_pieces(peer, ends, most_bytes))))  # type: ignore[arg-type]
    response.begin()
    return response.status, response.read()


class _Answer(io.BytesIO):
    """A whole answer that looks like a socket: http.client asks a socket only for its file."""

    def makefile(self, mode: str) -> io.BytesIO:
        return self


def _pieces(peer: socket.socket, ends: float, most_bytes: int) -> Iterator[bytes]:
    """Yield the answer until the peer hangs up. Raises HTTPException for too much, TimeoutError when it is late."""
    size = 0
    while True:
        left = ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        peer.settimeout(left)
        piece = peer.recv(1 << 16)
        if not piece:
            return
        size += len(piece)
        if size > most_bytes:
            raise http.client.HTTPException(f"its answer is larger than {most_bytes:,} bytes")
        yield piece
