"""The API server over HTTP: the only module that imports ``kubernetes``, and only when somebody connects.

``DynamicClient`` with plain dicts and ready-made paths: no discovery requests, no predictable cache file in /tmp, no
models that refuse fields newer than they are. Requests run in one worker thread, every watch in a thread of its own (a
watch blocks for minutes); both are daemons, because a blocked read must not hold up the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import drabridge
from drabridge.clusterapi import (
    ConflictError,
    DeniedError,
    ExpiredError,
    InvalidError,
    Json,
    Kind,
    Listing,
    NotFoundError,
    UnreachableError,
    UnservedError,
    WatchEvent,
    decode,
)
from drabridge.errors import ClusterError, ConfigError
from drabridge.worker import Worker

T = TypeVar("T")

CONNECT_SECONDS = 3.0
READ_SECONDS = 10.0
"""One request. NodePrepareResources has 45 s (kubelet pkg/kubelet/cm/dra/plugin/dra_plugin.go) and may need several."""
WATCH_SECONDS = 240
"""After this the server ends a watch, and we begin another: connections move to new API servers in time."""
WATCH_READ_SECONDS = 90.0
"""Without a byte for this long a watch may be dead: a server sends a bookmark about once a minute, but 1.36.2 sends
none for a kind of which the cluster has no object. Another watch that goes on where this one was tells them apart.
"""
PAGE = 500  # objects of one list answer, as client-go's pager has it
MOST_PAGES = 1000  # half a million objects: no cluster has them (kubernetes.io, "Considerations for large clusters")
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class KubernetesCluster:
    """The :class:`drabridge.clusterapi.Cluster` of a real API server."""

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
        self._worker = Worker("kubernetes")
        self._streams: set[_Stream] = set()
        self._closed = False

    @classmethod
    def in_cluster(
        cls, directory: Path = SERVICE_ACCOUNT, environ: Mapping[str, str] | None = None
    ) -> KubernetesCluster:
        """With the pod's service account; its token is read again when it is older than a minute."""

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
    def from_kubeconfig(cls, path: Path, context: str | None = None) -> KubernetesCluster:
        """With a kubeconfig file; ``context`` instead of its current one."""

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

        return cls(load)

    async def read(self, path: str) -> Json:
        return await self._call("get", path)

    async def get(self, kind: Kind, name: str, *, namespace: str = "") -> Json:
        return await self._call("get", kind.path(namespace, name))

    async def list(
        self, kind: Kind, *, namespace: str = "", field_selector: str = "", label_selector: str = ""
    ) -> Listing:
        items: list[Json] = []
        following: str | None = None
        for _ in range(MOST_PAGES):
            page = await self._call(
                "get",
                kind.path(namespace),
                field_selector=field_selector or None,
                label_selector=label_selector or None,
                limit=PAGE,
                _continue=following,
            )
            items += page.get("items") or []
            metadata = page.get("metadata") or {}
            following = metadata.get("continue") or None
            if following is None:
                return Listing(tuple(items), str(metadata.get("resourceVersion", "")))
        raise UnreachableError(f"GET {kind.path(namespace)}: the list has no end: {MOST_PAGES} pages, and one more")

    async def create(self, kind: Kind, body: Mapping[str, Any], *, namespace: str = "", dry_run: bool = False) -> Json:
        return await self._call("post", kind.path(namespace), dict(body), dry_run="All" if dry_run else None)

    async def replace(self, kind: Kind, body: Mapping[str, Any], *, namespace: str = "") -> Json:
        return await self._call("put", kind.path(namespace, body["metadata"]["name"]), dict(body))

    async def apply(
        self, kind: Kind, body: Mapping[str, Any], *, manager: str, namespace: str = "", subresource: str = ""
    ) -> Json:
        return await self._call(
            "patch",
            kind.path(namespace, body["metadata"]["name"], subresource),
            dict(body),
            content_type="application/apply-patch+yaml",
            field_manager=manager,
            force_conflicts="true",
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
        self, kind: Kind, *, namespace: str = "", field_selector: str = "", resource_version: str
    ) -> AsyncGenerator[WatchEvent, None]:
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
        events: asyncio.Queue[WatchEvent | ClusterError | None] = asyncio.Queue()

        def deliver(item: WatchEvent | ClusterError | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(events.put_nowait, item)

        client = await self._in_worker(lambda: self._connected(path))
        stream = _Stream(lambda: client.request("get", path, serialize=False, **_fresh(options)), path, deliver)
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
        """End the worker and every watch; what is still blocked in a read is left to its timeout."""
        self._closed = True
        for stream in tuple(self._streams):
            stream.end()
        self._worker.stop()

    async def _call(self, method: str, path: str, body: Json | None = None, **options: Any) -> Json:
        return await self._in_worker(lambda: self._request(method, path, body, options))

    async def _in_worker(self, call: Callable[[], T]) -> T:
        if self._closed:  # a task that outlives the agent's end is told so as by any server that is gone
            raise UnreachableError("the connection to the API server was closed: the agent ends")
        return await self._worker.run(call)

    def _request(self, method: str, path: str, body: Json | None, options: Mapping[str, Any]) -> Json:
        try:
            return self._once(method, path, body, options)
        except DeniedError as error:
            if getattr(error.__cause__, "status", None) != 401:
                raise
            self._dynamic = None  # the token was rotated or revoked: read it again, once
            return self._once(method, path, body, options)

    def _once(self, method: str, path: str, body: Json | None, options: Mapping[str, Any]) -> Json:
        with _cluster_errors(method, path):
            client = self._client()
            response = client.request(
                method, path, body=body, serialize=False, _request_timeout=self._timeout, **_fresh(options)
            )
            answer = decode(response.data)
        if not isinstance(answer, dict):
            raise UnreachableError(f"{method.upper()} {path} answered {type(answer).__name__} instead of an object")
        return answer

    def _connected(self, path: str) -> Any:
        with _cluster_errors("watch", path):
            return self._client()

    def _client(self) -> Any:
        if self._dynamic is None:
            from kubernetes import client, dynamic

            configuration = self._load()
            configuration.retries = False  # retries belong to the callers, which know their deadlines
            api = client.ApiClient(configuration)
            api.user_agent = f"drabridge/{drabridge.__version__}"
            self._dynamic = dynamic.DynamicClient(api, discoverer=_NoDiscovery)
        return self._dynamic


class _NoDiscovery:
    """The stock discoverer asks the server three times and trusts a file in /tmp; paths are known here."""

    def __init__(self, client: Any, cache_file: str | None) -> None:
        pass


class _Stream:
    """One watch in a thread of its own. A server that is busy may take as long to begin an answer as to go on with it:
    requests do not wait for that.
    """

    def __init__(
        self, request: Callable[[], Any], path: str, deliver: Callable[[WatchEvent | ClusterError | None], None]
    ) -> None:
        self._request = request
        self._path = path
        self._deliver = deliver
        self._lock = threading.Lock()
        self._response: Any = None
        self._ended = False

    def run(self) -> None:
        """Open, and read to the end."""
        try:
            with _cluster_errors("watch", self._path):
                response = self._request()
                with self._lock:
                    self._response, late = response, self._ended
                if late:
                    _abort(response)
                    return
                for line in _until_silent(response):
                    self._deliver(_event(line, self._path))
            self._deliver(None)
        except ClusterError as error:
            self._deliver(error)
        except Exception as error:  # whatever a server may send, the watch ends and is begun again
            self._deliver(UnreachableError(f"watch {self._path}: {type(error).__name__}: {error}"))

    def end(self) -> None:
        """From another thread. One that is not open yet ends when it is."""
        with self._lock:
            self._ended, response = True, self._response
        if response is not None:
            _abort(response)


def _event(line: bytes, path: str) -> WatchEvent:
    event = json.loads(line)
    if event.get("type") == "ERROR":
        status = event.get("object") or {}
        raise _error_of(int(status.get("code") or 500), f"watch {path}: {status.get('message', '')}", status)
    return WatchEvent(event["type"], event["object"])


def _until_silent(response: Any) -> Iterator[bytes]:
    """The lines of a watch until it ends, or says nothing for the time of its reads."""
    from urllib3.exceptions import ReadTimeoutError

    with contextlib.suppress(ReadTimeoutError):
        yield from _lines(response)


def _lines(response: Any) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(amt=None, decode_content=False):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line.strip())
    if rest.strip():
        yield rest


def _abort(response: Any) -> None:
    """Wake a thread that is blocked in a read of this response: shut the socket down, then close it."""
    with contextlib.suppress(Exception):
        response.shutdown()
    with contextlib.suppress(Exception):
        response.close()


def _fresh(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options for one request. The client appends to the lists it is given and to its own defaults: fresh ones."""
    return {**options, "query_params": [], "header_params": {}}


@contextlib.contextmanager
def _cluster_errors(method: str, path: str) -> Iterator[None]:
    """Everything that the client, HTTP or the network raises, once, as an error of ours."""
    from kubernetes.client.exceptions import ApiException
    from kubernetes.dynamic.exceptions import DynamicApiError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (ApiException, DynamicApiError) as error:
        status = _status(error)  # its message says more than the HTTP reason
        message = status.get("message") or f"{error.status} {error.reason}"
        raise _error_of(int(error.status or 0), f"{method.upper()} {path}: {message}", status) from error
    except (HTTPError, OSError) as error:
        raise UnreachableError(
            f"{method.upper()} {path}: no answer from the API server ({type(error).__name__}: {error})"
        ) from error
    except ConfigError as error:  # of the kubeconfig, or of the token: they may come, or be mended
        raise UnreachableError(error.message, hint=error.hint) from error
    except ValueError as error:
        raise UnreachableError(f"{method.upper()} {path}: the answer is not JSON ({error})") from error


def _status(error: Any) -> Json:
    """The Status that the server sent; empty if it sent something else."""
    with contextlib.suppress(ValueError, TypeError):
        status = json.loads(error.body)
        if isinstance(status, dict):
            return status
    return {}


_ERRORS: dict[int, type[ClusterError]] = {
    400: InvalidError,
    401: DeniedError,
    403: DeniedError,
    404: NotFoundError,
    409: ConflictError,
    410: ExpiredError,
    413: InvalidError,
    415: InvalidError,
    422: InvalidError,
}


def _error_of(code: int, text: str, status: Json) -> ClusterError:
    """``status``: what the server said. It names the object that is missing, and none if it lacks the path (the handler
    of k8s.io/apiserver that nobody else takes a path from writes plain text; a proxy may answer anything).
    """
    details = status.get("details")
    if code == 404 and not (isinstance(details, dict) and details.get("name")):
        return UnservedError(text)
    return _ERRORS.get(code, UnreachableError)(text)
