"""The synchronous client: the same methods as ``Client``, over a blocking channel and without an event loop."""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import monotonic, perf_counter
from types import TracebackType
from typing import Self

import grpc

from podresources.backoff import Backoff
from podresources.errors import (
    ClientClosed,
    KubeletTimeout,
    KubeletUnavailable,
    NotSupported,
    PodNotFound,
    PodResourcesError,
)
from podresources.features import KubeletFeatures, Support
from podresources.model import Allocatable, NodeSnapshot
from podresources.session import PROBE_POD, Reader, Session, T, get_request, pick
from podresources.socket_path import DEFAULT_SOCKET, identify
from podresources.transport import (
    DEFAULT_RECEIVE_LIMIT_BYTES,
    DEFAULT_TIMEOUT_SECONDS,
    KubeletSocket,
    Observer,
    Rpc,
)


class SyncClient:
    """``Client`` for programs without an event loop. Threads may share one: they take turns."""

    def __init__(
        self,
        path: str | Path = DEFAULT_SOCKET,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        receive_limit_bytes: int = DEFAULT_RECEIVE_LIMIT_BYTES,
        backoff: Backoff | None = None,
        observe: Observer | None = None,
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self._socket = KubeletSocket(Path(path), receive_limit_bytes)
        self._session = Session(self._socket, backoff or Backoff(), observe)
        self._channel: grpc.Channel | None = None
        self._turn = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def features(self) -> KubeletFeatures:
        """What the kubelet that answered last is known to support."""
        return self._session.features

    def list(self, *, timeout_seconds: float | None = None) -> NodeSnapshot:
        """Return every pod of the node with what it holds. Raises PodResourcesError."""
        return self._call(Rpc.LIST, b"", self._session.read_list, timeout_seconds)

    def allocatable(self, *, timeout_seconds: float | None = None) -> Allocatable:
        """Return healthy device-plugin devices, CPUs and memory, held or not. Raises PodResourcesError."""
        return self._call(Rpc.ALLOCATABLE, b"", self._session.read_allocatable, timeout_seconds)

    def get(self, namespace: str, pod: str, *, timeout_seconds: float | None = None) -> NodeSnapshot:
        """Return one pod, as a snapshot with that pod alone. Raises PodNotFound and other PodResourcesErrors.

        Kubelets without Get (before 1.34) are asked for the whole List instead; ``features.get`` is then NO.
        """
        if not self._session.get_unsupported:
            try:
                request = get_request(namespace, pod)
                return self._call(Rpc.GET, request, self._session.read_get, timeout_seconds)
            except NotSupported:
                pass
        return pick(self.list(timeout_seconds=timeout_seconds), namespace, pod)

    def probe(self, *, timeout_seconds: float | None = None) -> KubeletFeatures:
        """Find out whether Get is served, by asking for a pod that does not exist.

        The other features are learned from answers.
        """
        if self.features.get is Support.UNKNOWN:
            with suppress(PodNotFound, NotSupported):
                self._call(Rpc.GET, get_request(*PROBE_POD), self._session.read_get, timeout_seconds)
        return self.features

    def close(self) -> None:
        """Close the connection. Calls under way in other threads end with ClientClosed."""
        self._session.closed = True
        self._hang_up()

    def _call(self, rpc: Rpc, request: bytes, read: Reader[T], timeout_seconds: float | None) -> T:
        timeout = timeout_seconds or self.timeout_seconds
        deadline = monotonic() + timeout
        if not self._turn.acquire(timeout=timeout):
            raise self._socket.timeout(rpc)
        try:
            return self._until_answered(rpc, request, read, deadline)
        except PodResourcesError as error:
            self._session.note_refusal(error)
            raise
        finally:
            self._turn.release()

    def _until_answered(self, rpc: Rpc, request: bytes, read: Reader[T], deadline: float) -> T:
        reason: PodResourcesError | None = None
        for attempt in itertools.count():
            try:
                return self._once(rpc, request, read, deadline - monotonic())
            except PodResourcesError as error:
                if isinstance(error, KubeletTimeout) and reason is not None:
                    raise reason from error  # the reason for this try says more than that time ran out
                reason = error
                delay = self._session.delay_after(error, attempt, deadline - monotonic())
                if delay is None:
                    raise
            time.sleep(delay)
        raise AssertionError("unreachable")

    def _once(self, rpc: Rpc, request: bytes, read: Reader[T], seconds: float) -> T:
        identity = identify(self._socket.path)
        if self._session.meet(identity):
            self._hang_up()
        channel = self._channel  # close() in another thread takes it away
        if channel is None:
            channel = self._channel = grpc.insecure_channel(self._socket.target, options=self._socket.options)
        started = perf_counter()
        code = "OK"
        try:
            ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(rpc.path)
            data = ask(request, timeout=seconds)
            self._session.require_same(identity, identify(self._socket.path))
            return read(data, identity)
        except PodResourcesError as error:
            code = error.code
            raise
        except (grpc.RpcError, ValueError) as failure:  # ValueError: the channel was closed before the call began
            if self._session.closed:
                code = ClientClosed.code
                raise ClientClosed(f"The client was closed while {rpc} was under way") from failure
            if isinstance(failure, ValueError):
                raise
            meaning = self._socket.error(rpc, failure.code(), failure.details() or "")
            code = meaning.code
            if isinstance(meaning, KubeletUnavailable):
                self._hang_up()
            raise meaning from failure
        finally:
            self._session.report(rpc, code, perf_counter() - started)

    def _hang_up(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
