"""The agent's HTTP port with normal, slow and hostile clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import drabridge.system.http as http
from drabridge.system.http import HttpServer, Request, Response
from tests.support.servers import hangs_up
from tests.support.waiting import HANG_SECONDS, PATIENCE, until


async def _slow(_: Request) -> Response:
    await asyncio.sleep(0)
    return Response("late\n")


def _broken(_: Request) -> Response:
    raise ValueError("secret")


ROUTES: dict[tuple[str, str], http.Handler] = {
    ("GET", "/"): lambda request: Response.json({"query": dict(request.query)}),
    ("GET", "/late"): _slow,
    ("GET", "/broken"): _broken,
    ("GET", "/big"): lambda _: Response(b"x" * (64 << 20)),
    ("GET", "/sized"): lambda request: Response(b"x" * int(request.query["bytes"])),
    ("POST", "/echo"): lambda request: Response(request.body),
}


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = HttpServer(ROUTES)
    _, number = await server.listen_tcp("127.0.0.1", 0)
    yield number
    await server.close()


async def ask(port: int, raw: bytes) -> tuple[int, dict[str, str], bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    try:
        answer = await asyncio.wait_for(reader.read(), 10 * PATIENCE)
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    return int(lines[0].split()[1]), dict(line.lower().split(": ", 1) for line in lines[1:]), body


async def test_get_head_post(port: int) -> None:
    status, headers, body = await ask(port, b"GET /?a=1&b= HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (status, headers["content-type"], json.loads(body)) == (
        200,
        "application/json",
        {"query": {"a": "1", "b": ""}},
    )
    assert (await ask(port, b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n"))[2] == b"late\n"
    status, headers, body = await ask(port, b"HEAD /late HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (status, headers["content-length"], body) == (200, "5", b"")
    assert (await ask(port, b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"))[2] == b"abc"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"DELETE / HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"\x16\x03\x01 tls hello\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # RFC 9112, section 3.2: a Host is required
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400),
        (b"GET http://[bad HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * http.MAX_HEAD_BYTES + b"\r\n\r\n", 431),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 411),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
    ],
)
async def test_refusals(port: int, raw: bytes, status: int) -> None:
    assert (await ask(port, raw))[0] == status


async def test_an_error_inside_leaks_nothing(port: int) -> None:
    status, _, body = await ask(port, b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status == 500
    assert b"secret" not in body


async def test_a_thousand_silent_connections_do_not_lock_others_out(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubelet's probe gives up after a second: it must not wait until the silent ones have had their time."""
    monkeypatch.setattr(http, "READ_SECONDS", 600.0)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(1000)]
    status, _, _ = await asyncio.wait_for(ask(port, b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n"), 10 * PATIENCE)
    assert status == 200
    ended = await asyncio.gather(*(asyncio.wait_for(_hung_up(reader), 3 * PATIENCE) for reader, _ in silent[:800]))
    assert all(ended)
    for _, writer in silent:
        writer.close()


async def _hung_up(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionError):
        return await reader.read() == b""
    return True


async def test_a_slow_reader_loses_its_place(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "WRITE_SECONDS", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
    received = 0
    with contextlib.suppress(ConnectionError):
        while chunk := await asyncio.wait_for(reader.read(1 << 16), 5 * PATIENCE):
            received += len(chunk)
            await asyncio.sleep(0.005)  # 5 s for all of it
    assert received < 64 << 20
    writer.close()
    assert (await ask(port, b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n"))[0] == 200


@pytest.mark.parametrize("raw", [b"9" * 5_000, b"-1", b"\xb2", b"+1", b"1_0", b"99999"])
async def test_an_invalid_content_length_is_answered(port: int, raw: bytes, caplog: pytest.LogCaptureFixture) -> None:
    status, _, _ = await ask(port, b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: " + raw + b"\r\n\r\n")
    assert status in (411, 413)
    assert not caplog.records


@pytest.mark.parametrize("flood", [b"", b"GET /late HTTP/1.1\r\n"], ids=["silent", "half a request"])
async def test_a_flood_takes_no_place_of_another_address(port: int, flood: bytes) -> None:
    """As of a probe: kubelet connects, and its request comes after 200 connections of somebody else."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    others = [await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)) for _ in range(200)]
    for _, other in others:
        other.write(flood)
    assert (await ask(port, b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n"))[0] == 200
    writer.write(b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 10 * PATIENCE)).endswith(b"late\n")
    for _, other in others:
        other.close()
    writer.close()


async def test_what_the_kernel_does_not_take_keeps_no_connection_open(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers of all sizes, to clients that read nothing: of some, the last 64 KiB only find no room in the kernel."""
    monkeypatch.setattr(http, "WRITE_SECONDS", 0.2)

    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.socket()) for _ in range(http.MAX_CONNECTIONS)]
        for index, client in enumerate(clients):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            client.sendall(b"GET /sized?bytes=%d HTTP/1.1\r\nHost: x\r\n\r\n" % ((index + 1) * 48 * 1024))
            await asyncio.sleep(0.005)
        await until(lambda: open_files() == before + len(clients), 5, "the server keeps connections open")


async def test_a_client_that_sent_a_request_keeps_its_place_before_a_silent_one() -> None:
    gate = asyncio.Event()

    async def held(_: Request) -> Response:
        await gate.wait()
        return Response("held\n")

    server = HttpServer({("GET", "/held"): held})
    _, port = await server.listen_tcp("127.0.0.1", 0)
    asking = asyncio.create_task(ask(port, b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n"))
    while not any(connection.asked for connection in server._connections.values()):
        await asyncio.sleep(0.01)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
    gate.set()
    assert (await asking)[2] == b"held\n"
    for _, writer in silent:
        writer.close()
    await server.close()


@pytest.mark.parametrize("turns", range(6))
async def test_nobody_is_served_after_the_end(turns: int) -> None:
    server = HttpServer(ROUTES)
    assert await hangs_up(await server.listen_tcp("127.0.0.1", 0), turns, server.close)


async def test_unix_socket_is_for_root_only(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.touch()  # stale
    server = HttpServer(ROUTES)
    await server.listen_unix(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.read()).endswith(b"late\n")
    writer.close()
    await server.close()


@pytest.mark.parametrize("turns", range(6))
async def test_who_has_just_come_is_not_forgotten_when_the_socket_is_renewed(tmp_path: Path, turns: int) -> None:
    """Served, or hung up on by the kernel if the loop had not seen it; in no case left waiting."""
    server = HttpServer(ROUTES)
    await server.listen_unix(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(HANG_SECONDS)
        client.connect(str(tmp_path / "s"))
        for _ in range(turns):
            await asyncio.sleep(0)
        (tmp_path / "s").unlink()
        assert await server.renew_unix(tmp_path / "s")
        with contextlib.suppress(ConnectionError):
            client.sendall(b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await asyncio.to_thread(client.recv, 1000)
            assert not answer or answer.startswith(b"HTTP/1.1 200")
    await server.close()
