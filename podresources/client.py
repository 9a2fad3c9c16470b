"""The asynchronous client of kubelet's PodResources API."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from pathlib import Path
from time import perf_counter
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


class Client:
    """Asks kubelet who holds what.

    It connects at the first call, and again whenever kubelet's socket was replaced.

    One request is in flight at a time: kubelet's limiter is shared by the whole node. Waiting for other requests counts
    towards the deadline. Requests are repeated, with jitter, while kubelet restarts or its limiter refuses, as long as
    the deadline allows. ``features`` tells what this kubelet has been seen to support.

    ``observe`` is called after every request with an ``Attempt``, for metrics.
    """

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
        self._channel: grpc.aio.Channel | None = None
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def features(self) -> KubeletFeatures:
        """What the kubelet that answered last is known to support."""
        return self._session.features

    async def list(self, *, timeout_seconds: float | None = None) -> NodeSnapshot:
        """Return every pod of the node with what it holds. Raises PodResourcesError."""
        return await self._call(Rpc.LIST, b"", self._session.read_list, timeout_seconds)

    async def allocatable(self, *, timeout_seconds: float | None = None) -> Allocatable:
        """Return healthy device-plugin devices, CPUs and memory, held or not. Raises PodResourcesError."""
        return await self._call(Rpc.ALLOCATABLE, b"", self._session.read_allocatable, timeout_seconds)

    async def get(self, namespace: str, pod: str, *, timeout_seconds: float | None = None) -> NodeSnapshot:
        """Return one pod, as a snapshot with that pod alone. Raises PodNotFound and other PodResourcesErrors.

        Kubelets without Get (before 1.34) are asked for the whole List instead; ``features.get`` is then NO.
        """
        if not self._session.get_unsupported:
            try:
                request = get_request(namespace, pod)
                return await self._call(Rpc.GET, request, self._session.read_get, timeout_seconds)
            except NotSupported:
                pass
        return pick(await self.list(timeout_seconds=timeout_seconds), namespace, pod)

    async def probe(self, *, timeout_seconds: float | None = None) -> KubeletFeatures:
        """Find out whether Get is served, by asking for a pod that does not exist.

        The other features are learned from answers.
        """
        if self.features.get is Support.UNKNOWN:
            with suppress(PodNotFound, NotSupported):
                await self._call(Rpc.GET, get_request(*PROBE_POD), self._session.read_get, timeout_seconds)
        return self.features

    async def close(self) -> None:
        """Close the connection. Calls under way end with ClientClosed."""
        self._session.closed = True
        await self._hang_up()

    async def _call(self, rpc: Rpc, request: bytes, read: Reader[T], timeout_seconds: float | None) -> T:
        deadline = asyncio.get_running_loop().time() + (timeout_seconds or self.timeout_seconds)
        try:
            async with asyncio.timeout_at(deadline):
                await self._turn.acquire()
        except TimeoutError:
            raise self._socket.timeout(rpc) from None
        try:
            return await self._until_answered(rpc, request, read, deadline)
        except PodResourcesError as error:
            self._session.note_refusal(error)
            raise
        finally:
            self._turn.release()

    async def _until_answered(self, rpc: Rpc, request: bytes, read: Reader[T], deadline: float) -> T:
        now = asyncio.get_running_loop().time
        reason: PodResourcesError | None = None
        for attempt in itertools.count():
            try:
                return await self._once(rpc, request, read, deadline - now())
            except PodResourcesError as error:
                if isinstance(error, KubeletTimeout) and reason is not None:
                    raise reason from error  # the reason for this try says more than that time ran out
                reason = error
                delay = self._session.delay_after(error, attempt, deadline - now())
                if delay is None:
                    raise
            await asyncio.sleep(delay)
        raise AssertionError("unreachable")

    async def _once(self, rpc: Rpc, request: bytes, read: Reader[T], seconds: float) -> T:
        identity = identify(self._socket.path)
        if self._session.meet(identity):
            await self._hang_up()
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._socket.target, options=self._socket.options)
        started = perf_counter()
        code = "OK"
        try:
            ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(rpc.path)
            data = await ask(request, timeout=seconds)
            self._session.require_same(identity, identify(self._socket.path))
            return read(data, identity)
        except PodResourcesError as error:
            code = error.code
            raise
        except grpc.aio.AioRpcError as failure:
            meaning = self._socket.error(rpc, failure.code(), failure.details() or "")
            code = meaning.code
            if isinstance(meaning, KubeletUnavailable):
                await self._hang_up()
            raise meaning from failure
        except asyncio.CancelledError:
            code = "CANCELLED"
            if self._session.closed:
                raise ClientClosed(f"The client was closed while {rpc} was under way") from None
            raise
        finally:
            self._session.report(rpc, code, perf_counter() - started)

    async def _hang_up(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()
