"""Servers that answer slowly, or quote what they should not: every answer has an end, and no error shows a token."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from drabridge.errors import ClusterError, ConfigError
from drabridge.kube import response, transport
from drabridge.kube.access import Access, credential, of_kubeconfig, of_service_account
from drabridge.kube.api import NODES, PODS, UnreachableError
from drabridge.kube.client import KubernetesCluster
from drabridge.kube.kubeconfig import read
from podresources.resolve import api_server

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
DRIPS = {
    "a body by its length": (HEAD + b"Content-Length: 1000000\r\n\r\n", b" "),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "until it hangs up": (HEAD + b"Connection: close\r\n\r\n", b" "),
    "a header without end": (HEAD + b"X-A: ", b"x"),
    "a status line without end": (b"HTTP/1.1 200 ", b"x"),
    "many continues": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@contextmanager
def dripping(head: bytes, piece: bytes) -> Iterator[int]:
    """Answer with ``head``, and then ten pieces a second for ever; yield the port."""
    over = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(head)
            while not over.wait(0.1):
                connection.sendall(piece)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threads.append(threading.Thread(target=answer, args=(server.accept()[0],), daemon=True))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threads = [threading.Thread(target=serve, daemon=True)]
        threads[0].start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


@pytest.mark.parametrize("drip", DRIPS)
@pytest.mark.parametrize("verb", ["get", "list"])
async def test_an_answer_that_has_no_end_is_given_up(monkeypatch: pytest.MonkeyPatch, drip: str, verb: str) -> None:
    """Each byte comes in time for its own read."""
    monkeypatch.setattr(response, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(transport, "HEAD_READS", 0.1)
    with dripping(*DRIPS[drip]) as port:
        cluster = KubernetesCluster(lambda: Access(f"http://127.0.0.1:{port}"), read_seconds=10.0)
        try:
            async with asyncio.timeout(120):
                with pytest.raises(UnreachableError):
                    await (cluster.get(NODES, "n") if verb == "get" else cluster.list(PODS))
        finally:
            cluster.close()


@pytest.mark.parametrize("drip", DRIPS)
async def test_the_client_of_podresources_gives_up_as_well(monkeypatch: pytest.MonkeyPatch, drip: str) -> None:
    monkeypatch.setattr(api_server, "ANSWER_SECONDS", 0.5)
    with dripping(*DRIPS[drip]) as port:
        server = api_server.ApiServer("127.0.0.1", port, None)
        async with asyncio.timeout(120):
            with contextlib.suppress(api_server.ApiServerError):  # what was cut off may be an answer without a length
                await asyncio.to_thread(server.get, "/")


SECRET = "eyJhbGciOiJSUzI1NiJ9.TOPSECRET.signature"
BROKEN = tuple(
    text.replace("SECRET", SECRET)
    for text in ("SECRET\nX: y", "a\r\nbSECRET", "SECRET\0", "SECRET\u2028x", "éSECRET", "SECRET\x7f", "SECRET\x1b[0m")
)


def kubeconfig(path: Path, user: dict[str, Any]) -> Path:
    named = {"clusters": ("cluster", {"server": "http://127.0.0.1:1"}), "users": ("user", user)}
    body: dict[str, Any] = {kind: [{"name": "x", one: given}] for kind, (one, given) in named.items()}
    body |= {"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}], "current-context": "x"}
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **body}))
    return path


@pytest.mark.parametrize("token", BROKEN)
@pytest.mark.parametrize("place", ["token", "tokenFile"])
def test_no_error_shows_a_token_that_cannot_be_sent(tmp_path: Path, token: str, place: str) -> None:
    if place == "tokenFile":
        (tmp_path / "token").write_text(token)
    path = kubeconfig(tmp_path / "kubeconfig", {place: token if place == "token" else str(tmp_path / "token")})
    for load in (read, api_server.of_kubeconfig):
        _shows_no_secret(lambda load=load: load(path))  # type: ignore[misc]


def test_no_error_of_the_program_that_reads_kubeconfigs_shows_a_token(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "kubeconfig", {"token": BROKEN[0]})
    _shows_no_secret(lambda: of_kubeconfig(path))


def _shows_no_secret(load: Callable[[], object]) -> None:
    with pytest.raises((ConfigError, api_server.ApiServerError)) as caught:
        load()
    assert SECRET not in "".join(map(str, (caught.value, repr(caught.value))))


@pytest.mark.parametrize("token", BROKEN)
async def test_a_service_account_s_token_is_checked_each_time_it_is_read(tmp_path: Path, token: str) -> None:
    (tmp_path / "ca.crt").write_text("")
    (tmp_path / "token").write_text(f"{SECRET}\n")
    pod = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    assert of_service_account(tmp_path, pod).token_file == str(tmp_path / "token")
    (tmp_path / "token").write_text(token)
    with pytest.raises(ConfigError) as caught:
        of_service_account(tmp_path, pod)
    assert SECRET not in str(caught.value)
    for access in Access("http://127.0.0.1:1", token_file=str(tmp_path / "token")), Access("http://127.0.0.1:1", token):
        cluster = KubernetesCluster(lambda access=access: access)  # type: ignore[misc]
        try:
            with pytest.raises(ClusterError) as refused:
                await cluster.get(NODES, "n")
        finally:
            cluster.close()
        assert SECRET not in str(refused.value)


async def test_an_error_of_sending_quotes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a check lets through: the HTTP library's own error has the header's text in it."""
    monkeypatch.setattr(transport, "credential", lambda text, where: text)
    cluster = KubernetesCluster(lambda: Access("http://127.0.0.1:1", f"Bearer {SECRET}\nx"))
    try:
        with pytest.raises(ClusterError, match="cannot be sent") as caught:
            await cluster.get(NODES, "n")
    finally:
        cluster.close()
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error}{error!r}"
        error = error.__cause__


def test_a_token_loses_the_space_around_it() -> None:
    assert credential(f" {SECRET}\n", "x") == SECRET
    with pytest.raises(ConfigError, match="is empty"):
        credential(" \n", "x")


def test_no_module_of_the_working_directory_is_imported(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "kubeconfig", {"token": SECRET})
    for name in ("msgspec", "kubernetes", "drabridge", "yaml"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nraise SystemExit(3)\n")
    program = "import sys; from pathlib import Path; from drabridge.kube.access import of_kubeconfig\n"
    program += "print(of_kubeconfig(Path(sys.argv[1])).server)"
    done = subprocess.run([sys.executable, "-P", "-c", program, path], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, (tmp_path / "ran").exists()) == ("http://127.0.0.1:1\n", False), done.stderr
