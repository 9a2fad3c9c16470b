"""Pass kubelet's calls for claims on from a standby to the agent that serves at that moment.

Kubelet keeps every registered endpoint of a driver and calls the one that registered last and is connected (1.33 and
later, pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go). If a call meets no endpoint, the start of its pod fails and is
tried again after 60 to 90 s. So a standby registers an endpoint under names of its own before the other agent ends. A
call that comes between the two agents waits here for the one that takes over. This endpoint is removed once kubelet
knows that agent's own.

The relay serves no claim. It does not decode messages; it only knows where one ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn

import grpc

from drabridge.dra.concurrency import to_the_end
from drabridge.dra.observer import Fact, RegistrationChanged
from drabridge.dra.registration import RegistrationService
from drabridge.dra.server import listen
from drabridge.dra.sockets import PluginSockets, is_dead
from drabridge.errors import HostError

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # between two tests whether an agent serves claims
AGAIN_SECONDS = 0.02  # between attempts while nobody serves: an agent takes over in 50 to 100 ms
WAIT_SECONDS = 30.0  # how long a call waits for an agent, of kubelet's 45 s; no agent takes longer to end or start
ANSWER_SECONDS = 5.0  # the rest of kubelet's time that is left for an answer in words
IDLE_SECONDS = 0.2
STOP_GRACE_SECONDS = 1.0  # for calls that are being passed on
_CALLS = ("NodePrepareResources", "NodeUnprepareResources")
_STREAM = "NodeWatchResources"
# Subchannels are not shared: a failed shared one is not tried again for a second, whoever asks.
_CHANNEL = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)  # nobody listens, or the agent ended during the call
_Context = grpc.aio.ServicerContext[bytes, bytes]


class Relay(grpc.GenericRpcHandler):
    """Runs beside the agent that serves ``driver`` on this node."""

    def __init__(self, kubelet: Path, driver: str) -> None:
        """``kubelet``: its root directory. Raises HostError when a socket's path would be too long."""
        self._driver = driver
        self._active = PluginSockets.of(kubelet, driver).service
        self._sockets = PluginSockets.of(kubelet, driver, secrets.token_hex(2))
        self._servers: list[grpc.aio.Server] = []
        self._closing = asyncio.Event()
        self._calls = 0  # number of calls for which kubelet waits
        self._registration = RegistrationService(driver, self._sockets.service, self._told)
        self._decided = asyncio.Event()

    async def decided(self) -> None:
        """Wait until kubelet has connected to the endpoint or refused it, or there is nothing to pass on.

        Kubelet 1.34 and later connects at once, for the stream (dra_plugin_manager.go); earlier ones for a call.
        """
        await self._decided.wait()

    async def idle(self) -> None:
        """Wait until no call is under way here: kubelet gives up on such calls when the endpoint is removed."""
        await asyncio.sleep(IDLE_SECONDS)  # for a call that kubelet was just about to make here
        while self._calls:
            await asyncio.sleep(IDLE_SECONDS)

    def _told(self, fact: Fact) -> None:
        if isinstance(fact, RegistrationChanged) and not fact.registered:
            self._decided.set()

    async def run(self) -> None:
        """Wait for an agent that serves claims, register beside it, and pass calls on until cancelled."""
        try:
            while is_away(self._active):
                self._decided.set()  # claims may be served later, or never
                await asyncio.sleep(LOOK_SECONDS)
            await self._open()
            log.info("claim calls passed on", extra={"driver": self._driver, "to": str(self._active)})
            await self._closing.wait()
        except (HostError, OSError) as error:  # claims then wait for kubelet's next attempt, as without a standby
            log.warning("claim calls not passed on", extra={"reason": str(error)})
        finally:
            self._decided.set()
            await to_the_end(self._stop())

    async def _open(self) -> None:
        self._sockets.prepare(self._driver)
        registration = grpc.aio.server()
        self._registration.add_to(registration)
        service = grpc.aio.server()
        service.add_generic_rpc_handlers((self,))
        for server, path in ((service, self._sockets.service), (registration, self._sockets.registration)):
            listen(server, path)
            self._servers.append(server)
            await to_the_end(server.start())

    async def _stop(self) -> None:
        """End the registration first, so that kubelet calls another endpoint before this one is gone."""
        self._closing.set()
        for server in reversed(self._servers):
            await server.stop(STOP_GRACE_SECONDS)
        self._servers.clear()

    # grpc.GenericRpcHandler

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Handle every version of the calls and of the stream; messages stay bytes."""
        method = handler_call_details.method
        name = method.rpartition("/")[2]

        async def call(request: bytes, context: _Context) -> bytes:  # grpc.aio tests if it is a coroutine function
            self._calls += 1
            try:
                return await self._answer(method, request, context)
            finally:
                self._calls -= 1

        async def watch(request: bytes, context: _Context) -> AsyncIterator[bytes]:
            async for message in self._watch(method, request):
                yield message

        if name in _CALLS:
            return grpc.unary_unary_rpc_method_handler(call)
        return grpc.unary_stream_rpc_method_handler(watch) if name == _STREAM else None

    async def _answer(self, method: str, request: bytes, context: _Context) -> bytes:
        loop = asyncio.get_running_loop()
        left = context.time_remaining() or WAIT_SECONDS + ANSWER_SECONDS
        until = loop.time() + min(WAIT_SECONDS, left - ANSWER_SECONDS)
        while True:
            if not is_away(self._active):
                try:
                    async with self._channel() as channel:
                        answer: bytes = await channel.unary_unary(method)(request, timeout=context.time_remaining())
                        return answer
                except grpc.aio.AioRpcError as error:
                    if error.code() not in _AWAY:
                        await _refuse(context, error.code(), error.details() or "")
            if loop.time() >= until:
                words = f"no agent of {self._driver} serves claims on this node now; kubelet tries again"
                await _refuse(context, grpc.StatusCode.UNAVAILABLE, words)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _watch(self, method: str, request: bytes) -> AsyncIterator[bytes]:
        """Pass on health from one agent after the other, in one stream: kubelet forgets it when the stream ends."""
        if not self._decided.is_set():
            log.info("kubelet has connected to the standby", extra={"driver": self._driver})
        self._decided.set()
        while not self._closing.is_set():
            with contextlib.suppress(grpc.aio.AioRpcError):
                async with self._channel() as channel:
                    async for message in self._until_closing(channel.unary_stream(method)(request)):
                        yield message
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._closing.wait()

    async def _until_closing(self, stream: Any) -> AsyncIterator[bytes]:
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            while True:
                reading = asyncio.ensure_future(stream.read())
                await asyncio.wait({reading, closing}, return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    reading.cancel()
                    return
                if (message := reading.result()) is grpc.aio.EOF:
                    return
                yield message
        finally:
            closing.cancel()
            stream.cancel()

    def _channel(self) -> Any:
        """Open a connection for messages that stay bytes."""
        return grpc.aio.insecure_channel(f"unix://{self._active}", options=_CHANNEL)


def is_away(path: Path) -> bool:
    """Whether nobody listens at this socket's path."""
    return not path.exists() or is_dead(path)


async def _refuse(context: _Context, code: grpc.StatusCode, words: str) -> NoReturn:
    await context.abort(code, words)
    raise AssertionError("abort raises")
