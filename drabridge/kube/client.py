"""Talk to the API server over HTTP.

Objects are plain dicts and paths are known beforehand: no discovery requests are needed, and no models refuse newer
fields. So urllib3 is enough; the Kubernetes client uses it, too. That client itself would take a third of the agent's
memory; it only reads kubeconfigs, in a process of its own.

Threads: one for GETs, for which kubelet may wait; one for LISTs of namespaced kinds, which may be long; one for all
other requests; and one for every watch, which blocks for minutes. All are daemons: a blocked read must not delay the
end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

import drabridge
from drabridge.errors import ClusterError, DrabridgeError
from drabridge.kube.access import Access, of_kubeconfig, of_service_account
from drabridge.kube.api import (
    DeniedError,
    Kind,
    Listing,
    NotFoundError,
    UnreachableError,
    WatchEvent,
)
from drabridge.kube.json_reader import Json, ObjectIdentity, ObjectView, decode, identity_of, page_of
from drabridge.kube.response import MOST_BYTES, TooLargeError, WatchStream, body_of, cluster_errors, read_event
from drabridge.kube.transport import Transport
from drabridge.system.io_thread import IoThread
from drabridge.system.paths import SERVICE_ACCOUNT
from drabridge.system.untrusted import Unreadable, reading

T = TypeVar("T")
JSON = "application/json"
PROTOBUF = "application/vnd.kubernetes.protobuf"

CONNECT_SECONDS = 3.0
READ_SECONDS = 10.0
"""The limit of one read. NodePrepareResources has 45 s for several (kubelet
pkg/kubelet/cm/dra/plugin/dra_plugin.go)."""
WATCH_SECONDS = 240
"""The server ends a watch after this, and we begin another. So connections move to new API servers in time."""
WATCH_READ_SECONDS = 90.0
"""A watch without a byte for this long may be dead. A server sends a bookmark about once a minute, but 1.36.2 sends
none for a kind without objects. So the watch is begun again at the same version: a dead server does not begin it.
"""
PAGE = 500  # most objects in one answer to a LIST, as in client-go's pager
FIRST_PAGE = 16  # the objects' size is not known yet; each next page has at most twice as many
PAGE_BYTES = 1 << 20  # aimed-at size of an answer to a LIST: it decides the number of objects in the next page
MOST_PAGE_BYTES = 4 << 20  # a larger answer is not read: the page is asked for again with fewer objects
MOST_PAGES = 10_000  # enough even for pages of one large object: etcd holds 8 GiB (etcd.io, "System limits")

_WHOLE: ObjectView[Json] = ObjectView(lambda obj: obj)


class KubernetesCluster:
    """The :class:`drabridge.kube.api.Cluster` of a real API server."""

    def __init__(self, load: Callable[[], Access], *, read_seconds: float = READ_SECONDS) -> None:
        """``load`` returns the access; it runs in a worker thread, and again after a 401 or a TLS error."""
        self._load = load
        self._timeout = (CONNECT_SECONDS, read_seconds)
        self._watch_timeout = (CONNECT_SECONDS, WATCH_READ_SECONDS)
        self._transport: Transport | None = None
        self._connecting = threading.Lock()
        self._worker = IoThread("kubernetes")
        self._gets = IoThread("kubernetes-get")
        self._lists = IoThread("kubernetes-list")
        self._unreadable: dict[str, Unreadable] = {}
        self._streams: set[WatchStream] = set()
        self._closed = False

    @classmethod
    def in_cluster(
        cls, directory: Path = SERVICE_ACCOUNT, environ: Mapping[str, str] | None = None
    ) -> KubernetesCluster:
        """Connect with the pod's service account."""
        return cls(lambda: of_service_account(directory, environ))

    @classmethod
    def from_kubeconfig(
        cls, path: Path, context: str | None = None, *, read_seconds: float = READ_SECONDS, small: bool = False
    ) -> KubernetesCluster:
        """Connect with a kubeconfig file; ``context`` in place of its current one.

        ``small``: keep this process small. Another process reads the file, which takes 0.1 s longer.
        """
        if small:
            return cls(lambda: of_kubeconfig(path, context), read_seconds=read_seconds)

        def load() -> Access:
            from drabridge.kube.kubeconfig import read

            return read(path, context)

        return cls(load, read_seconds=read_seconds)

    def access(self) -> Access:
        """Return the server and our credentials, read again. Raises ConfigError."""
        return self._load()

    async def read(self, path: str) -> Json:
        return await self._call("get", path)

    async def get(self, kind: Kind, name: str, *, namespace: str = "") -> Json:
        path = kind.path(namespace, name)
        return await self._in(self._gets, lambda: self._request("get", path, None, {}))

    async def list(
        self,
        kind: Kind,
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        view: ObjectView[Any] = _WHOLE,
    ) -> Listing[Any]:
        path, items, unreadable = kind.path(namespace), [], []
        options: dict[str, Any] = {"fieldSelector": field_selector or None, "labelSelector": label_selector or None}
        worker = self._lists if kind.namespaced else self._worker  # lists of what we write stay in order with writes
        limit = min(FIRST_PAGE, PAGE)
        for _ in range(MOST_PAGES):
            asked = {**options, "limit": limit}
            try:
                page = await self._in(worker, lambda: self._page(kind, path, asked, view))  # noqa: B023
            except TooLargeError:
                if limit == 1:
                    raise
                limit = max(limit // 8, 1)
                continue
            items += page.items
            unreadable += page.unreadable
            limit = min(max(PAGE_BYTES * page.objects // page.bytes, 1), 2 * limit, PAGE)
            options["continue"] = page.following
            if page.following is None:
                self._unreadable_of(kind).keep({str(one) for one in unreadable})
                return Listing(tuple(items), page.resource_version, tuple(unreadable))
        raise UnreachableError(f"GET {path}: the list has no end: {MOST_PAGES} pages, and one more")

    async def create(
        self,
        kind: Kind,
        body: Mapping[str, Any],
        *,
        namespace: str = "",
        subresource: str = "",
        dry_run: bool = False,
    ) -> Json:
        path = kind.path(namespace, body["metadata"]["name"], subresource) if subresource else kind.path(namespace)
        return await self._call("post", path, dict(body), dryRun="All" if dry_run else None)

    async def replace(self, kind: Kind, body: Mapping[str, Any], *, namespace: str = "", dry_run: bool = False) -> Json:
        path = kind.path(namespace, body["metadata"]["name"])
        return await self._call("put", path, dict(body), dryRun="All" if dry_run else None)

    async def apply(
        self,
        kind: Kind,
        body: Mapping[str, Any],
        *,
        manager: str,
        namespace: str = "",
        subresource: str = "",
        force: bool = True,
    ) -> Json:
        return await self._call(
            "patch",
            kind.path(namespace, body["metadata"]["name"], subresource),
            dict(body),
            content_type="application/apply-patch+yaml",
            fieldManager=manager,
            force="true" if force else "false",
        )

    async def rewrite(
        self,
        kind: Kind,
        name: str,
        change: Callable[[bytes], bytes],
        *,
        manager: str,
        namespace: str = "",
        subresource: str = "",
    ) -> None:
        path, target = kind.path(namespace, name), kind.path(namespace, name, subresource)

        def read() -> bytes:
            data = self._body("get", path, None, {}, MOST_BYTES, JSON, PROTOBUF)
            with reading(f"the answer to GET {path}", UnreachableError):
                return change(data)

        changed = await self._in(self._gets, read)
        sent = {"fieldManager": manager}
        await self._in(self._worker, lambda: self._body("put", target, changed, sent, MOST_BYTES, PROTOBUF))

    async def delete(
        self, kind: Kind, name: str, *, namespace: str = "", uid: str = "", resource_version: str = ""
    ) -> None:
        conditions = {"uid": uid, "resourceVersion": resource_version}
        options = {"preconditions": {key: value for key, value in conditions.items() if value}}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **(options if options["preconditions"] else {})}
        with contextlib.suppress(NotFoundError):
            await self._call("delete", kind.path(namespace, name), body)

    async def watch(
        self,
        kind: Kind,
        *,
        namespace: str = "",
        field_selector: str = "",
        resource_version: str,
        view: ObjectView[Any] = _WHOLE,
    ) -> AsyncGenerator[WatchEvent[Any], None]:
        path = kind.path(namespace)
        options = {
            "fieldSelector": field_selector or None,
            "resourceVersion": resource_version,
            "timeoutSeconds": WATCH_SECONDS,
            "allowWatchBookmarks": "true",
            "watch": "true",
        }
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[WatchEvent[Any] | ClusterError | None] = asyncio.Queue()

        def deliver(item: WatchEvent[Any] | ClusterError | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(events.put_nowait, item)

        self._refuse_if_closed()
        read = functools.partial(read_event, path, view, self._unreadable_of(kind))

        def request() -> Any:
            return self._open("get", path, options, self._watch_timeout)

        stream = WatchStream(request, path, read, deliver)
        self._streams.add(stream)
        threading.Thread(target=stream.run, name=f"watch-{kind}", daemon=True).start()
        try:
            while (item := await events.get()) is not None:
                if isinstance(item, ClusterError):
                    raise item
                yield item
        finally:
            self._streams.discard(stream)
            stream.end()

    def close(self) -> None:
        """End the threads and every watch; a read that still blocks ends by its timeout."""
        self._closed = True
        for stream in tuple(self._streams):
            stream.end()
        for worker in (self._worker, self._gets, self._lists):
            worker.stop()

    async def _call(
        self, method: str, path: str, body: Json | None = None, content_type: str = JSON, **options: Any
    ) -> Json:
        return await self._in(self._worker, lambda: self._request(method, path, body, options, content_type))

    async def _in(self, worker: IoThread, call: Callable[[], T]) -> T:
        self._refuse_if_closed()
        return await worker.run(call)

    def _refuse_if_closed(self) -> None:
        if self._closed:  # a task that outlives the agent gets the error of a server that is gone
            raise UnreachableError("the connection to the API server was closed: the agent ends")

    def _unreadable_of(self, kind: Kind) -> Unreadable:
        return self._unreadable.setdefault(kind.plural, Unreadable(kind.plural))

    def _page(self, kind: Kind, path: str, options: Mapping[str, Any], view: ObjectView[Any]) -> _Read:
        data = self._body("get", path, None, options, MOST_BYTES if options["limit"] == 1 else MOST_PAGE_BYTES)
        with cluster_errors("get", path):
            page = page_of(data)
        items, unreadable = [], []
        for item in page.items:
            try:
                with reading(str(identity_of(item))):
                    items.append(view(item))
            except DrabridgeError as error:
                unreadable.append(identity_of(item))
                self._unreadable_of(kind).tell(str(unreadable[-1]), error)
        return _Read(items, unreadable, page.following or None, page.resource_version, len(page.items), len(data) or 1)

    def _request(
        self, method: str, path: str, body: Json | None, options: Mapping[str, Any], content_type: str = JSON
    ) -> Json:
        data = self._body(method, path, body, options, MOST_BYTES, content_type)
        with cluster_errors(method, path):
            answer = decode(data)
        if not isinstance(answer, dict):
            raise UnreachableError(f"{method.upper()} {path} answered {type(answer).__name__} instead of an object")
        return answer

    def _body(
        self,
        method: str,
        path: str,
        body: Json | bytes | None,
        options: Mapping[str, Any],
        most_bytes: int,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> bytes:
        sent = msgspec.json.encode(body) if isinstance(body, dict) else body

        def once() -> bytes:
            with cluster_errors(method, path):
                response = self._open(method, path, options, self._timeout, sent, content_type, accept)
                return body_of(response, f"{method.upper()} {path}", most_bytes)

        try:
            return once()
        except DeniedError as error:
            if getattr(error.__cause__, "status", None) != 401:
                raise
            self._forget()  # the token was rotated or revoked: read it again, once
            return once()

    def _open(
        self, method: str, path: str, options: Mapping[str, Any], timeout: tuple[float, float], *sent: Any
    ) -> Any:
        """Send a request, in any thread; connect first if necessary."""
        from urllib3.exceptions import SSLError

        with self._connecting:
            transport = self._transport = self._transport or Transport(
                self._load(), f"drabridge/{drabridge.__version__}"
            )
        try:
            return transport.open(method, path, options, timeout, *sent)
        except SSLError:  # the authority or our certificate may have been renewed: the next request reads them again
            self._forget()
            raise

    def _forget(self) -> None:
        with self._connecting:
            self._transport = None


class _Read(Struct, frozen=True):
    """What was read of one page. ``objects`` and ``bytes`` count what the server sent."""

    items: list[Any]
    unreadable: list[ObjectIdentity]
    following: str | None
    resource_version: str
    objects: int
    bytes: int
