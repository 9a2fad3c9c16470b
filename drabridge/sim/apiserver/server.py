"""The simulated API server: sockets, identities, faults and the request log around the verbs."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import secrets
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from drabridge.sim.apiserver import discovery, http
from drabridge.sim.apiserver.auth import ADMIN, User
from drabridge.sim.apiserver.faults import Fault, Faults
from drabridge.sim.apiserver.garbage_collector import collect
from drabridge.sim.apiserver.http import Connection
from drabridge.sim.apiserver.kinds import Served
from drabridge.sim.apiserver.objects import Objects
from drabridge.sim.apiserver.request import Request
from drabridge.sim.apiserver.status import JSON, ApiError, bad_request, path_not_found, unauthorized
from drabridge.sim.apiserver.store import Store
from drabridge.sim.apiserver.verbs import VERBS, not_allowed
from drabridge.sim.apiserver.watch import DEFAULT_TIMEOUT_SECONDS, WatchOptions, watch
from drabridge.sim.releases import DEFAULT, release_of

_log = logging.getLogger(__name__)

HANG_SECONDS = 3600.0
"""A request that is never answered waits this long for its client to give up."""
REQUESTS_KEPT = 200_000
"""At this number of requests the older half of the log is dropped: soak runs never stop asking."""


class SimApiServer:
    """``async with SimApiServer() as api:`` serves HTTP(S) on 127.0.0.1 at ``api.url``.

    ``release`` is the Kubernetes release to imitate, ``gates`` overrides its feature gates, ``versions`` are the served
    versions of resource.k8s.io in order of preference (None: the release's default). ``objects`` is the same storage
    without HTTP, ``requests`` the log, ``faults`` the trouble to make.
    """

    def __init__(
        self,
        *,
        release: str = DEFAULT,
        gates: Mapping[str, bool] | None = None,
        versions: tuple[str, ...] | None = None,
        tls: bool = False,
    ) -> None:
        self.release = release_of(release)
        self.gates = self.release.gates_with(gates)
        self.versions = self.release.resource_versions if versions is None else versions
        self.objects = Objects(Store(), self.gates, self.release)
        self.faults = Faults(cut=self._cut)
        self.requests: list[Request] = []
        self._tls = tls
        self._certificate: bytes | None = None
        self._users: dict[str, User] = {}  # by bearer token
        self._admin_token = self._issue(ADMIN)
        self._server: asyncio.Server | None = None
        self._stopping = False
        self._port = 0
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._watches: set[Connection] = set()
        self._collector: asyncio.Task[None] | None = None
        self._encoded: dict[tuple[str, str, str], bytes] = {}

    @property
    def served(self) -> Served:
        """What is served now: ``versions`` may be changed while it runs."""
        return Served(self.release, self.versions, self.gates)

    # -- life

    async def start(self) -> None:
        context: ssl.SSLContext | None = None
        if self._tls:
            context, self._certificate = http.tls_context()
        self._stopping = False
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", self._port, ssl=context, limit=http.MAX_HEADER_BYTES
        )
        self._port = self._server.sockets[0].getsockname()[1]
        self._collector = asyncio.create_task(collect(self.objects), name="sim-garbage-collector")

    async def stop(self) -> None:
        """Close everything; a later :meth:`start` listens on the same port with the same objects."""
        if self._server is None:
            return
        self._stopping = True
        for listening in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        await asyncio.sleep(0)  # accepted connections get their transports now, and would get none after the close
        self._server.close()
        tasks = [*self._connections, *([self._collector] if self._collector else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = self._collector = None

    async def __aenter__(self) -> SimApiServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # -- how to reach it

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    @property
    def certificate(self) -> bytes | None:
        """PEM of the self-made certificate, which is its own authority; None without TLS."""
        return self._certificate

    def token(self, node_name: str, *, account: str = "drabridge", drivers: frozenset[str] | None = None) -> str:
        """Return a token as kubelet projects one into the agent's pod: bound to ``node_name``.

        ``drivers`` limits the entries of claim.status.devices that it may write; None does not.
        """
        name = f"system:serviceaccount:kube-system:{account}"
        groups = ("system:serviceaccounts", "system:serviceaccounts:kube-system")
        return self._issue(User(name, groups, node_name, drivers))

    def admin_token(self) -> str:
        return self._admin_token

    def revoke(self, token: str) -> None:
        """Let the token expire: 401 from now on."""
        self._users.pop(token, None)

    def _issue(self, user: User) -> str:
        token = secrets.token_urlsafe(24)
        self._users[token] = user
        return token

    def kubeconfig(self, path: Path, *, token: str | None = None) -> Path:
        """Write a kubeconfig for this server at ``path`` (default identity: administrator)."""
        cluster: JSON = {"server": self.url}
        if self._certificate is not None:
            cluster["certificate-authority-data"] = base64.b64encode(self._certificate).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "sim", "cluster": cluster}],
            "users": [{"name": "sim", "user": {"token": token or self._admin_token}}],
            "contexts": [{"name": "sim", "context": {"cluster": "sim", "user": "sim", "namespace": "default"}}],
            "current-context": "sim",
        }
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        path.chmod(0o600)
        return path

    # -- connections

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Record the connection at once, so that one that arrives during :meth:`stop` is closed, too."""
        if self.faults.partitioned or self._stopping:
            writer.transport.abort()
            return
        connection = Connection(reader, writer)
        task = asyncio.create_task(connection.serve(self._handle), name="sim-connection")
        self._connections[task] = connection
        task.add_done_callback(self._disconnected)

    def _disconnected(self, task: asyncio.Task[None]) -> None:
        connection = self._connections.pop(task)
        if task.cancelled():
            connection.cut()
        elif error := task.exception():
            _log.error("a connection failed", exc_info=error)

    def _cut(self, watches_only: bool) -> int:
        watches = len(self._watches)
        for connection in list(self._watches) if watches_only else self._connections.values():
            connection.cut()
        return watches

    async def _handle(self, request: Request, connection: Connection) -> None:
        scheme, _, token = request.authorization.partition(" ")
        request.by = self._users.get(token.strip()) if scheme.lower() == "bearer" else None
        request.find_target(self.served)
        self.requests.append(request)
        if len(self.requests) > REQUESTS_KEPT:
            del self.requests[: REQUESTS_KEPT // 2]
        try:
            fault = await self._fault(request)
            if request.by is None:
                raise unauthorized()
            if request.verb == "watch":
                await self._watch(request, connection)
            else:
                await self._send(request, connection, *await self._answer(request, fault))
        except ApiError as error:
            await self._send(request, connection, error.code, error.body)
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:
            # A bug of ours, or a malformed body that passed decoding. The real server's panic handler answers 500, too.
            _log.exception("simulated API server failed: method=%s path=%s", request.method, request.path)
            text = f"Internal error occurred: {error!r}"
            await self._send(request, connection, 500, ApiError(500, text, "InternalError").body)
        finally:
            request.body = b""

    async def _send(self, request: Request, connection: Connection, status: int, body: Any) -> None:
        request.status = status
        request.sent_bytes = await connection.send(status, body)

    async def _fault(self, request: Request) -> Fault | None:
        """Return the fault that strikes after the work. Raises ApiError for one that strikes before."""
        if self.faults.latency_seconds:
            await asyncio.sleep(self.faults.latency_seconds)
        fault = self.faults.take(request.verb, request.resource)
        if fault is not None and fault.status == 0:
            await asyncio.sleep(HANG_SECONDS)
        if fault is not None and not fault.after_commit:
            raise fault.error
        return fault

    async def _answer(self, request: Request, fault: Fault | None) -> tuple[int, Any]:
        """Return status and body. Raises ApiError."""
        if request.kind is None:
            return 200, self._other(request)
        if request.verb not in VERBS:
            raise not_allowed()
        answer = VERBS[request.verb](self.objects, request)
        if self.faults.answer_lag_seconds and request.is_write:
            await asyncio.sleep(self.faults.answer_lag_seconds)
        if fault is not None:
            raise fault.error
        return answer

    def _other(self, request: Request) -> Any:
        """Answer requests that are not about stored objects: health and discovery."""
        if request.path in ("/healthz", "/livez", "/readyz"):
            return b"ok"
        found = discovery.document(request.path, self.served) if request.method == "GET" else None
        if found is None:
            raise path_not_found()
        return found

    # -- watch

    async def _watch(self, request: Request, connection: Connection) -> None:
        revision = request.query.get("resourceVersion", "")
        if revision and not revision.isdecimal():
            raise bad_request(f'invalid resource version "{revision}"')
        seconds = float(request.number("timeoutSeconds")) or DEFAULT_TIMEOUT_SECONDS
        bookmarks = request.flag("allowWatchBookmarks")
        options = WatchOptions(request.target, request.wanted, revision, seconds, bookmarks)
        self._watches.add(connection)
        try:
            request.status = 200
            await connection.start_stream()
            events = watch(self.objects.store, options, lambda: self.faults.watch_lag_seconds)
            async with contextlib.aclosing(events):
                async for kind, obj in events:
                    data = self._event(request, kind, obj)
                    request.events += 1
                    request.sent_bytes += len(data)
                    await connection.chunk(data)
            await connection.end()
        finally:
            self._watches.remove(connection)

    def _event(self, request: Request, kind: str, obj: JSON) -> bytes:
        """Return one line of a watch. An object is encoded once for all watches."""
        if kind == "ERROR":
            return http.dump({"type": kind, "object": obj}) + b"\n"
        key = (obj["metadata"].get("uid", ""), obj["metadata"]["resourceVersion"], request.version)
        data = self._encoded.get(key)
        if data is None:
            data = http.dump(request.shown(obj))
            if key[0]:
                self._encoded[key] = data
                while len(self._encoded) > 4096:
                    del self._encoded[next(iter(self._encoded))]
        return b'{"type":"' + kind.encode() + b'","object":' + data + b"}\n"
