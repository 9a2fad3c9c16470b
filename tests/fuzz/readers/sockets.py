"""Requests to a whole agent on its real sockets, and to the exporter: whatever comes, the next caller is answered."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from podresources.cli.metricsserver import MetricsServer
from tests.fuzz.reader import Form, Read, Reader
from tests.support.agent_checks import alive, plugin_socket
from tests.support.agent_on_cluster import bridge, claim_pod, limits_pod
from tests.support.agent_process import DRIVER, AgentProcess, address_of
from tests.support.waiting import HANG_SECONDS, PATIENCE

CALL_SECONDS = 10.0 * PATIENCE
SERVERS_OWN = frozenset({grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE})
"""Codes of a server that does not answer, failed or is gone."""
NO_MESSAGE = "DecodeError"  # gRPC's own words, with its own traceback, for bytes that are no message
MOST_MIB = 160  # of the agent: it begins with less than half


class Agent:
    """A node with an agent, in a loop and a thread of their own. A pod and a claim hold a device each."""

    def __init__(self) -> None:
        self.process: AgentProcess
        self.sockets: dict[str, Path] = {}
        self.held: dict[str, str] = {}
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),), daemon=True)

    def __enter__(self) -> Agent:
        self._thread.start()
        assert self._ready.wait(HANG_SECONDS), "the agent did not start"
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(HANG_SECONDS)

    async def _run(self) -> None:
        try:
            async with bridge() as (agent, cluster, _):
                await cluster.apply(limits_pod("holder") + "---\n" + claim_pod("claimant"))
                for name in ("holder", "claimant"):
                    await cluster.wait_pod(name)
                self.process = agent
                plugins = agent.root / "plugins" / DRIVER
                self.sockets = {
                    "v1beta1.DevicePlugin": plugin_socket(agent),
                    "pluginregistration.Registration": next((agent.root / "plugins_registry").glob("*.sock")),
                    "": next(one for one in plugins.glob("*.sock") if one != agent.control),
                }
                self.held = self._owners((await agent.status())["devices"])
                self._ready.set()
                await self._end.wait()
        except BaseException as error:
            self._error = error
            self._ready.set()

    @staticmethod
    def _owners(rows: list[dict[str, str]]) -> dict[str, str]:
        return {row["name"]: row["owner"] for row in rows if row["owner"] != "none"}

    def call(self, method: str, body: bytes) -> None:
        """Call a method of the socket that should have its service."""
        service = method.strip("/").partition("/")[0]
        path = self.sockets.get(service, self.sockets[""])
        with grpc.insecure_channel(f"unix:{path}", [("grpc.default_authority", "localhost")]) as channel:
            try:
                # A stream is read to its first message: its end is the agent's.
                # Without serializers bytes go as they are, which the stubs' types do not know.
                ask: Any = channel.unary_stream(method)
                calling = ask(body, timeout=CALL_SECONDS)
                next(iter(calling), None)
                calling.cancel()
            except grpc.RpcError as error:
                code, said = error.code(), error.details() or ""
                assert code not in SERVERS_OWN or NO_MESSAGE in said, (code, said)

    def unharmed(self) -> None:
        """It lives, answers, holds what it held, and logged no failure of its own."""
        process = self.process
        assert alive(process), process.text()[-3000:]
        answer = exchange(str(process.control), b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
        rows = json.loads(answer.partition(b"\r\n\r\n")[2])["devices"]
        now = self._owners(rows)
        assert {name: now.get(name) for name in self.held} == self.held, now
        failures = [line for line in process.text().splitlines() if "Traceback" in line and NO_MESSAGE not in line]
        assert not failures, failures[-1][-3000:]
        assert process.process is not None
        status = Path(f"/proc/{process.process.pid}/status").read_text()
        peak = next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM"))
        assert peak < MOST_MIB, f"{peak} MiB"


def exchange(address: str | tuple[str, int], data: bytes) -> bytes:
    """Send a request and return all that comes until the peer hangs up."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as peer:
        peer.settimeout(CALL_SECONDS)
        peer.connect(address)
        parts = []
        try:
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            while part := peer.recv(1 << 16):
                parts.append(part)
        except TimeoutError:
            raise
        except OSError:  # it hung up first
            pass
        return b"".join(parts)


@contextmanager
def agent_calls(root: Path) -> Iterator[Read]:
    """gRPC on the sockets of the device plugin, of the registration and of DRA."""
    with Agent() as agent:
        count = 0

        def read(data: bytes) -> None:
            nonlocal count
            method, _, body = data.partition(b"\n")
            agent.call(_method(method), body)
            count += 1
            if count % 20 == 0:
                agent.unharmed()

        yield read
        agent.unharmed()


def _method(written: bytes) -> str:
    """A method as a client can send it: printable ASCII."""
    text = written.decode("ascii", "replace").replace("\ufffd", "?")
    return "/" + "".join(one for one in text if one.isprintable()).lstrip("/")


@contextmanager
def agent_http(root: Path) -> Iterator[Read]:
    """HTTP on the control socket and on the port."""
    with Agent() as agent:
        host, _, port = address_of(agent.process).rpartition(":")
        count = 0

        def read(data: bytes) -> None:
            nonlocal count
            for address in (str(agent.process.control), (host, int(port))):
                answer = exchange(address, data)
                assert not answer or answer.startswith(b"HTTP/1.1 "), answer[:200]
                assert not answer.startswith(b"HTTP/1.1 500"), answer[:500]
            count += 1
            if count % 20 == 0:
                agent.unharmed()

        yield read
        agent.unharmed()


@contextmanager
def exporter(root: Path) -> Iterator[Read]:
    """``podresources export``'s port."""
    server = MetricsServer(("127.0.0.1", 0), CollectorRegistry())
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    address = ("127.0.0.1", server.server_port)

    def read(data: bytes) -> None:
        exchange(address, data)
        with urllib.request.urlopen(f"http://127.0.0.1:{address[1]}/metrics", timeout=CALL_SECONDS) as answer:
            assert answer.status == 200

    try:
        yield read
    finally:
        server.shutdown()
        server.server_close()


READERS = (
    Reader(
        "agent-grpc",
        Form.MESSAGE,
        "gRPC calls to the agent: device plugin, registration, DRA",
        agent_calls,
        processes=True,
    ),
    Reader("agent-http", Form.HTTP, "HTTP requests to the agent", agent_http, processes=True),
    Reader("exporter-http", Form.HTTP, "HTTP requests to podresources export", exporter),
)
