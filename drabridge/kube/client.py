"""Talk to the API server over HTTP.

Beside the leader election this is the only module that imports ``kubernetes``, and only when somebody connects. It uses
``DynamicClient`` with plain dicts and ready-made paths: no discovery requests, no predictable cache file in /tmp, no
models that refuse fields newer than they are.

There is one thread for GETs, which kubelet may wait for, one for LISTs of what users write, which may be long, one for
all else, and one for every watch, which blocks for minutes. All are daemons: a blocked read must not delay the end of
the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

import drabridge
from drabridge.errors import ClusterError, ConfigError, DrabridgeError
from drabridge.kube.api import (
    DeniedError,
    Kind,
    Listing,
    NotFoundError,
    UnreachableError,
    WatchEvent,
    error_of,
)
from drabridge.kube.json_reader import Json, ObjectIdentity, ObjectView, decode, identity_of, page_of
from drabridge.kube.response import MOST_BYTES, TooLargeError, WatchStream, body_of, read_event
from drabridge.system.io_thread import IoThread
from drabridge.system.paths import SERVICE_ACCOUNT
from drabridge.system.untrusted import Unreadable, reading

T = TypeVar("T")

CONNECT_SECONDS = 3.0
READ_SECONDS = 10.0
"""One request. NodePrepareResources has 45 s (kubelet pkg/kubelet/cm/dra/plugin/dra_plugin.go) and may need several."""
WATCH_SECONDS = 240
"""After this the server ends a watch and we begin another: so connections move to new API servers in time."""
WATCH_READ_SECONDS = 90.0
"""Without a byte for this long a watch may be dead: a server sends a bookmark about once a minute, but 1.36.2 sends
none for a kind of which the cluster has no object. So the watch is begun again where it was: that tells them apart.
"""
PAGE = 500  # objects of one list answer at most, as client-go's pager has it
FIRST_PAGE = 16  # the objects' size is not known yet; the next page has twice as many at most
PAGE_BYTES = 1 << 20  # the aim for one answer to a LIST: the next page has as many objects as fit
MOST_PAGE_BYTES = 4 << 20  # more is not read: the page is asked for again, with fewer objects
MOST_PAGES = 10_000  # enough for large objects that come one by one: etcd holds 8 GiB (etcd.io, "System limits")

_WHOLE: ObjectView[Json] = ObjectView(lambda obj: obj)


class KubernetesCluster:
    """The :class:`drabridge.kube.api.Cluster` of a real API server."""

    def __init__(
        self,
        load: Callable[[], Any],
        *,
        read_seconds: float = READ_SECONDS,
        watch_read_seconds: float = WATCH_READ_SECONDS,
    ) -> None:
        """``load`` makes a kubernetes ``Configuration``; it runs in the worker thread, again after a 401."""
        self._load = load
        self._timeout = (CONNECT_SECONDS, read_seconds)
        self._watch_timeout = (CONNECT_SECONDS, watch_read_seconds)
        self._dynamic: Any = None
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
        """Connect with the pod's service account; its token is read again when it is older than a minute."""

        def load() -> Any:
            from kubernetes import client, config
            from kubernetes.config.incluster_config import InClusterConfigLoader

            configuration = client.Configuration()
            options = {} if environ is None else {"environ": dict(environ)}
            try:
                InClusterConfigLoader(
                    token_filename=str(directory / "token"), cert_filename=str(directory / "ca.crt"), **options
                ).load_and_set(configuration)
            except config.ConfigException as error:
                raise ConfigError(
                    f"this is not a pod with a service account: {error}",
                    hint="Outside a cluster give --kubeconfig, or switch DRA off (dra.enabled: false)",
                ) from error
            return configuration

        return cls(load)

    @classmethod
    def from_kubeconfig(
        cls, path: Path, context: str | None = None, *, read_seconds: float = READ_SECONDS
    ) -> KubernetesCluster:
        """Connect with a kubeconfig file; ``context`` in place of its current one."""

        def load() -> Any:
            from kubernetes import client, config

            configuration = client.Configuration()
            try:
                config.load_kube_config(
                    config_file=str(path), context=context, client_configuration=configuration, persist_config=False
                )
            except (config.ConfigException, OSError, ValueError) as error:
                raise ConfigError(f"{path} is not a kubeconfig that can be used: {error}") from error
            return configuration

        return cls(load, read_seconds=read_seconds)

    def configuration(self) -> Any:
        """Return a new ``Configuration`` of the client library: where the server is, and who asks."""
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
        options: dict[str, Any] = {"field_selector": field_selector or None, "label_selector": label_selector or None}
        worker = self._lists if kind.namespaced else self._worker  # lists of what we write keep their order with writes
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
            options["_continue"] = page.following
            if page.following is None:
                self._unreadable_of(kind).keep({str(one) for one in unreadable})
                return Listing(tuple(items), page.resource_version, tuple(unreadable))
        raise UnreachableError(f"GET {path}: the list has no end: {MOST_PAGES} pages, and one more")

    async def create(self, kind: Kind, body: Mapping[str, Any], *, namespace: str = "", dry_run: bool = False) -> Json:
        return await self._call("post", kind.path(namespace), dict(body), dry_run="All" if dry_run else None)

    async def replace(self, kind: Kind, body: Mapping[str, Any], *, namespace: str = "", dry_run: bool = False) -> Json:
        path = kind.path(namespace, body["metadata"]["name"])
        return await self._call("put", path, dict(body), dry_run="All" if dry_run else None)

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
            field_manager=manager,
            force_conflicts="true" if force else "false",
        )

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
            "field_selector": field_selector or None,
            "resource_version": resource_version,
            "timeout_seconds": WATCH_SECONDS,
            "allow_watch_bookmarks": "true",
            "watch": "true",
            "_request_timeout": self._watch_timeout,
        }
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[WatchEvent[Any] | ClusterError | None] = asyncio.Queue()

        def deliver(item: WatchEvent[Any] | ClusterError | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(events.put_nowait, item)

        client = await self._in(self._worker, lambda: self._connected(path))
        read = functools.partial(read_event, path, view, self._unreadable_of(kind))

        def request() -> Any:
            return client.request("get", path, serialize=False, **_fresh(options))

        stream = WatchStream(request, path, read, _cluster_errors, deliver)
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

    async def _call(self, method: str, path: str, body: Json | None = None, **options: Any) -> Json:
        return await self._in(self._worker, lambda: self._request(method, path, body, options))

    async def _in(self, worker: IoThread, call: Callable[[], T]) -> T:
        if self._closed:  # a task that outlives the agent gets the error of a server that is gone
            raise UnreachableError("the connection to the API server was closed: the agent ends")
        return await worker.run(call)

    def _unreadable_of(self, kind: Kind) -> Unreadable:
        return self._unreadable.setdefault(kind.plural, Unreadable(kind.plural))

    def _page(self, kind: Kind, path: str, options: Mapping[str, Any], view: ObjectView[Any]) -> _Read:
        data = self._body("get", path, None, options, MOST_BYTES if options["limit"] == 1 else MOST_PAGE_BYTES)
        with _cluster_errors("get", path):
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

    def _request(self, method: str, path: str, body: Json | None, options: Mapping[str, Any]) -> Json:
        data = self._body(method, path, body, options, MOST_BYTES)
        with _cluster_errors(method, path):
            answer = decode(data)
        if not isinstance(answer, dict):
            raise UnreachableError(f"{method.upper()} {path} answered {type(answer).__name__} instead of an object")
        return answer

    def _body(self, method: str, path: str, body: Json | None, options: Mapping[str, Any], most_bytes: int) -> bytes:
        try:
            return self._once(method, path, body, options, most_bytes)
        except DeniedError as error:
            if getattr(error.__cause__, "status", None) != 401:
                raise
            with self._connecting:
                self._dynamic = None  # the token was rotated or revoked: read it again, once
            return self._once(method, path, body, options, most_bytes)

    def _once(self, method: str, path: str, body: Json | None, options: Mapping[str, Any], most_bytes: int) -> bytes:
        with _cluster_errors(method, path):
            response = self._client().request(
                method, path, body=body, serialize=False, _request_timeout=self._timeout, **_fresh(options)
            )
            return body_of(response, f"{method.upper()} {path}", most_bytes)

    def _connected(self, path: str) -> Any:
        with _cluster_errors("watch", path):
            return self._client()

    def _client(self) -> Any:
        with self._connecting:
            return self._connect()

    def _connect(self) -> Any:
        if self._dynamic is None:
            from kubernetes import client, dynamic

            configuration = self._load()
            configuration.retries = False  # retries belong to the callers, which know their deadlines
            api = client.ApiClient(configuration)
            api.user_agent = f"drabridge/{drabridge.__version__}"
            self._dynamic = dynamic.DynamicClient(api, discoverer=_NoDiscovery)
        return self._dynamic


class _Read(Struct, frozen=True):
    """What was read of one page. ``objects`` and ``bytes`` count what the server sent."""

    items: list[Any]
    unreadable: list[ObjectIdentity]
    following: str | None
    resource_version: str
    objects: int
    bytes: int


class _NoDiscovery:
    """The stock discoverer asks the server three times and trusts a file in /tmp; paths are known here."""

    def __init__(self, client: Any, cache_file: str | None) -> None:
        pass


def _fresh(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for one request, with new lists: the client appends to those that it is given."""
    return {**options, "query_params": [], "header_params": {}}


@contextlib.contextmanager
def _cluster_errors(method: str, path: str) -> Iterator[None]:
    """Translate everything that the client, HTTP or the network raises into a ClusterError."""
    from kubernetes.client.exceptions import ApiException
    from kubernetes.dynamic.exceptions import DynamicApiError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (ApiException, DynamicApiError) as error:
        status = _status(error)  # the Status has a better message than the HTTP reason
        message = status.get("message") or f"{error.status} {error.reason}"
        raise error_of(int(error.status or 0), f"{method.upper()} {path}: {message}", status) from error
    except (HTTPError, OSError) as error:
        raise UnreachableError(
            f"{method.upper()} {path}: no answer from the API server ({type(error).__name__}: {error})"
        ) from error
    except ConfigError as error:  # in the kubeconfig or the token: both may be corrected while we run
        raise UnreachableError(error.message, hint=error.hint) from error
    except ValueError as error:
        raise UnreachableError(f"{method.upper()} {path}: the answer is not JSON ({error})") from error


def _status(error: Any) -> Json:
    """Return the Status that the server sent; empty if it sent something else."""
    with contextlib.suppress(ValueError, TypeError):
        status = json.loads(error.body)
        if isinstance(status, dict):
            return status
    return {}
