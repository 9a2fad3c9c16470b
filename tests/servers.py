"""A small HTTP server of a test's own."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class QuietHandler(http.server.BaseHTTPRequestHandler):
    """Answers without telling the terminal."""

    def log_message(self, format: str, *args: object) -> None:
        pass


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
