"""Serve ``podresources export`` by HTTP: one scrape per connection, few at once, none idle for long."""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from socketserver import TCPServer, ThreadingMixIn
from threading import Lock
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from msgspec import Struct
from prometheus_client import CollectorRegistry, make_wsgi_app

MOST_CONNECTIONS = 16  # each has a thread; Prometheus and a person need one each. One more connection ends another one
IDLE_SECONDS = 5.0  # for a request to come, and for each piece of an answer to go


class _Handler(WSGIRequestHandler):
    timeout = IDLE_SECONDS  # of socketserver.StreamRequestHandler

    def parse_request(self) -> bool:
        understood = super().parse_request()
        if isinstance(self.server, MetricsServer):
            self.server.asked(self.connection)
        return understood

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: scrapes are routine."""


class _Connection(Struct):
    """The peer's address, and whether its request was read."""

    address: str
    asked: bool = False


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves a registry.

    If all places are taken, a new connection replaces another one. That is the oldest one of the address with the most
    connections; one that has sent no request is preferred. So a slow sender takes no place from other addresses.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry) -> None:
        """Bind. Raises OSError."""
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._connections: dict[Any, _Connection] = {}  # oldest first
        self._lock = Lock()
        super().__init__(address, _Handler)
        self.set_app(make_wsgi_app(registry))

    def server_bind(self) -> None:
        """Listen on IPv4 and IPv6 if the address is ``::``."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)  # HTTPServer's own would ask the DNS for a name that nobody reads
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._connections) >= MOST_CONNECTIONS:
                self._end_one()
            self._connections[request] = _Connection(str(client_address[0]))
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._connections.pop(request, None)

    def asked(self, request: Any) -> None:
        """Note that the connection has sent its request."""
        with self._lock:
            if request in self._connections:
                self._connections[request].asked = True

    def _end_one(self) -> None:
        counts = Counter(connection.address for connection in self._connections.values())

        def badness(request: Any) -> tuple[int, bool]:
            connection = self._connections[request]
            return counts[connection.address], not connection.asked

        worst = max(self._connections, key=badness)
        del self._connections[worst]
        with contextlib.suppress(OSError):
            worst.shutdown(socket.SHUT_RDWR)  # its thread ends, and closes it

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: peers that hang up, or are slow, are routine."""
