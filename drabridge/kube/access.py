"""Find the API server and our credentials: from a pod's service account, or from a kubeconfig."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.request import getproxies, proxy_bypass

import msgspec
from msgspec import Struct

from drabridge.errors import ConfigError
from drabridge.system.paths import SERVICE_ACCOUNT
from podresources.credential import defect
from podresources.resolve.files import read_named

KUBECONFIG_SECONDS = 60.0  # a kubeconfig may name a program that fetches a token


class Access(Struct, frozen=True, omit_defaults=True, tag="access"):
    """One API server, and our credentials. Certificates and the key are PEM text."""

    server: str  # https://10.0.0.1:443
    authorization: str = ""  # the header's value
    token_file: str = ""  # in place of ``authorization``: the token is read again when it is a minute old
    certificate: str = ""  # the client's; ``key`` belongs to it
    key: str = ""
    authorities: str = ""  # CA certificates for the server's certificate; "": the system's
    server_name: str = ""  # name in the server's certificate, if it is not the host of ``server``
    verify: bool = True  # whether to verify the server's certificate
    proxy: str = ""


class NoAccess(Struct, frozen=True, tag="refused"):
    """There is no access, and why."""

    reason: str


def credential(text: str, where: str) -> str:
    """Return a token or header value without surrounding space. Raises ConfigError, whose text never quotes it."""
    found = text.strip()
    if why := defect(found):
        raise ConfigError(f"{where} {why}")
    return found


def of_service_account(directory: Path = SERVICE_ACCOUNT, environ: Mapping[str, str] | None = None) -> Access:
    """Return the access that every pod has. Raises ConfigError outside of a pod, or without a service account."""
    variables = os.environ if environ is None else environ
    host, port = variables.get("KUBERNETES_SERVICE_HOST", ""), variables.get("KUBERNETES_SERVICE_PORT", "")
    token, authorities = directory / "token", directory / "ca.crt"
    try:
        if not host or not port:
            raise ValueError("KUBERNETES_SERVICE_HOST and _PORT are not set")
        token_of(token)
        text = (read_named(authorities) or b"").decode()
    except (OSError, ValueError, ConfigError) as error:
        raise ConfigError(
            f"this is not a pod with a service account: {error}",
            hint="Outside a cluster give --kubeconfig, or switch DRA off (dra.enabled: false)",
        ) from error
    proxies = {} if proxy_bypass(host) else getproxies()
    return Access(
        f"https://{f'[{host}]' if ':' in host else host}:{port}",
        token_file=str(token),
        authorities=text,
        proxy=proxies.get("https") or proxies.get("all") or "",
    )


def token_of(path: Path) -> str:
    """Return the token in a file. Raises ConfigError, whose text never quotes it."""
    try:
        data = read_named(path)
    except ValueError as error:
        raise ConfigError(f"{error}") from error
    if data is None:
        raise ConfigError(f"{path} is not there")
    return credential(data.decode("utf-8", "replace"), str(path))


def of_kubeconfig(path: Path, context: str | None = None) -> Access:
    """Return the access that a kubeconfig gives; ``context`` in place of its current one. Raises ConfigError.

    A separate process reads it with the Kubernetes client, which would keep 13 MiB in this one (measured, 37.0).
    """
    command = [sys.executable, "-P", "-m", "drabridge.kube.kubeconfig", str(path), *([context] if context else [])]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=KUBECONFIG_SECONDS, check=False)
        answer = msgspec.json.decode(done.stdout, type=Access | NoAccess)
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} could not be read: {error}") from error
    if isinstance(answer, NoAccess):
        raise ConfigError(answer.reason)
    return answer
