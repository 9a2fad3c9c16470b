"""Reach the API server with what a pod or a kubeconfig has: one GET at a time, by the standard library."""

from __future__ import annotations

import base64
import binascii
import http.client
import os
import socket
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from podresources.credential import defect, yaml_problem
from podresources.resolve.files import UnreadableFileError, read_named
from podresources.resolve.http_request import request

TIMEOUT_SECONDS = 5.0  # to connect
ANSWER_SECONDS = 30.0  # for a whole request: a server that sends a byte now and then ends here
MOST_BYTES = 64 << 20
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ApiServerError(Exception):
    """The API server cannot be asked, or did not answer; the text says why and what to do."""


class ApiServer(Struct, frozen=True):
    """An API server's address, and our credentials."""

    host: str
    port: int
    context: ssl.SSLContext | None  # None for plain HTTP, as `kubectl proxy` serves
    token: str = ""

    def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body. Raises ApiServerError."""
        headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
        ends = time.monotonic() + ANSWER_SECONDS
        address = (self.host, self.port)
        try:
            with socket.create_connection(address, TIMEOUT_SECONDS) as plain:
                peer = plain if self.context is None else self.context.wrap_socket(plain, server_hostname=self.host)
                with peer:
                    return request(peer, address, path, headers=headers, ends=ends, most_bytes=MOST_BYTES)
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise ApiServerError(f"{self.host}:{self.port} does not answer: {reason}") from error
        except ValueError:  # its text quotes what was not sent, such as a token
            raise ApiServerError("the request cannot be sent: HTTP does not allow its path or a header") from None


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
        return ApiServer(host, int(port), _context(str(account / "ca.crt")), _token(_text(token), str(token)))
    except (OSError, ValueError) as error:
        raise ApiServerError(f"the service account in {account} cannot be used: {error}") from error


def of_kubeconfig(path: Path) -> ApiServer:
    """Return the API server of a kubeconfig's current context. Raises ApiServerError."""
    import yaml
    from yaml import MarkedYAMLError, YAMLError

    try:
        data = read_named(path)
        if data is None:
            raise ApiServerError(f"there is no kubeconfig {path}")
        config = yaml.load(data, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 # the C one bounds depth
        context = _named(config, "contexts", config["current-context"])["context"]
        cluster = _named(config, "clusters", context["cluster"])["cluster"]
        user = _named(config, "users", context["user"])["user"]
        return _from(cluster, user, path.parent)
    except MarkedYAMLError as error:  # its own text quotes the line, which may have the token
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ApiServerError(f"kubeconfig {path} is no YAML: {yaml_problem(error.problem)}{line}") from None
    except (UnreadableFileError, YAMLError, OSError) as error:
        raise ApiServerError(f"kubeconfig {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError, StopIteration, RecursionError) as error:
        raise ApiServerError(f"kubeconfig {path} has no complete current context ({error!r})") from error


def _from(cluster: dict[str, Any], user: dict[str, Any], folder: Path) -> ApiServer:
    if "exec" in user or "auth-provider" in user:
        raise ApiServerError("the kubeconfig runs a program for its credentials; take one with a token or certificate")
    url = urlsplit(cluster["server"])
    token = _token(str(user["token"]), "the token") if user.get("token") else ""
    if not token and "tokenFile" in user:
        token = _token(_text(folder / user["tokenFile"]), str(user["tokenFile"]))
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
    return _text(folder / section[name]) if name in section else ""


def _text(path: Path) -> str:
    """Return the text of a file that the kubeconfig or kubelet names. Raises UnreadableFileError, a ValueError."""
    data = read_named(path)
    if data is None:
        raise UnreadableFileError(path, "it is not there")
    return data.decode()


def _token(text: str, where: str) -> str:
    """Return a token without the space around it. Raises ApiServerError, never quoting it."""
    found = text.strip()
    if why := defect(found):
        raise ApiServerError(f"{where} {why}")
    return found


def _context(cafile: str | None = None, cadata: str | None = None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=cafile, cadata=cadata)


def _load_client(context: ssl.SSLContext, pem: str) -> None:
    """Load a key from memory: OpenSSL takes only paths, and the key should not be on a disk."""
    descriptor = os.memfd_create("client.pem", os.MFD_CLOEXEC)
    with open(descriptor, "wb") as file:
        file.write(pem.encode())
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
