"""Reach the API server with what a pod or a kubeconfig has: one GET at a time, by the standard library alone."""

from __future__ import annotations

import base64
import binascii
import http.client
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from podresources.resolve.files import UnreadableFileError, read_named

TIMEOUT_SECONDS = 5.0  # for each step of a request
MOST_BYTES = 64 << 20
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ApiServerError(Exception):
    """The API server cannot be asked, or did not answer; the text says why and what to do."""


class ApiServer(Struct, frozen=True):
    """Where it is, and who asks."""

    host: str
    port: int
    context: ssl.SSLContext | None  # None for plain HTTP, as `kubectl proxy` serves
    token: str = ""

    def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body. Raises ApiServerError."""
        connection: http.client.HTTPConnection
        if self.context is None:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_SECONDS)
        else:
            connection = http.client.HTTPSConnection(
                self.host, self.port, timeout=TIMEOUT_SECONDS, context=self.context
            )
        headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read(MOST_BYTES + 1)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise ApiServerError(f"{self.host}:{self.port} does not answer: {reason}") from error
        finally:
            connection.close()
        if len(body) > MOST_BYTES:
            raise ApiServerError(f"the answer is larger than {MOST_BYTES:,} bytes")
        return response.status, body


def in_cluster(environment: Mapping[str, str] = os.environ, account: Path = SERVICE_ACCOUNT) -> ApiServer:
    """Return the API server as a pod reaches it. Raises ApiServerError."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    token = account / "token"
    if not host or not token.exists():
        raise ApiServerError(
            "this is no pod with a service account (automountServiceAccountToken); elsewhere name a --kubeconfig"
        )
    try:
        # A link of the projected volume, renewed by kubelet: read each time.
        return ApiServer(host, int(port), _context(str(account / "ca.crt")), token.read_text().strip())
    except (OSError, ValueError) as error:
        raise ApiServerError(f"the service account in {account} cannot be used: {error}") from error


def of_kubeconfig(path: Path) -> ApiServer:
    """Return the API server of a kubeconfig's current context. Raises ApiServerError."""
    from yaml import YAMLError, safe_load

    try:
        data = read_named(path)
        if data is None:
            raise ApiServerError(f"there is no kubeconfig {path}")
        config = safe_load(data)
        context = _named(config, "contexts", config["current-context"])["context"]
        cluster = _named(config, "clusters", context["cluster"])["cluster"]
        user = _named(config, "users", context["user"])["user"]
        return _from(cluster, user, path.parent)
    except (UnreadableFileError, YAMLError, OSError) as error:
        raise ApiServerError(f"kubeconfig {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError, StopIteration) as error:
        raise ApiServerError(f"kubeconfig {path} has no complete current context ({error!r})") from error


def _from(cluster: dict[str, Any], user: dict[str, Any], folder: Path) -> ApiServer:
    if "exec" in user or "auth-provider" in user:
        raise ApiServerError("the kubeconfig runs a program for its credentials; take one with a token or certificate")
    url = urlsplit(cluster["server"])
    token = str(user.get("token", ""))
    if not token and "tokenFile" in user:
        token = (folder / user["tokenFile"]).read_text().strip()
    if url.scheme == "http":
        return ApiServer(url.hostname or "", url.port or 80, None, token)
    authority = _pem(cluster, "certificate-authority", folder)
    context = _context(cadata=authority) if authority else _context()
    if certificate := _pem(user, "client-certificate", folder):
        _load_client(context, certificate + "\n" + _pem(user, "client-key", folder))
    return ApiServer(url.hostname or "", url.port or 443, context, token)


def _named(config: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    return next(entry for entry in config[kind] if entry["name"] == name)


def _pem(section: dict[str, Any], name: str, folder: Path) -> str:
    if data := section.get(f"{name}-data"):
        try:
            return base64.b64decode(data, validate=True).decode()
        except binascii.Error as error:
            raise ValueError(f"{name}-data: {error}") from error
    return (folder / section[name]).read_text() if name in section else ""


def _context(cafile: str | None = None, cadata: str | None = None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=cafile, cadata=cadata)


def _load_client(context: ssl.SSLContext, pem: str) -> None:
    """Load a key that is in no file: OpenSSL takes paths alone, and a disk should not have it."""
    descriptor = os.memfd_create("client.pem", os.MFD_CLOEXEC)
    with open(descriptor, "wb") as file:
        file.write(pem.encode())
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
