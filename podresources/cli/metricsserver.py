"""Serve ``podresources export`` by HTTP: one scrape per connection, few at once, none idle for long."""

from __future__ import annotations

import socket
from socketserver import TCPServer, ThreadingMixIn
from threading import BoundedSemaphore
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

MOST_CONNECTIONS = 16  # each has a thread; Prometheus and a person have one each
IDLE_SECONDS = 5.0  # for a request to come, and for each piece of an answer to go


class _Handler(WSGIRequestHandler):
    timeout = IDLE_SECONDS  # of socketserver.StreamRequestHandler

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are no news."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves a registry. Who comes while all places are taken is hung up on."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry) -> None:
        """Bind. Raises OSError."""
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._places = BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(address, _Handler)
        self.set_app(make_wsgi_app(registry))

    def server_bind(self) -> None:
        """Both families where the address is every one."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)  # that of HTTPServer asks the DNS for a name that nobody reads
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who hangs up, or is slow, is no news either."""
