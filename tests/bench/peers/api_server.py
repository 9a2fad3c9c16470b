"""A real API server with nothing beside it: etcd and kube-apiserver on free ports, everything below one directory."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.bench.peers.programs import find, running, wait_for


@contextlib.contextmanager
def api_server(directory: Path) -> Iterator[Path]:
    """An administrator's kubeconfig. Raises NotHere where the programs are not."""
    etcd, server = find("etcd"), find("kube-apiserver")
    client, peer, port = (_free_port() for _ in range(3))
    key, certificates, token = directory / "sa.key", directory / "certificates", secrets.token_hex(16)
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    tokens, log = directory / "tokens.csv", directory / "kube-apiserver.log"
    tokens.write_text(f"{token},admin,admin,system:masters\n")
    address, store = f"https://127.0.0.1:{port}", f"http://127.0.0.1:{client}"
    listens = ["--listen-client-urls", store, "--advertise-client-urls", store]
    listens += ["--listen-peer-urls", f"http://127.0.0.1:{peer}", "--unsafe-no-fsync"]
    words = ["--etcd-servers", store, "--secure-port", str(port), "--bind-address", "127.0.0.1"]
    words += ["--cert-dir", certificates, "--token-auth-file", tokens, "--authorization-mode", "RBAC"]
    words += ["--service-account-key-file", key, "--service-account-signing-key-file", key]
    words += ["--service-account-issuer", "https://kubernetes.default.svc", "--service-cluster-ip-range", "10.0.0.0/24"]
    with (
        running([etcd, "--data-dir", directory / "etcd", *listens], directory / "etcd.log"),
        running([server, *words], log),
    ):
        authority = certificates / "apiserver.crt"
        wait_for(authority.is_file, log)
        wait_for(lambda: _answers(f"{address}/readyz", authority, token), log)
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(json.dumps(_kubeconfig(address, authority, token)))
        yield kubeconfig


def _kubeconfig(address: str, authority: Path, token: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": address, "certificate-authority": str(authority)}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def _answers(url: str, authority: Path, token: str) -> bool:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with contextlib.suppress(OSError, ssl.SSLError, urllib.error.URLError):
        context = ssl.create_default_context(cafile=str(authority))
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:
            return bool(answer.status == 200)
    return False


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
