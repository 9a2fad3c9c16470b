"""Slow senders take no place of those who ask."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Gauge

from podresources.cli.metricsserver import MOST_CONNECTIONS, MetricsServer


@pytest.fixture
def served() -> Iterator[MetricsServer]:
    registry = CollectorRegistry()
    Gauge("here", "x", registry=registry).set(1)
    server = MetricsServer(("127.0.0.1", 0), registry)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /metrics HTTP/1.1\r\nX: "])
def test_who_asks_is_answered_beside_many_who_never_end_their_request(served: MetricsServer, sent: bytes) -> None:
    port = served.server_port
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(MOST_CONNECTIONS + 4)]
    try:
        for one in slow:
            try:
                one.sendall(sent)
            except OSError:
                continue  # it was ended for a later one
        for _ in range(MOST_CONNECTIONS + 4):
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                assert b"here 1.0" in answer.read()
            assert len(served._connections) <= MOST_CONNECTIONS
        slow[0].settimeout(60)
        assert slow[0].recv(1) == b"", "the oldest one was ended"
    finally:
        for one in slow:
            one.close()
