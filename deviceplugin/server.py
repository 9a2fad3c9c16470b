"""Serve one resource to kubelet: do what the registration state machine decides."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from deviceplugin.api import Plugin
from deviceplugin.errors import DevicePluginError, KubeletDownError, RegistrationError, SocketError
from deviceplugin.inflight import Inflight
from deviceplugin.inotify import Subscription, Watcher
from deviceplugin.kubelet_restart import LevelCheck
from deviceplugin.listener import Listener
from deviceplugin.observer import (
    BindFailed,
    Bound,
    KubeletSeen,
    Notifier,
    Observer,
    PhaseChanged,
    Registered,
    RegisterFailed,
    StreamEnded,
    StreamOpened,
)
from deviceplugin.register_call import register
from deviceplugin.registration import (
    STREAMING,
    Action,
    RegistrationEvent,
    RegistrationPhase,
    RegistrationProgress,
    delay_seconds,
    step,
)
from deviceplugin.service import DevicePluginService
from deviceplugin.sockets import KUBELET_SOCKET, remove_stale
from deviceplugin.streams import ListStream, ListStreams
from deviceplugin.timeouts import Timeouts

log = logging.getLogger("deviceplugin")


class ServerState(Struct, frozen=True):
    """A snapshot for readiness, metrics and people.

    ``since`` is the clock's value when ``phase`` began; ``error`` the last failure, empty once a stream is alive;
    ``sent_version`` the newest list that kubelet's live stream took, 0 without one; ``left_out`` how many of its ids
    were left out, because kubelet takes 4 MiB in one message.
    """

    resource: str
    phase: RegistrationPhase
    since: float
    error: str
    socket: Path | None
    streams: int
    registered: bool
    registrations: int
    published_version: int
    sent_version: int
    left_out: int = 0


class PluginServer:
    """Serves ``plugin`` to the kubelet of the plugin ``directory``, for as long as ``run`` runs.

    ``name`` begins the socket's file name and marks the files that are ours to clean up. ``watcher`` may be shared by
    all servers of a process. ``clock`` counts seconds and never goes back.
    """

    def __init__(
        self,
        plugin: Plugin,
        *,
        directory: Path,
        name: str = "deviceplugin",
        timeouts: Timeouts | None = None,
        watcher: Watcher | None = None,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._plugin = plugin
        self._directory = directory
        self._name = name
        self._timeouts = timeouts or Timeouts()
        self._watcher = watcher or Watcher()
        self._notify = Notifier(observer)
        self._clock = clock
        self._rng = rng or random.Random()

        self._streams = ListStreams(clock, self._stream_opened, self._stream_ended)
        self._inflight = Inflight(clock)
        self._service = DevicePluginService(plugin, self._streams, self._inflight, self._timeouts, self._notify, clock)
        self._machine = RegistrationProgress()
        self._since = clock()
        self._error = ""
        self._registrations = 0
        self._listener: Listener | None = None
        self._call: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._events: deque[RegistrationEvent] = deque()
        self._awake = asyncio.Event()
        self._stopping = False
        self._grace_seconds = 1.0
        self._done = asyncio.Event()
        self._running = False
        self._check = LevelCheck(directory)

    # Questions of the program around the library.

    @property
    def state(self) -> ServerState:
        """The registration at this moment."""
        return ServerState(
            resource=self._plugin.resource,
            phase=self._machine.phase,
            since=self._since,
            error=self._error,
            socket=self._listener.path if self._listener else None,
            streams=len(self._streams),
            registered=self._machine.phase in STREAMING and self._streams.read_by_kubelet,
            registrations=self._registrations,
            published_version=self._plugin.devices().version,
            sent_version=self._streams.sent_version,
            left_out=self._service.left_out,
        )

    @property
    def sent_version(self) -> int:
        """The newest list version that kubelet's live stream took; 0 without one."""
        return self._streams.sent_version

    async def wait_sent(self, version: int) -> None:
        """Wait without a limit until kubelet's live stream took list ``version`` or a newer one."""
        await self._streams.wait_sent(version)

    @property
    def inflight_ids(self) -> frozenset[str]:
        """Ids of calls under way: none of them may leave the list."""
        return self._inflight.ids

    @property
    def idle_seconds(self) -> float:
        """How long kubelet has asked about no id: 0 while a call is under way."""
        return self._inflight.idle_seconds

    @property
    def recent_ids(self) -> frozenset[str]:
        """Ids that kubelet asked about within ``Timeouts.recent_seconds``: it may be about to allocate them."""
        return self._inflight.recent(self._timeouts.recent_seconds)

    # The life cycle.

    async def run(self) -> None:
        """Serve until cancelled or stopped. Neither kubelet nor the file system makes this raise.

        It registers only once the plugin has published a first list: without one kubelet would count zero devices.
        """
        if self._running:
            raise RuntimeError("this server runs already")
        self._running = True
        subscription: Subscription | None = None
        try:
            if not await self._first_list():
                return
            subscription = self._watcher.subscribe(self._directory, self._awake.set)
            self._events.append(RegistrationEvent.START)
            while not self._stopping:
                subscription.refresh()
                self._look()
                while self._events and not self._stopping:
                    await self._take(self._events.popleft())
                poll = self._timeouts.poll_blind_seconds if subscription.blind else self._timeouts.poll_seconds
                if not self._events:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(poll):
                            await self._awake.wait()
                self._awake.clear()
        finally:
            if subscription is not None:
                subscription.close()
            await self._close(self._grace_seconds)
            self._running = False
            self._done.set()

    async def register_again(self) -> None:
        """End kubelet's stream, so that the state machine registers again.

        Another plugin may have taken our place. Kubelet counts all devices as Unhealthy until it reads our list again.
        """
        await self._streams.end_all(self._timeouts.end_streams_seconds)

    async def stop(self, grace_seconds: float = 1.0) -> None:
        """End the streams, give calls in flight ``grace_seconds``, stop, remove our own socket.

        Returns when done.

        No empty list is sent: capacity would drop at once, and kubelet would forget devices that pods hold.
        """
        self._grace_seconds = grace_seconds
        self._stopping = True
        self._awake.set()
        if self._running:
            await self._done.wait()

    async def _first_list(self) -> bool:
        """Wait for the plugin's first list; False if stopped meanwhile."""
        self._error = "the plugin has published no list of devices yet"
        with self._plugin.devices().subscribe(self._awake.set):
            while not self._stopping and self._plugin.devices().current is None:
                await self._awake.wait()
                self._awake.clear()
        self._error = ""
        return not self._stopping

    async def _close(self, grace_seconds: float) -> None:
        self._cancel_timer()
        self._cancel_call()
        await self._streams.end_all(self._timeouts.end_streams_seconds)
        if self._listener is not None:
            listener, self._listener = self._listener, None
            # Without a call in flight only an answer on its way needs time; a frozen reader would use up all of it.
            await listener.stop(grace_seconds if self._inflight.ids else min(grace_seconds, 0.1))
        self._machine, self._since = RegistrationProgress(), self._clock()
        self._check = LevelCheck(self._directory)
        self._events.clear()

    def _look(self) -> None:
        """Queue what the level check (kubelet_restart.py) finds changed."""
        for event in self._check.look(self._listener):
            self._events.append(event)
            if event is RegistrationEvent.KUBELET_NEW:
                self._notify(KubeletSeen(self._plugin.resource))

    # Decisions: one step of the state machine (registration.py) for each event.

    async def _take(self, event: RegistrationEvent) -> None:
        old = self._machine
        result = step(old, event)
        self._machine = result.state
        if not result.entered:
            return
        self._explain(old.phase, event, result.state.phase)
        self._cancel_timer()
        if result.state.phase is not old.phase:
            self._since = self._clock()
            self._notify(PhaseChanged(self._plugin.resource, old.phase, result.state.phase, self._error))
        if result.timer is not None:
            delay = delay_seconds(result.timer, result.state, self._timeouts, self._rng)
            self._timer = asyncio.get_running_loop().call_later(delay, self._timer_fired)
        match result.action:
            case Action.BIND:
                await self._bind()
            case Action.REGISTER:
                self._cancel_call()
                await self._streams.end_all(self._timeouts.end_streams_seconds)
                self._call = asyncio.create_task(self._register())

    def _explain(self, old: RegistrationPhase, event: RegistrationEvent, new: RegistrationPhase) -> None:
        """Set ``error`` to what prevents the registration now, in words."""
        if new in STREAMING:
            self._error = ""
        elif new is RegistrationPhase.SERVING:
            self._error = f"{self._directory / KUBELET_SOCKET} does not exist: kubelet is not running, or elsewhere"
        elif event is RegistrationEvent.OWN_SOCKET_LOST:
            self._error = "our socket was removed from the plugin directory; registering again on a new one"
        elif event is RegistrationEvent.STREAM_ENDED:
            self._error = "kubelet closed the ListAndWatch stream; registering again"
        elif event is RegistrationEvent.TIMER and old is RegistrationPhase.WAIT_STREAM:
            seconds = self._timeouts.stream_seconds
            self._error = f"kubelet accepted the registration but read no list within {seconds:g} s; registering again"

    def _post(self, event: RegistrationEvent) -> None:
        self._events.append(event)
        self._awake.set()

    def _timer_fired(self) -> None:
        self._timer = None
        self._post(RegistrationEvent.TIMER)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if RegistrationEvent.TIMER in self._events:  # it fired for a phase that is over
            self._events = deque(e for e in self._events if e is not RegistrationEvent.TIMER)

    # Actions.

    async def _bind(self) -> None:
        """Stop the old server, then start a fresh one.

        Never in the other order: gRPC's stop removes paths, and kubelet must see one stream only.
        """
        self._cancel_call()
        await self._streams.end_all(self._timeouts.end_streams_seconds)
        if self._listener is not None:
            listener, self._listener = self._listener, None
            await listener.stop(self._timeouts.end_streams_seconds if self._inflight.ids else 0)
        resource = self._plugin.resource
        remove_stale(self._directory, self._name, resource)
        try:
            self._listener = await Listener.start(self._service, self._directory, self._name, resource)
        except SocketError as error:
            self._error = str(error)
            self._notify(BindFailed(resource, self._error))
            self._post(RegistrationEvent.BIND_FAILED)
            return
        self._notify(Bound(resource, self._listener.path))
        self._post(RegistrationEvent.BOUND)

    async def _register(self) -> None:
        listener = self._listener
        if listener is None:
            raise RuntimeError("the state machine registers only what is bound")
        resource = self._plugin.resource
        started = self._clock()
        self._streams.arm()
        try:
            await register(
                self._directory / KUBELET_SOCKET,
                listener.path.name,
                resource,
                self._service.options(),
                self._timeouts.register_seconds,
            )
        except DevicePluginError as error:
            if self._machine.phase not in STREAMING:  # an open stream proves more than a late answer
                self._error = str(error)
            code = error.code if isinstance(error, RegistrationError) else "INTERNAL"
            self._notify(RegisterFailed(resource, code, str(error), self._clock() - started))
            self._post(
                RegistrationEvent.REFUSED if isinstance(error, KubeletDownError) else RegistrationEvent.REGISTER_FAILED
            )
        except Exception as error:  # a defect of ours or of gRPC must not end the registration for good
            log.exception("registration failed unexpectedly", extra={"resource": resource})
            self._error = f"registering failed unexpectedly: {type(error).__name__}"
            self._post(RegistrationEvent.REGISTER_FAILED)
        else:
            self._registrations += 1
            self._notify(Registered(resource, self._clock() - started))
            self._post(RegistrationEvent.REGISTERED)

    def _cancel_call(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None
        stale = {RegistrationEvent.REGISTERED, RegistrationEvent.REFUSED, RegistrationEvent.REGISTER_FAILED}
        self._events = deque(e for e in self._events if e not in stale)

    # Reports of the streams.

    def _stream_opened(self, stream: ListStream) -> None:
        self._notify(StreamOpened(self._plugin.resource, stream.expected))
        if stream.expected:
            self._post(RegistrationEvent.STREAM_OPENED)

    def _stream_ended(self, stream: ListStream) -> None:
        self._notify(StreamEnded(self._plugin.resource, stream.expected, self._clock() - stream.opened_at))
        if stream.expected:
            self._post(RegistrationEvent.STREAM_ENDED)
