"""The simulated API server: sockets, identities, faults and the request log around the verbs."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from drabridge.sim.apiserver import discovery, http
from drabridge.sim.apiserver.auth import ADMIN, User
from drabridge.sim.apiserver.faults import Faults, reason_of
from drabridge.sim.apiserver.garbage_collector import collect
from drabridge.sim.apiserver.http import HttpRequest, Reply
from drabridge.sim.apiserver.kinds import Served
from drabridge.sim.apiserver.objects import Objects
from drabridge.sim.apiserver.status import JSON, ApiError, bad_request, path_not_found, unauthorized
from drabridge.sim.apiserver.store import Store
from drabridge.sim.apiserver.verbs import VERBS, Call, Target, number, parse_path
from drabridge.sim.apiserver.watch import DEFAULT_TIMEOUT_SECONDS, WatchOptions, watch
from drabridge.sim.releases import DEFAULT, release_of


@dataclass(slots=True)
class Request:
    """One request as the server saw it, for counting writes and for comparing with a role's rules.

    ``status`` and ``sent_bytes``, of the answer's body, are filled in when it ends.
    """

    verb: str
    """RBAC verb: get, list, watch, create, update, patch, delete, deletecollection; ``nonresource`` for discovery."""
    path: str
    query: dict[str, str]
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    user_agent: str
    user: str
    content_type: str
    at_seconds: float
    """Clock of the event loop at arrival."""
    received_bytes: int
    sent_bytes: int = 0
    status: int = 0
    """0 while it is in progress, or when it was never answered."""
    events: int = 0
    """Watch events sent, bookmarks included."""

    @property
    def is_write(self) -> bool:
        return self.verb in ("create", "update", "patch", "delete", "deletecollection")

    @property
    def rule(self) -> tuple[str, str, str]:
        """(group, resource[/subresource], verb): what RBAC must allow."""
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return self.group, resource, self.verb


_log = logging.getLogger(__name__)

HANG_SECONDS = 3600.0
"""A request that is never answered waits this long for its client to give up."""
REQUESTS_KEPT = 200_000
"""Soak runs ask for ever: at this number, the older half of the log is dropped."""
_TRUE = ("1", "true", "True", "t", "T")


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
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._replies: dict[Reply, None] = {}
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
        await asyncio.sleep(0)  # accepted connections get their transports now; after the close they never would
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

    def _user(self, authorization: str) -> User | None:
        """Return the user of an ``Authorization`` header; None when there is none or the token is unknown."""
        scheme, _, token = authorization.partition(" ")
        return self._users.get(token.strip()) if scheme.lower() == "bearer" else None

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
        task = asyncio.create_task(http.serve(reader, writer, self._handle), name="sim-connection")
        self._connections[task] = writer
        task.add_done_callback(self._disconnected)

    def _disconnected(self, task: asyncio.Task[None]) -> None:
        writer = self._connections.pop(task)
        if task.cancelled():
            writer.transport.abort()
        elif error := task.exception():
            _log.error("a connection failed", exc_info=error)

    def _cut(self, watches_only: bool) -> int:
        replies = [reply for reply in self._replies if reply.streaming]
        for reply in replies:
            reply.cut()
        if not watches_only:
            for writer in self._connections.values():
                writer.transport.abort()
        return len(replies)

    async def _handle(self, request: HttpRequest, reply: Reply) -> None:
        user = self._user(request.headers.get("authorization", ""))
        target = parse_path(request.path, self.served)
        is_watch = request.query.get("watch", "") in _TRUE
        verb = target.verb(request.method, watch=is_watch) if target else "nonresource"
        entry = self._logged(request, user, target, verb)
        try:
            await self._answer(request, reply, user, target, entry)
        except ApiError as error:
            await reply.send(error.code, error.body)
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:
            # Our bug, or a malformed body that passed decoding: the real server's panic handler answers 500, too.
            _log.exception("simulated API server failed: method=%s path=%s", request.method, request.path)
            text = f"Internal error occurred: {error!r}"
            await reply.send(500, ApiError(500, text, "InternalError").body)
        finally:
            entry.status, entry.sent_bytes = reply.status, reply.sent_bytes

    def _logged(self, request: HttpRequest, user: User | None, target: Target | None, verb: str) -> Request:
        resource = target.resource if target else None
        entry = Request(
            verb,
            request.path,
            request.query,
            resource.group if resource else "",
            resource.plural if resource else "",
            target.subresource if target else "",
            target.namespace if target else "",
            target.name if target else "",
            request.headers.get("user-agent", ""),
            user.name if user else "system:anonymous",
            request.headers.get("content-type", ""),
            asyncio.get_running_loop().time(),
            len(request.body),
        )
        self.requests.append(entry)
        if len(self.requests) > REQUESTS_KEPT:
            del self.requests[: REQUESTS_KEPT // 2]
        return entry

    async def _answer(
        self, request: HttpRequest, reply: Reply, user: User | None, target: Target | None, entry: Request
    ) -> None:
        if self.faults.latency_seconds:
            await asyncio.sleep(self.faults.latency_seconds)
        fault = self.faults.take(entry.verb, entry.resource)
        if fault is not None and fault.status == 0:
            await asyncio.sleep(HANG_SECONDS)
        refusal: ApiError | None = None
        if fault is not None:
            reason, message = reason_of(fault.status)
            refusal = ApiError(fault.status, message, reason)
            if not fault.after_commit:
                raise refusal
        if user is None:
            raise unauthorized()
        if target is None:
            await reply.send(*self._other(request))
            return
        call = Call(request, target, user, request.query)
        if entry.verb == "watch":
            await self._watch(call, reply, entry)
            return
        if entry.verb not in VERBS:
            raise ApiError(405, "the server does not allow this method on the requested resource", "MethodNotAllowed")
        answer = VERBS[entry.verb](self.objects, call)
        if self.faults.answer_lag_seconds and entry.is_write:
            await asyncio.sleep(self.faults.answer_lag_seconds)
        if refusal is not None:
            raise refusal
        await reply.send(*answer)

    def _other(self, request: HttpRequest) -> tuple[int, Any]:
        """Everything that is not about stored objects: health and discovery."""
        if request.path in ("/healthz", "/livez", "/readyz"):
            return 200, b"ok"
        if request.method == "GET":
            found = discovery.document(request.path, self.served)
            if found is not None:
                return 200, found
        raise path_not_found()

    # -- watch

    async def _watch(self, call: Call, reply: Reply, entry: Request) -> None:
        query, target = call.query, call.target
        initial = query.get("sendInitialEvents", "") in _TRUE
        if initial and query.get("resourceVersionMatch") != "NotOlderThan":
            raise bad_request("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
        revision = query.get("resourceVersion", "")
        if revision and not revision.isdecimal():
            raise bad_request(f'invalid resource version "{revision}"')
        wanted = call.wanted()
        if target.namespace:
            inside, selected = target.namespace, wanted

            def wanted(obj: JSON) -> bool:
                return obj["metadata"].get("namespace") == inside and selected(obj)

        options = WatchOptions(
            target.resource,
            wanted,
            revision,
            float(number(query, "timeoutSeconds")) or DEFAULT_TIMEOUT_SECONDS,
            query.get("allowWatchBookmarks", "") in _TRUE,
            initial,
        )
        self._replies[reply] = None
        try:
            await reply.start_stream()
            async with contextlib.aclosing(
                watch(self.objects.store, options, lambda: self.faults.watch_lag_seconds)
            ) as events:
                async for kind, obj in events:
                    await reply.chunk(self._event(call, kind, obj))
                    entry.events += 1
                    entry.sent_bytes = reply.sent_bytes
            await reply.end_stream()
        finally:
            del self._replies[reply]

    def _event(self, call: Call, kind: str, obj: JSON) -> bytes:
        """One line of a watch; objects are encoded once however many watches carry them."""
        if kind == "ERROR":
            return http.dump({"type": kind, "object": obj}) + b"\n"
        meta, version = obj["metadata"], call.target.version
        key = (meta.get("uid", ""), meta["resourceVersion"], version)
        data = self._encoded.get(key) if key[0] else None
        if data is None:
            data = http.dump(call.target.shown(obj))
            if key[0]:
                self._encoded[key] = data
                while len(self._encoded) > 4096:
                    del self._encoded[next(iter(self._encoded))]
        return b'{"type":"' + kind.encode() + b'","object":' + data + b"}\n"
