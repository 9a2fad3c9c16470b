"""Read the node's own ResourceSlices from the API server: the one source that needs credentials.

A thread reads them every REFRESH_SECONDS; resolvers take the last result and never wait. The field
selector ``spec.nodeName`` keeps other nodes' slices away (pkg/registry/resource/resourceslice/strategy.go: it and
``spec.driver`` can be selected on). Needed: list on ``resourceslices`` of ``resource.k8s.io``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from threading import Event, Thread
from typing import Any
from urllib.parse import urlencode

import msgspec
from msgspec import Struct, field

from podresources.model import PodAllocation
from podresources.resolve.api_server import ApiServer, ApiServerError
from podresources.resolve.facts import NOTHING, DeviceFacts, from_attributes

REFRESH_SECONDS = 60.0
"""Slices change when hardware does. A new device is resolved by other sources, or after the next reading."""

VERSIONS = ("v1", "v1beta2", "v1beta1")
PAGE = 100  # slices; one has at most 128 devices, and is at most 1.5 MiB
MOST_SLICES = 5_000
LIST_SECONDS = 30.0

Key = tuple[str, str, str]  # driver, pool, device


class _Basic(Struct, frozen=True):
    attributes: dict[str, Any] = field(default_factory=dict)


class _Device(Struct, frozen=True):
    name: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    basic: _Basic | None = None  # v1beta1 only


class _Pool(Struct, frozen=True):
    name: str = ""
    generation: int = 0


class _Spec(Struct, frozen=True):
    driver: str = ""
    pool: _Pool = field(default_factory=_Pool)
    devices: tuple[_Device, ...] | None = ()


class _Slice(Struct, frozen=True):
    spec: _Spec = field(default_factory=_Spec)


class _Meta(Struct, frozen=True):
    next: str = field(default="", name="continue")


class _List(Struct, frozen=True):
    items: tuple[_Slice, ...] | None = ()
    metadata: _Meta = field(default_factory=_Meta)


class Slices:
    """The devices of one node's slices, read by a thread of their own."""

    def __init__(self, connect: Callable[[], ApiServer], node: str) -> None:
        """``connect`` is called for each reading, because tokens are renewed; it raises ApiServerError."""
        self._connect = connect
        self._node = node
        self._facts: dict[Key, DeviceFacts] = {}
        self._error = "the API server has not answered yet"
        self._read_once = Event()
        self._stop = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin to read, again and again until ``close``."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="resourceslices", daemon=True)
            self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait until the slices were read once, or could not be; for a command that asks once."""
        self._read_once.wait(seconds)

    def close(self) -> None:
        """End the thread, unless it is in a request: that ends by its own time limit."""
        self._stop.set()

    def problems(self) -> list[str]:
        """Return a sentence if the last reading failed."""
        return [f"ResourceSlices: {self._error}"] if self._error else []

    def facts(self, held: PodAllocation) -> DeviceFacts:
        """Return what the slices say of a claim's device."""
        return self._facts.get((held.driver or "", held.pool or "", held.device or ""), NOTHING)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._facts = read(self._connect(), self._node)
                self._error = ""
            except ApiServerError as error:
                self._error = str(error)  # what was read before stays: hardware changes seldom
            self._read_once.set()
            self._stop.wait(REFRESH_SECONDS)


def read(server: ApiServer, node: str) -> dict[Key, DeviceFacts]:
    """Return what is published of each device of the node. Raises ApiServerError."""
    newest: dict[tuple[str, str], int] = {}
    found: dict[Key, tuple[int, DeviceFacts]] = {}
    for spec in _specs(server, node):
        pool = (spec.driver, spec.pool.name)
        newest[pool] = max(spec.pool.generation, newest.get(pool, 0))
        for device in spec.devices or ():
            attributes = device.basic.attributes if device.basic else device.attributes
            key = (*pool, device.name)
            if key not in found or found[key][0] < spec.pool.generation:
                found[key] = (spec.pool.generation, from_attributes(spec.driver, attributes))
    return {key: facts for key, (generation, facts) in found.items() if generation == newest[key[:2]]}


def _specs(server: ApiServer, node: str) -> Iterator[_Spec]:
    deadline = time.monotonic() + LIST_SECONDS
    version = next(_served(server))
    query = {"fieldSelector": f"spec.nodeName={node}", "limit": str(PAGE)}
    for _ in range(MOST_SLICES // PAGE):
        status, body = server.get(f"/apis/resource.k8s.io/{version}/resourceslices?{urlencode(query)}")
        if status != HTTPStatus.OK:
            raise ApiServerError(_refusal(status))
        try:
            page = msgspec.json.decode(body, type=_List)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise ApiServerError(f"the answer is no list of ResourceSlices: {error}") from error
        yield from (item.spec for item in page.items or ())
        if not page.metadata.next:
            return
        if time.monotonic() > deadline:
            raise ApiServerError(f"the list of resourceslices did not end within {LIST_SECONDS:g} s")
        query["continue"] = page.metadata.next
    raise ApiServerError(f"the node has more than {MOST_SLICES} resourceslices")


def _served(server: ApiServer) -> Iterator[str]:
    for version in VERSIONS:
        status, _ = server.get(f"/apis/resource.k8s.io/{version}")
        if status == HTTPStatus.OK:
            yield version
        elif status != HTTPStatus.NOT_FOUND:
            raise ApiServerError(_refusal(status))
    raise ApiServerError("the API server has no resource.k8s.io; DRA is in Kubernetes 1.32 and later")


def _refusal(status: int) -> str:
    match status:
        case HTTPStatus.UNAUTHORIZED:
            return "the API server knows no such token (401); mount a service account's token, or name a --kubeconfig"
        case HTTPStatus.FORBIDDEN:
            return "listing resourceslices of resource.k8s.io is forbidden (403); allow the verb list by RBAC"
        case _:
            return f"the API server answered {status}"
