"""A small HTTP server for one test, a free port for a server that a test starts, and how a server ends."""

from __future__ import annotations

import asyncio
import http.server
import random
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.waiting import HANG_SECONDS

_RESERVATIONS: list[socket.socket] = []


class QuietHandler(http.server.BaseHTTPRequestHandler):
    """Answers without telling the terminal."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def free_port() -> int:
    """A TCP port that nobody listens on, at any IPv4 or IPv6 address, and that nobody else is given.

    Not by the kernel, which gives ports of its own range to who asks for any; not by this function to another test run
    of this machine while this process lives.
    """
    first, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    for port in random.SystemRandom().sample(range(first // 2, first), 100):
        reservation = socket.socket(socket.AF_UNIX)
        with suppress(OSError), _listening_everywhere(port):
            reservation.bind(f"\0drabridge-tests-port-{port}")  # of one owner, which the kernel frees at its end
            _RESERVATIONS.append(reservation)
            return port
        reservation.close()
    raise OSError("no port is free")


def _listening_everywhere(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


@contextmanager
def served(handler: type[QuietHandler]) -> Iterator[str]:
    """The address of a server on localhost, which ends with the block."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


async def hangs_up(address: tuple[str, int], turns: int, close: Callable[[], Awaitable[None]]) -> bool:
    """Tell whether a server in this loop, when it closes, hangs up on a client that has just come.

    ``turns``: how far the loop has got with the connection: accepted, its task made, its request awaited.
    """
    with socket.create_connection(address) as client:
        client.settimeout(HANG_SECONDS)
        for _ in range(turns):
            await asyncio.sleep(0)
        await close()
        with suppress(ConnectionError):
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            return await asyncio.to_thread(client.recv, 100) == b""
    return True
