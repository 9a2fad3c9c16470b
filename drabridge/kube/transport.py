"""Send requests to one API server over a pool of connections. Knows paths and bytes, but no Kubernetes objects."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from drabridge.errors import ConfigError
from drabridge.kube.access import Access, credential, token_of

if TYPE_CHECKING:
    import ssl

    from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPResponse

CONNECTIONS = 8  # kept open: three workers, and as many watches as the agent has
TOKEN_SECONDS = 60.0  # kubelet replaces a pod's token long before it expires (docs: "Bound service account tokens")
MOST_BYTES_OF_REFUSAL = 1 << 20
HEAD_READS = 3  # the head of an answer must arrive within the time limit of so many reads
HEAD_SECONDS = 30.0  # limit of a read that has none


class HttpStatusError(Exception):
    """The server answered with a status other than 2xx; ``body`` is the answer."""

    def __init__(self, status: int, reason: str, body: bytes) -> None:
        super().__init__(f"{status} {reason}")
        self.status = status
        self.reason = reason
        self.body = body


class Transport:
    """The connections to one server. All methods may be called in several threads."""

    def __init__(self, access: Access, user_agent: str) -> None:
        """Prepare; the first request connects. Raises ConfigError for certificates that cannot be used."""
        import urllib3

        self._server = access.server
        self._authorization = _Authorization(access)
        self._headers = {"User-Agent": user_agent}
        options: dict[str, Any] = {"maxsize": CONNECTIONS, "retries": False}
        if access.server.startswith("https:"):
            options["ssl_context"] = _tls(access)  # one for all: each has the system's certificates, some 0.8 MiB
            options["server_hostname"] = access.server_name or None
            options["assert_hostname"] = (access.server_name or None) if access.verify else False
        self._pool = urllib3.ProxyManager(access.proxy, **options) if access.proxy else urllib3.PoolManager(**options)
        self._pool.pool_classes_by_scheme = _pool_classes()

    def open(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        timeout_seconds: tuple[float, float],
        body: bytes | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> BaseHTTPResponse:
        """Send a request and return the answer once it begins; the caller reads it.

        Parameters that are None are left out. ``timeout_seconds``: to connect, and for each read. Raises
        HttpStatusError, what urllib3 raises, and ConfigError where the token cannot be read.
        """
        import urllib3

        headers = {**self._headers, "Accept": accept, **self._authorization.header()}
        if body is not None:
            headers["Content-Type"] = content_type
        given = urlencode({name: value for name, value in query.items() if value is not None})
        try:
            response = self._pool.request(
                method.upper(),
                f"{self._server}{path}?{given}" if given else f"{self._server}{path}",
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(connect=timeout_seconds[0], read=timeout_seconds[1]),
                preload_content=False,
                redirect=False,
                retries=False,
            )
        except (urllib3.exceptions.HTTPError, OSError):
            raise
        except ValueError:  # the message may quote what was not sent, for example a token
            raise ConfigError("the request cannot be sent: HTTP does not allow its path or a header") from None
        if not 200 <= response.status < 300:
            with contextlib.closing(response):
                said = response.read(MOST_BYTES_OF_REFUSAL)
            raise HttpStatusError(response.status, response.reason or "", said)
        return response


@functools.cache
def _pool_classes() -> dict[str, type[HTTPConnectionPool]]:
    """Return urllib3's pool classes, with connections that limit the time for the head of an answer.

    A read's own time limit starts again with each byte, so a slow server could send a head forever.
    """
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    class Plain(HTTPConnection):
        def getresponse(self) -> HTTPResponse:  # type: ignore[override]
            with _limited(self):
                return super().getresponse()

    class Tls(HTTPSConnection):
        def getresponse(self) -> HTTPResponse:  # type: ignore[override]
            with _limited(self):
                return super().getresponse()

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class TlsPool(HTTPSConnectionPool):
        ConnectionCls = Tls

    return {"http": PlainPool, "https": TlsPool}


@contextlib.contextmanager
def _limited(connection: Any) -> Iterator[None]:
    """Shut the connection down if the block takes longer than ``HEAD_READS`` times a read's limit."""
    timer = threading.Timer(HEAD_READS * (connection.timeout or HEAD_SECONDS), _shut_down, (connection.sock,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _shut_down(connected: socket.socket) -> None:
    """Wake the thread that reads. Shuts down the plain socket: TLS's own shutdown would wait for the peer."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


class _Authorization:
    """The Authorization header."""

    def __init__(self, access: Access) -> None:
        self._fixed = credential(access.authorization, "the token") if access.authorization else ""
        self._file = Path(access.token_file) if access.token_file else None
        self._lock = threading.Lock()
        self._token, self._read_at = "", 0.0

    def header(self) -> dict[str, str]:
        if self._file is None:
            return {"Authorization": self._fixed} if self._fixed else {}
        with self._lock:
            if not self._token or time.monotonic() - self._read_at > TOKEN_SECONDS:
                self._token, self._read_at = token_of(self._file), time.monotonic()
            return {"Authorization": f"Bearer {self._token}"}


def _tls(access: Access) -> ssl.SSLContext:
    import ssl

    from urllib3.util import create_urllib3_context

    context = create_urllib3_context()
    if not access.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        if access.authorities:
            context.load_verify_locations(cadata=access.authorities)
        elif access.verify:
            context.load_default_certs()
        if access.certificate:
            _present(context, access)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(f"the certificates for {access.server} cannot be used: {error}") from error
    return context


def _present(context: ssl.SSLContext, access: Access) -> None:
    """Load the client's certificate. OpenSSL reads only files, so it gets an anonymous one in memory."""
    descriptor = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{access.certificate}\n{access.key}")
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
