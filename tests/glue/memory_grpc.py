"""gRPC without bytes on a wire: servers and channels find each other by the sockets' files, as real ones do.

Real files, so that who looks at them sees what it would see. Only calls go another way, and take the time that they are
given.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import grpc
import grpc.aio

from tests.glue.processes import PROCESS

BACKLOG = 4096  # who looks whether somebody listens connects, and is never accepted
POLL_SECONDS = 0.25  # between attempts to connect


class Wire:
    """How long each message takes, in seconds; and who listens where."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self.seconds = seconds
        self.servers: dict[tuple[int, int], MemoryServer] = {}

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Let ``grpc.aio`` make servers and channels of this wire."""
        with (
            patch.object(grpc.aio, "server", lambda *_, **__: MemoryServer(self)),
            patch.object(grpc.aio, "insecure_channel", lambda target, **_: MemoryChannel(self, target)),
        ):
            yield


class _AbortError(Exception):
    def __init__(self, code: grpc.StatusCode, words: str) -> None:
        super().__init__(words)
        self.code = code


class _Context:
    """What a method sees of its call."""

    def __init__(self, deadline: float | None) -> None:
        self._deadline = deadline
        self.messages: asyncio.Queue[Any] = asyncio.Queue()

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        raise _AbortError(code, details)

    def time_remaining(self) -> float | None:
        return None if self._deadline is None else self._deadline - asyncio.get_running_loop().time()

    async def write(self, message: Any) -> None:
        self.messages.put_nowait(message)
        await asyncio.sleep(0)


class MemoryServer:
    """The part of ``grpc.aio.Server`` that is used."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._process = PROCESS.get()
        self._context = copy_context()
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._bound: dict[str, tuple[socket.socket, tuple[int, int]]] = {}
        self._calls: set[asyncio.Task[Any]] = set()
        self.running = False
        self.ended = asyncio.Event()

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self._handlers += handlers

    def add_registered_method_handlers(self, name: str, handlers: Any) -> None:
        """The generic ones are enough."""

    def add_insecure_port(self, address: str) -> int:
        path = address.removeprefix("unix:")
        path = path.removeprefix("//")
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind(path)
        except OSError as error:
            listening.close()
            raise RuntimeError(f"cannot bind {path}: {error}") from error
        listening.listen(BACKLOG)
        status = os.stat(path)
        self._bound[path] = listening, (status.st_dev, status.st_ino)
        self._wire.servers[status.st_dev, status.st_ino] = self
        return 1

    async def start(self) -> None:
        self.running = True
        self._process.at_kill.append(self._die)

    async def stop(self, grace: float | None) -> None:
        """Listen no more, remove the files, end the calls."""
        self._close()
        if self._process.alive:
            for path in self._bound:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(path)
        self._bound.clear()
        if self._calls and grace:
            await asyncio.wait(self._calls, timeout=grace)
        self._hang_up()

    def _close(self) -> None:
        self.running = False
        for listening, place in self._bound.values():
            listening.close()
            if self._wire.servers.get(place) is self:
                del self._wire.servers[place]

    def _hang_up(self) -> None:
        self.ended.set()
        for call in tuple(self._calls):
            call.cancel()

    def _die(self) -> None:
        """The process is gone, and its sockets' files stay."""
        self._close()
        self._hang_up()

    def handler(self, method: str) -> Any:
        details: Any = SimpleNamespace(method=method, invocation_metadata=())
        return next(filter(None, (one.service(details) for one in self._handlers)), None)

    def begin(self, work: Any) -> asyncio.Task[Any]:
        """Run a method in this server's process."""
        call = asyncio.get_running_loop().create_task(work, context=self._context.copy())
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call


class MemoryChannel:
    """The part of ``grpc.aio.Channel`` that is used. It finds a server at its first call, and keeps it."""

    def __init__(self, wire: Wire, target: str) -> None:
        self._wire = wire
        self._path = target.removeprefix("unix:").removeprefix("//")
        self._server: MemoryServer | None = None
        self._calls: set[asyncio.Task[Any]] = set()
        self._closed = asyncio.Event()

    async def __aenter__(self) -> MemoryChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        self._closed.set()
        for call in tuple(self._calls):
            call.cancel()

    def connected(self) -> MemoryServer | None:
        """The server, if it is there."""
        if self._server is None or not self._server.running:
            try:
                status = os.stat(self._path)
            except OSError:
                self._server = None
            else:
                self._server = self._wire.servers.get((status.st_dev, status.st_ino))
        return self._server if self._server is not None and self._server.running else None

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return grpc.ChannelConnectivity.READY if self.connected() else grpc.ChannelConnectivity.TRANSIENT_FAILURE

    async def wait_for_state_change(self, last: grpc.ChannelConnectivity) -> None:
        while self.get_state() is last:
            server = self.connected()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if server else POLL_SECONDS):
                    await (server.ended if server else self._closed).wait()

    async def channel_ready(self) -> None:
        while not self.connected():
            await asyncio.sleep(POLL_SECONDS)

    def unary_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Callable[..., asyncio.Task[Any]]:
        def call(request: Any, *, timeout: float | None = None, **_: Any) -> asyncio.Task[Any]:
            data = request_serializer(request) if request_serializer else request
            return self._begin(self._ask(method, data, timeout, response_deserializer))

        return call

    def unary_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Callable[..., _Stream]:
        def call(request: Any, *, timeout: float | None = None, **_: Any) -> _Stream:
            data = request_serializer(request) if request_serializer else request
            stream = _Stream(self._wire, response_deserializer)
            stream.task = self._begin(stream.follow(self, method, data))
            return stream

        return call

    def _begin(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task

    async def _ask(self, method: str, data: bytes, timeout: float | None, read: Any) -> Any:
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        await asyncio.sleep(self._wire.seconds())
        server, handler = self.found(method)
        request = handler.request_deserializer(data) if handler.request_deserializer else data
        call = server.begin(handler.unary_unary(request, _Context(deadline)))
        try:
            await asyncio.wait({call}, timeout=None if deadline is None else deadline - loop.time())
        finally:
            call.cancel()
        if not call.done():
            raise failed(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        answer = outcome(call)
        answer = handler.response_serializer(answer) if handler.response_serializer else answer
        await asyncio.sleep(self._wire.seconds())
        if server.ended.is_set():
            raise failed(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        return read(answer) if read else answer

    def found(self, method: str) -> tuple[MemoryServer, Any]:
        """The server and its method. Raises AioRpcError."""
        if (server := self.connected()) is None:
            raise failed(grpc.StatusCode.UNAVAILABLE, f"failed to connect to {self._path}")
        if (handler := server.handler(method)) is None:
            raise failed(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        return server, handler


class _Stream:
    """The messages of a method that answers with several."""

    def __init__(self, wire: Wire, read: Any) -> None:
        self._wire = wire
        self._read = read
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        self.task: asyncio.Task[None]

    async def follow(self, channel: MemoryChannel, method: str, data: bytes) -> None:
        try:
            await asyncio.sleep(self._wire.seconds())
            server, handler = channel.found(method)
            context = _Context(None)
            request = handler.request_deserializer(data) if handler.request_deserializer else data
            call = server.begin(_answers(handler.unary_stream, request, context))
            try:
                while True:
                    message = await _next(context.messages, call)
                    if message is grpc.aio.EOF:
                        break
                    await asyncio.sleep(self._wire.seconds())
                    sent = handler.response_serializer(message) if handler.response_serializer else message
                    self._messages.put_nowait(self._read(sent) if self._read else sent)
                outcome(call)
            finally:
                call.cancel()
        except BaseException as error:
            self._messages.put_nowait(error)
            if not isinstance(error, grpc.aio.AioRpcError):
                raise
        else:
            self._messages.put_nowait(grpc.aio.EOF)

    async def read(self) -> Any:
        message = await self._messages.get()
        if isinstance(message, BaseException):
            raise message
        return message

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    def cancel(self) -> None:
        self.task.cancel()


async def _answers(method: Any, request: Any, context: _Context) -> None:
    """Run a method that yields its answers, or writes them."""
    answers = method(request, context)
    if inspect.isawaitable(answers):
        await answers
        return
    async with contextlib.aclosing(answers):
        async for answer in answers:
            await context.write(answer)


async def _next(messages: asyncio.Queue[Any], call: asyncio.Task[Any]) -> Any:
    """The next message; EOF when the call is over."""
    reading = asyncio.ensure_future(messages.get())
    try:
        await asyncio.wait({reading, call}, return_when=asyncio.FIRST_COMPLETED)
        return reading.result() if reading.done() else grpc.aio.EOF
    finally:
        reading.cancel()


def outcome(call: asyncio.Task[Any]) -> Any:
    """What a method answered. Raises AioRpcError."""
    if call.cancelled():
        raise failed(grpc.StatusCode.UNAVAILABLE, "Socket closed")
    if (error := call.exception()) is None:
        return call.result()
    if isinstance(error, _AbortError):
        raise failed(error.code, str(error)) from error
    raise failed(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}") from error


def failed(code: grpc.StatusCode, words: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=words)
