"""Answer kubelet's five calls on one resource's socket; turn exceptions into gRPC status codes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import grpc
import grpc.aio
from msgspec import Struct

from deviceplugin import codec
from deviceplugin.api import Allocator, Plugin, Preferrer, PreStarter, require_healthy
from deviceplugin.errors import AllocationError
from deviceplugin.inflight import Inflight
from deviceplugin.model import ContainerAllocation, ListedHealth
from deviceplugin.observer import Allocated, ListSent, Notifier, Preferred, PreStarted
from deviceplugin.streams import ListStream, ListStreams
from deviceplugin.timeouts import Timeouts
from deviceplugin.wire import v1beta1_pb2 as pb
from deviceplugin.wire import v1beta1_pb2_grpc as pb_grpc

log = logging.getLogger("deviceplugin")

Context = Any  # grpc.aio.ServicerContext; the generated base class asks for the union with the synchronous one


class CallOutcome(Struct, frozen=True):
    """How a call ended. ``message`` goes to the peer when ``code`` is not OK."""

    code: grpc.StatusCode = grpc.StatusCode.OK
    message: str = ""


class DevicePluginService(pb_grpc.DevicePluginServicer):
    """The gRPC service: the plugin decides, ``ListStreams`` and ``Inflight`` remember."""

    def __init__(
        self,
        plugin: Plugin,
        streams: ListStreams,
        inflight: Inflight,
        timeouts: Timeouts,
        notify: Notifier,
        clock: Callable[[], float],
    ) -> None:
        self._plugin = plugin
        self._allocator = plugin if isinstance(plugin, Allocator) else None  # checked once: that is slow
        self._streams = streams
        self._inflight = inflight
        self._timeouts = timeouts
        self._notify = notify
        self._clock = clock
        self._cache = codec.ListCache()
        self._complained_about_preference = False
        self._work: set[asyncio.Task[Any]] = set()

    @property
    def left_out(self) -> int:
        """How many ids of the newest list were left out, because kubelet takes at most 4 MiB in one message."""
        return self._cache.left_out

    def options(self) -> pb.DevicePluginOptions:
        """Return the plugin's options: they follow from what it implements."""
        plugin = self._plugin
        return pb.DevicePluginOptions(
            pre_start_required=isinstance(plugin, PreStarter) and plugin.pre_start_required,
            get_preferred_allocation_available=isinstance(plugin, Preferrer),
        )

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        return self.options()

    async def ListAndWatch(  # type: ignore[override]  # a coroutine that writes: a generator's end is the collector's
        self, request: pb.Empty, context: Context
    ) -> None:
        devices = self._plugin.devices()
        with self._streams.open() as stream, devices.subscribe(stream.poke.set):
            while not stream.ended:
                stream.poke.clear()
                await self._send_newest(stream, context)
                await stream.poke.wait()

    async def _send_newest(self, stream: ListStream, context: Context) -> None:
        while not stream.ended:  # of what is published during a write, the newest is sent at once
            snapshot = self._plugin.devices().current
            if snapshot is None or snapshot.version <= stream.sent_version:
                return
            started = self._clock()
            before = self.left_out
            message = self._cache.message(snapshot)
            if self.left_out not in (0, before):
                log.error(
                    "device list too large for kubelet, ids left out",
                    extra={"resource": self._plugin.resource, "ids": self.left_out},
                )
            await context.write(message)
            self._streams.sent(stream, snapshot.version)
            self._notify(
                ListSent(
                    self._plugin.resource,
                    snapshot.version,
                    len(message.devices),
                    sum(device.health == ListedHealth.HEALTHY for device in message.devices),
                    self._clock() - started,
                )
            )

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        wanted = [codec.unique_sorted(container.devices_ids) for container in request.container_requests]
        asked = tuple(device_id for ids in wanted for device_id in ids)
        started = self._clock()
        allocations, outcome = await self._bounded(
            lambda: self._ask_all(wanted), asked, self._timeouts.allocate_seconds, "Allocate"
        )
        # Kubelet waits for the answer, nobody for log lines.
        asyncio.get_running_loop().call_soon(self._allocated, asked, outcome, self._clock() - started)
        if allocations is None:
            await context.abort(outcome.code, outcome.message)
            raise AssertionError("abort raises")
        return pb.AllocateResponse(container_responses=[codec.encode_allocation(a) for a in allocations])

    def _allocated(self, ids: tuple[str, ...], outcome: CallOutcome, seconds: float) -> None:
        self._notify(Allocated(self._plugin.resource, ids, outcome.code.name, outcome.message, seconds))

    def _ask_all(
        self, wanted: Sequence[Sequence[str]]
    ) -> list[ContainerAllocation] | Coroutine[Any, Any, list[ContainerAllocation]]:
        """Ask the plugin for each container in turn; return a coroutine as soon as one answer has to wait."""
        answers: list[ContainerAllocation] = []
        for index, ids in enumerate(wanted):
            answer = self._ask(ids)
            if not isinstance(answer, ContainerAllocation):
                return self._ask_rest(answers, answer, wanted[index + 1 :])
            answers.append(answer)
        return answers

    async def _ask_rest(
        self,
        answers: list[ContainerAllocation],
        pending: Coroutine[Any, Any, ContainerAllocation],
        rest: Sequence[Sequence[str]],
    ) -> list[ContainerAllocation]:
        answers.append(await pending)
        for ids in rest:
            answer = self._ask(ids)
            answers.append(answer if isinstance(answer, ContainerAllocation) else await answer)
        return answers

    def _ask(self, ids: Sequence[str]) -> ContainerAllocation | Coroutine[Any, Any, ContainerAllocation]:
        if self._allocator is not None:
            return self._allocator.allocate(ids)
        require_healthy(self._plugin, ids)
        return ContainerAllocation()

    async def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        plugin = self._plugin
        if not isinstance(plugin, PreStarter):
            return pb.PreStartContainerResponse()
        ids = codec.unique_sorted(request.devices_ids)
        started = self._clock()
        _, outcome = await self._bounded(
            lambda: plugin.pre_start(ids), ids, self._timeouts.pre_start_seconds, "PreStartContainer"
        )
        self._notify(
            PreStarted(plugin.resource, tuple(ids), outcome.code.name, outcome.message, self._clock() - started)
        )
        if outcome.code is not grpc.StatusCode.OK:
            await context.abort(outcome.code, outcome.message)
        return pb.PreStartContainerResponse()

    async def GetPreferredAllocation(
        self, request: pb.PreferredAllocationRequest, context: Context
    ) -> pb.PreferredAllocationResponse:
        """Return preferred ids, never an error: that would reject the pod and leak devices (kubernetes#130145)."""
        return pb.PreferredAllocationResponse(
            container_responses=[
                pb.ContainerPreferredAllocationResponse(deviceIDs=self._prefer(container))
                for container in request.container_requests
            ]
        )

    def _prefer(self, request: pb.ContainerPreferredAllocationRequest) -> list[str]:
        plugin = self._plugin
        if not isinstance(plugin, Preferrer):
            return []
        available = codec.unique_sorted(request.available_deviceIDs)
        must = codec.unique_sorted(request.must_include_deviceIDs)
        started = self._clock()
        # Kubelet may pick any of them now, and tells us only with Allocate: they count as asked about.
        self._inflight.enter(available)
        try:
            answer = list(plugin.prefer(available, must, request.allocation_size))
        except Exception:
            answer = []
            if not self._complained_about_preference:
                self._complained_about_preference = True
                log.exception("preference failed, kubelet picks for itself", extra={"resource": plugin.resource})
        finally:
            self._inflight.leave(available)
        self._notify(
            Preferred(plugin.resource, len(available), request.allocation_size, bool(answer), self._clock() - started)
        )
        return answer

    async def _bounded(
        self, begin: Callable[[], Any], ids: Sequence[str], seconds: float, what: str
    ) -> tuple[Any, CallOutcome]:
        """Return the result of ``begin``, or of its coroutine within ``seconds``, and the outcome.

        The result is None when the outcome is not OK. After ``seconds`` the caller is answered, whatever the plugin
        does.

        Work that waits is a task of its own: a kubelet that goes away does not cut it in the middle, and ``ids`` count
        as in flight until it is really over.
        """
        what = f"{what} of {', '.join(ids)}"
        self._inflight.enter(ids)
        work = None
        try:
            work = begin()
        except (Exception, asyncio.CancelledError) as error:
            return None, translate(error, what)
        finally:
            if not isinstance(work, Coroutine):
                self._inflight.leave(ids)
        if not isinstance(work, Coroutine):
            return work, CallOutcome()
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        task = loop.create_task(work)
        self._work.add(task)

        def wake() -> None:
            if not over.done():
                over.set_result(None)

        def finish(task: asyncio.Task[Any]) -> None:
            self._work.discard(task)
            self._inflight.leave(ids)
            if not task.cancelled():
                task.exception()  # retrieved, because asyncio complains about an exception that nobody reads
            wake()

        task.add_done_callback(finish)
        timer = loop.call_later(seconds, wake)
        try:
            await over  # asyncio.wait would cost more than a quick plugin's work
        finally:
            timer.cancel()
        if not task.done():
            task.cancel()
            log.error("call timed out", extra={"call": what, "seconds": seconds})
            return None, translate(TimeoutError(), what)
        failure = asyncio.CancelledError() if task.cancelled() else task.exception()
        if failure is not None:
            return None, translate(failure, what)
        return task.result(), CallOutcome()


def translate(error: BaseException, what: str) -> CallOutcome:
    """Return the status for an exception of a plugin's method. ``what`` names the call in logs and texts.

    Only the text of an ``AllocationError`` is meant for people elsewhere; anything else is a defect of the plugin and
    its text stays in the log.
    """
    if isinstance(error, AllocationError):
        return CallOutcome(_code(error.code), str(error))
    if isinstance(error, TimeoutError):
        return CallOutcome(
            grpc.StatusCode.DEADLINE_EXCEEDED, f"{what} took too long on the node; look at the plugin's log"
        )
    if isinstance(error, asyncio.CancelledError):
        return CallOutcome(grpc.StatusCode.CANCELLED, f"{what} was cancelled: the plugin is stopping")
    log.error("call failed", exc_info=error, extra={"call": what})
    return CallOutcome(
        grpc.StatusCode.INTERNAL, f"{what} failed inside the plugin ({type(error).__name__}); see its log"
    )


def _code(name: str) -> grpc.StatusCode:
    try:
        code = grpc.StatusCode[name]
    except KeyError:
        log.error("unknown gRPC status name", extra={"status": name})
        return grpc.StatusCode.UNKNOWN
    return grpc.StatusCode.UNKNOWN if code is grpc.StatusCode.OK else code  # an error must not read as success
