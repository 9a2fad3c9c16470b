"""Send requests to one API server over a pool of connections: paths and bytes, nothing of Kubernetes' objects."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from drabridge.errors import ConfigError
from drabridge.kube.access import Access

if TYPE_CHECKING:
    import ssl

    from urllib3 import BaseHTTPResponse

CONNECTIONS = 8  # kept open: three workers, and as many watches as the agent has
TOKEN_SECONDS = 60.0  # kubelet replaces a pod's token long before it expires (docs: "Bound service account tokens")
MOST_BYTES_OF_REFUSAL = 1 << 20


class HttpStatusError(Exception):
    """The server answered with a status that is no success; ``body`` is what it says of that."""

    def __init__(self, status: int, reason: str, body: bytes) -> None:
        super().__init__(f"{status} {reason}")
        self.status = status
        self.reason = reason
        self.body = body


class Transport:
    """The connections to one server. All methods may be called in several threads."""

    def __init__(self, access: Access, user_agent: str) -> None:
        """Raises ConfigError for certificates that cannot be used."""
        import urllib3

        self._server = access.server
        self._authorization = _Authorization(access)
        self._headers = {"User-Agent": user_agent, "Accept": "application/json"}
        options: dict[str, Any] = {"maxsize": CONNECTIONS, "retries": False}
        if access.server.startswith("https:"):
            options["ssl_context"] = _tls(access)  # one for all: each has the system's tables, some 0.8 MiB
            options["server_hostname"] = access.server_name or None
            options["assert_hostname"] = (access.server_name or None) if access.verify else False
        self._pool = urllib3.ProxyManager(access.proxy, **options) if access.proxy else urllib3.PoolManager(**options)

    def open(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        timeout_seconds: tuple[float, float],
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> BaseHTTPResponse:
        """Send a request and return the answer once it begins; the caller reads it.

        Parameters that are None are left out. ``timeout_seconds``: to connect, and for each read. Raises
        HttpStatusError, what urllib3 raises, and ConfigError where the token cannot be read.
        """
        import urllib3

        headers = {**self._headers, **self._authorization.header()}
        if body is not None:
            headers["Content-Type"] = content_type
        given = urlencode({name: value for name, value in query.items() if value is not None})
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
        if not 200 <= response.status < 300:
            with contextlib.closing(response):
                said = response.read(MOST_BYTES_OF_REFUSAL)
            raise HttpStatusError(response.status, response.reason or "", said)
        return response


class _Authorization:
    """The header that says who asks."""

    def __init__(self, access: Access) -> None:
        self._fixed = access.authorization
        self._file = Path(access.token_file) if access.token_file else None
        self._lock = threading.Lock()
        self._token, self._read_at = "", 0.0

    def header(self) -> dict[str, str]:
        if self._file is None:
            return {"Authorization": self._fixed} if self._fixed else {}
        with self._lock:
            if not self._token or time.monotonic() - self._read_at > TOKEN_SECONDS:
                try:
                    self._token, self._read_at = self._file.read_text().strip(), time.monotonic()
                except (OSError, ValueError) as error:
                    raise ConfigError(f"{self._file} cannot be read: {error}") from error
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
    """Load the client's certificate: OpenSSL reads files only, so it gets one that no directory has."""
    descriptor = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{access.certificate}\n{access.key}")
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
