"""A real API server with nothing beside it: etcd and kube-apiserver on free ports, everything below one directory."""

from __future__ import annotations

import contextlib
import json
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.bench.peers.programs import find, running, wait_for
from tests.support.servers import free_port


@contextlib.contextmanager
def api_server(directory: Path) -> Iterator[Path]:
    """An administrator's kubeconfig. Raises NotHere where the programs are not."""
    etcd, server = find("etcd"), find("kube-apiserver")
    client, peer, port = (free_port() for _ in range(3))
    certificates, log = directory / "certificates", directory / "kube-apiserver.log"
    certificates.mkdir()
    _make_keys(certificates)
    key, own = certificates / "sa.key", certificates / "ca.crt"
    address, store = f"https://127.0.0.1:{port}", f"http://127.0.0.1:{client}"
    listens = ["--listen-client-urls", store, "--advertise-client-urls", store]
    listens += ["--listen-peer-urls", f"http://127.0.0.1:{peer}", "--unsafe-no-fsync"]
    words: list[str | Path] = ["--etcd-servers", store, "--secure-port", str(port), "--bind-address", "127.0.0.1"]
    words += ["--cert-dir", certificates, "--client-ca-file", own, "--authorization-mode", "RBAC"]
    words += ["--service-account-key-file", key, "--service-account-signing-key-file", key]
    words += ["--service-account-issuer", "https://kubernetes.default.svc", "--service-cluster-ip-range", "10.0.0.0/24"]
    with (
        running([etcd, "--data-dir", directory / "etcd", *listens], directory / "etcd.log"),
        running([server, *words], log),
    ):
        authority = certificates / "apiserver.crt"
        wait_for(authority.is_file, log)
        wait_for(lambda: _answers(f"{address}/readyz", authority, certificates), log)
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(json.dumps(_kubeconfig(address, authority, certificates)))
        yield kubeconfig


def _make_keys(directory: Path) -> None:
    """``sa.key`` for service accounts, and ``admin.crt`` and ``.key`` of an administrator, whom ``ca.crt`` signed."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=directory)

    openssl("genrsa", "-out", "sa.key", "2048")
    new = ("-newkey", "rsa:2048", "-nodes")
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=ca")
    openssl("req", *new, "-keyout", "admin.key", "-out", "admin.csr", "-subj", "/O=system:masters/CN=admin")
    signer = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial")
    openssl("x509", "-req", "-in", "admin.csr", *signer, "-out", "admin.crt", "-days", "2")


def _kubeconfig(address: str, authority: Path, keys: Path) -> dict[str, object]:
    user = {"client-certificate": str(keys / "admin.crt"), "client-key": str(keys / "admin.key")}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": address, "certificate-authority": str(authority)}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def _answers(url: str, authority: Path, keys: Path) -> bool:
    with contextlib.suppress(OSError, ssl.SSLError, urllib.error.URLError):
        context = ssl.create_default_context(cafile=str(authority))
        context.load_cert_chain(keys / "admin.crt", keys / "admin.key")
        with urllib.request.urlopen(url, timeout=5, context=context) as answer:
            return bool(answer.status == 200)
    return False
