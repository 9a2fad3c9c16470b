"""A small asyncio HTTP client: tests see what any peer of the simulated API server sees on the wire."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from drabridge.sim.apiserver.server import SimApiServer
from tests.support.waiting import PATIENCE

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: Any


class Client:
    """One connection per request, as the simplest client does."""

    def __init__(self, api: SimApiServer, *, token: str | None = None, agent: str = "Python-urllib/3.11") -> None:
        self._api = api
        self._token = api.admin_token() if token is None else token
        self._agent = agent

    async def _open(
        self, method: str, path: str, body: Any, content_type: str | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        where = urlsplit(self._api.url)
        context = None
        if self._api.certificate is not None:
            context = ssl.create_default_context(cadata=self._api.certificate.decode())
        reader, writer = await asyncio.open_connection("127.0.0.1", where.port, ssl=context, limit=64 * 1024 * 1024)
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: sim", f"User-Agent: {self._agent}", f"Content-Length: {len(data)}"]
        if self._token:
            lines.append(f"Authorization: Bearer {self._token}")
        if content_type:
            lines.append(f"Content-Type: {content_type}")
        writer.write(("\r\n".join(lines) + "\r\nConnection: close\r\n\r\n").encode() + data)
        return reader, writer

    @staticmethod
    async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
        text = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *rest = text.rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in rest)}
        return int(first.split()[1]), headers

    async def __call__(
        self, method: str, path: str, body: Any = None, content_type: str | None = "application/json"
    ) -> Response:
        async with asyncio.timeout(20 * PATIENCE):
            reader, writer = await self._open(method, path, body, content_type)
            try:
                status, headers = await self._head(reader)
                if headers.get("transfer-encoding") == "chunked":
                    return Response(status, headers, [json.loads(line) async for line in _lines(reader)])
                data = await reader.readexactly(int(headers["content-length"]))
                is_json = data[:1] in (b"{", b"[")
                return Response(status, headers, json.loads(data) if is_json else data)
            finally:
                writer.close()

    @asynccontextmanager
    async def watch(self, path: str) -> AsyncIterator[AsyncIterator[Any]]:
        """Events as they come. The iterator raises ConnectionError when the stream is cut."""
        reader, writer = await self._open("GET", path, None, None)
        try:
            status, _ = await self._head(reader)
            assert status == 200
            yield (json.loads(line) async for line in _lines(reader))
        finally:
            writer.close()


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Lines of a chunked body."""
    rest = b""
    while True:
        try:
            size = int((await reader.readuntil(b"\r\n")).strip(), 16)
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the stream was cut") from error
        data = await reader.readexactly(size)
        await reader.readexactly(2)
        if size == 0:
            assert rest == b""
            return
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line


async def take(events: AsyncIterator[Any], count: int, seconds: float = 5.0) -> list[Any]:
    """The next ``count`` events; TimeoutError when they do not come."""
    async with asyncio.timeout(seconds * PATIENCE):
        return [await anext(events) for _ in range(count)]


def slice_body(name: str, *devices: Any, driver: str = "d.example.com", node: str = "node-a", **spec: Any) -> Any:
    """A ResourceSlice; a device given as text is one without attributes."""
    listed = [{"name": one} if isinstance(one, str) else one for one in devices]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            **({"devices": listed} if listed else {}),
            **spec,
        },
    }


def claim_body(name: str, device_class: str = "gpu", **exactly: Any) -> Any:
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class, **exactly}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }
