"""A small HTTP server for one test, and a free port for a server that a test starts."""

from __future__ import annotations

import http.server
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class QuietHandler(http.server.BaseHTTPRequestHandler):
    """Answers without telling the terminal."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def free_port() -> int:
    """A port of localhost that nobody listens on, and that the kernel gives to nobody who asks for any."""
    first, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    for port in random.SystemRandom().sample(range(first // 2, first), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("no port is free")


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
