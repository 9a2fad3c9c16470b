"""``python -m tests.bench.pod_watchers``: what watchers of nominated pods cost a real API server.

Each agent with a shared device watches the pods that name its node in ``status.nominatedNodeName``. The API server
filters every pod event of the cluster once for each. Here some thousand events meet watchers that none of them is
for, and the CPU time of kube-apiserver is read from /proc: run it on the server's machine, with nothing else going on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import statistics
import time
from pathlib import Path
from typing import Any

from tests.bench import processes

NAMESPACE = "default"
WATCH = "/api/v1/pods?watch=1&allowWatchBookmarks=true&resourceVersion=0&fieldSelector=status.nominatedNodeName%3D"
PODS = 40
CALM_SECONDS = 3.0
BEGIN_SECONDS = 120.0  # for all watches together
BUSY = (25, 250)  # pod events in a second: 5 and 50 new pods, each with five events
CORE = 0.5  # of one core is what these watches may take


class Server:
    """One API server: requests over connections of their own, and its CPU time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.host, _, self.port = options.server.removeprefix("https://").partition(":")
        self.tls = ssl.create_default_context(cafile=str(options.ca))
        self.tls.load_cert_chain(options.cert, options.key)
        self.pid = options.pid

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, int(self.port), ssl=self.tls)

    def cpu_seconds(self) -> float:
        return processes.cpu_seconds(self.pid)


class Client:
    """One connection that asks one thing after the other."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> int:
        """Return the status. Raises OSError, asyncio.IncompleteReadError."""
        if self._streams is None:
            self._streams = await self._server.connect()
        reader, writer = self._streams
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: api\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        if any(line.startswith("transfer-encoding: chunked") for line in lines):
            while size := int(await reader.readline(), 16):
                await reader.readexactly(size + 2)
            await reader.readline()
        else:
            length = next(line for line in lines if line.startswith("content-length:"))
            await reader.readexactly(int(length.partition(":")[2]))
        return int(lines[0].split()[1])


def _pod(index: int) -> dict[str, Any]:
    """About 10 KB of JSON, as pods of deployments with some variables and a sidecar are. No scheduler takes it."""
    variables = [{"name": f"SETTING_{number}", "value": "x" * 40} for number in range(30)]
    container = {"image": "registry.example.com/team/service:1.0", "env": variables}
    return {
        "metadata": {"name": f"watched-{index}", "namespace": NAMESPACE, "labels": {"app": "pod-watchers"}},
        "spec": {
            "schedulerName": "nobody",
            "containers": [{"name": name, **container} for name in ("main", "sidecar")],
        },
    }


async def _watch(server: Server, node: str, begun: asyncio.Semaphore) -> None:
    """Watch until cancelled; releases ``begun`` when the server has answered. An end of the watch is an error."""
    reader, writer = await server.connect()
    try:
        writer.write(f"GET {WATCH}{node} HTTP/1.1\r\nHost: api\r\n\r\n".encode())
        answer = (await reader.readline()).split()
        assert answer[1:2] == [b"200"], f"a watch is answered {answer}"
        begun.release()
        while await reader.read(65536):
            pass
        raise ConnectionError("the server ended a watch, so fewer watched than were asked for")
    finally:
        writer.close()


async def _events(client: Client, number: int, turn: str) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/watched-{{}}/status"
    for count in range(number):
        body = {"status": {"message": f"{turn} {count}"}}
        status = await client.ask("PATCH", path.format(count % PODS), body, "application/merge-patch+json")
        assert status == 200, f"PATCH answered {status}"


async def _measure(server: Server, clients: list[Client], watchers: int, events: int, turn: str) -> float:
    """CPU seconds of the server for so many events while so many watch."""
    begun = asyncio.Semaphore(0)
    watching = [asyncio.create_task(_watch(server, f"node-{number}", begun)) for number in range(watchers)]
    async with asyncio.timeout(BEGIN_SECONDS):
        for _ in watching:  # or else their TLS handshakes, some ms of CPU each, would be counted
            await begun.acquire()
    await asyncio.sleep(CALM_SECONDS)
    before, began = server.cpu_seconds(), time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number, client in enumerate(clients):
            group.create_task(_events(client, events // len(clients), f"{turn} {number}"))
    took, used = time.monotonic() - began, server.cpu_seconds() - before
    idle_before = server.cpu_seconds()
    await asyncio.sleep(CALM_SECONDS)
    idle = (server.cpu_seconds() - idle_before) / CALM_SECONDS  # what it does anyway, watchers' bookmarks included
    for task in watching:
        assert not task.done(), task.exception()
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    return used - idle * took


async def measure(options: argparse.Namespace) -> None:
    """Print a line for each measurement, the fitted cost, and what follows for large clusters."""
    server = Server(options)
    clients = [Client(server), Client(server)]
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    try:
        for index in range(PODS):
            status = await clients[0].ask("POST", pods, _pod(index))
            assert status in (201, 409), f"POST answered {status}"
        found: list[tuple[int, float]] = []
        for turn in range(options.rounds):
            for watchers in options.watchers if turn % 2 == 0 else options.watchers[::-1]:
                seconds = await _measure(server, clients, watchers, options.events, f"{turn}/{watchers}")
                per_thousand = seconds * 1000 / options.events
                found.append((watchers, per_thousand))
                print(f"{watchers:4} watchers: {per_thousand:6.3f} CPU seconds per 1,000 pod events", flush=True)
        line = statistics.linear_regression(*zip(*found, strict=True))
        micros = line.slope * 1000
        print(
            f"one more watcher costs {micros:.2f} us of CPU per pod event (and an event {line.intercept:.3f} ms alone)"
        )
        for rate in BUSY:
            most = CORE / (rate * micros / 1e6) if micros > 0 else float("inf")
            print(f"at {rate} pod events/s: {CORE} core / ({rate}/s x {micros:.2f} us) = {most:,.0f} watchers")
    finally:
        cleaner = Client(server)
        for index in range(PODS):
            await cleaner.ask("DELETE", f"{pods}/watched-{index}?gracePeriodSeconds=0")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.pod_watchers",
        description="CPU time of a kube-apiserver per pod event, by the number of watchers of nominated pods.",
        epilog="example: python -m tests.bench.pod_watchers --pid $(pgrep kube-apiserver) "
        "--ca ca.crt --cert admin.crt --key admin.key",
    )
    parser.add_argument("--server", default="https://127.0.0.1:6443", metavar="URL")
    for name, what in (
        ("ca", "the server's authority"),
        ("cert", "an administrator's certificate"),
        ("key", "its key"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, metavar="FILE", help=what)
    parser.add_argument("--pid", type=int, required=True, help="of kube-apiserver, on this machine")
    parser.add_argument("--watchers", type=int, nargs="+", default=[0, 50, 100, 200, 1000, 2000], metavar="N")
    parser.add_argument("--events", type=int, default=4000, metavar="N", help="in each measurement (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2, metavar="N")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
