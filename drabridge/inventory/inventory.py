"""The running inventory: udev's events and a timer in, snapshots out.

Events are hints about where to look; what is there decides. The event sockets are opened first and everything is
enumerated then, so nothing can happen in between unseen. Both groups are listened to where both work: udevd's events
are acted on, and a kernel event that udevd does not follow up within ``UNANSWERED_SECONDS`` is acted on as well, so an
udevd that is killed or stuck makes nobody deaf. Lost events (any error of a socket) cost one full enumeration.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from drabridge.config.schema import Config
from drabridge.config.template import Lookup
from drabridge.errors import HostError
from drabridge.inventory import event_source, nodes, nvidia
from drabridge.inventory.build import Builder
from drabridge.inventory.event_source import EventKind, EventSource
from drabridge.inventory.events import Pacer, RecheckQueue, Uevent, latest_per_device
from drabridge.inventory.facts import (
    EventSeen,
    MonitorRestarted,
    OnFact,
    Reconciled,
    ReconcileFailed,
    SourceChanged,
)
from drabridge.inventory.host import Host, RealHost
from drabridge.inventory.identity import Key, name_of
from drabridge.inventory.model import Device, DeviceNode, Presence, Snapshot
from drabridge.inventory.tracker import TOMBSTONE_SECONDS, DeviceTracker
from drabridge.inventory.udev import Monitor, Udev
from drabridge.inventory.udev_cache import UdevCache
from drabridge.inventory.udev_device import UdevDevice
from drabridge.inventory.udev_scope import UdevScope, distinct, needs_nvidia, together, wanted

UNANSWERED_SECONDS = 1.0
"""How long udevd may take over an event before the kernel's word is taken; its rules usually run for 5 to 50 ms."""

SETTLE_SECONDS = (0.1, 1.0)
"""After a kernel event, when to look again for what udevd adds: its database may reach us where its events do not."""

FAULTY_RECHECK_SECONDS = 5.0
"""How often faulty devices are looked at again: a node that somebody makes by hand sends no event."""

BULK_DEVICES = 64
"""Devices named by one batch of events from which on one enumeration is cheaper than looking at each (0.3 ms)."""

RESTART_BACKOFF_SECONDS = (0.0, 0.1, 1.0, 5.0)
"""Pause before event sockets that keep failing are opened again."""


class Inventory:
    """What exists on this node, for one configuration. Everything runs on the loop that ``run`` runs on.

    ``held(name)`` says whether somebody may hold the device of that name; ``given`` are identities remembered from an
    earlier run, by (resource, syspath), and ``named_by`` the configurations that gave them, by id; ``on_fact`` is told
    what happens. ``proc`` and ``database`` (udevd's) are where the host's are mounted.
    """

    def __init__(
        self,
        config: Config,
        *,
        held: Callable[[str], bool] = lambda name: False,
        given: Mapping[Key, str] | None = None,
        named_by: Mapping[str, Config] | None = None,
        host: Host | None = None,
        proc: Path = Path("/proc"),
        database: Path = event_source.DATABASE,
        tombstone_seconds: float = TOMBSTONE_SECONDS,
        on_fact: OnFact = lambda fact: None,
    ) -> None:
        self._config = config
        self._host = host or RealHost()
        self._proc = proc
        self._database_path = database
        self._held = held
        self._given = dict(given or {})
        self._on_fact = on_fact
        self._tracker = DeviceTracker(held, tombstone_seconds)
        self._builder = Builder(config, self._host, self._of_held(named_by or {}))
        self._udev = Udev(self._wanted())
        self._world = UdevCache(self._udev)
        self._monitors: list[Monitor] = []
        self._failed: str = ""  # why the event sockets must be replaced
        self._failures = 0
        self._inbox: list[Uevent] = []
        self._owed = RecheckQueue()
        self._pacer = Pacer()
        self._facts = nvidia.NOTHING
        self._doubt = False  # whether udevd still answers has to be looked at
        self._database = False  # whether udevd's database is readable here: it fills after the kernel's event
        self._stale = True  # everything must be enumerated again
        self._resync_at = 0.0
        self._recheck_at: float | None = None
        self._wake = asyncio.Event()
        self.status = EventSource(EventKind.NONE, "not started")

    @property
    def current(self) -> Snapshot:
        """The newest snapshot; not ``complete`` before the first enumeration."""
        return self._tracker.current

    def reconfigure(self, config: Config) -> None:
        """Take over another configuration with the next snapshot, which follows at once. Call it on the loop."""
        self._config = config
        self.refresh()

    def remembered(self) -> tuple[dict[Key, str], dict[str, Config]]:
        """The ids of devices that are here, or held, by (resource, syspath), and the configurations that gave them."""
        named_by = self._builder.named_by
        return {key: device_id for key, device_id in self._known().items() if device_id in named_by}, named_by

    def let_go(self, names: Iterable[str]) -> None:
        """Nobody holds these devices any more: what kept an earlier configuration's name, or was withheld because it
        may be one of them, gets its name at once.
        """
        waiting = self._builder.kept.union(name_of(collision.identity) for collision in self.current.collisions)
        if not waiting.isdisjoint(names):
            self.refresh()

    def _known(self) -> dict[Key, str]:
        """The ids of devices that are or were here, each at the one place where it was last."""
        given = self._tracker.given()
        ids = set(given.values())
        return {key: device_id for key, device_id in self._given.items() if device_id not in ids} | given

    def _of_held(self, named_by: Mapping[str, Config]) -> dict[str, Config]:
        """Those of devices that are held: the others take what a new configuration calls them."""
        return {device_id: config for device_id, config in named_by.items() if self._held(name_of(device_id))}

    def configs(self) -> list[Config]:
        """The configuration, and those before it that named what may be held."""
        return distinct((self._config, *self._builder.named_by.values()))

    def _wanted(self) -> UdevScope:
        return together(map(wanted, self.configs()))

    def refresh(self) -> None:
        """Enumerate everything again soon. Call it on the loop."""
        self._stale = True
        self._wake.set()

    def record(self, name: str) -> UdevDevice | None:
        """What udev says of the device of that name; None when it is not there."""
        known = self._builder.subject(name)
        return known[1].record if known else None

    def lookup(self, name: str) -> Lookup | None:
        """The values of template fields of the device of that name, as they are now; None when it is not there."""
        known = self._builder.subject(name)
        return known[1].lookup(self._host) if known else None

    def resolve_nodes(self, device: Device) -> tuple[DeviceNode, ...]:
        """The device's nodes as they are this moment: the kernel's name for it, then stat(2); no hardware is touched.

        Raises HostError when the device or a node that it needs is not there.
        """
        known = self._builder.subject(device.name)
        path, number = self._host.own_node(known[1].record.syspath) if known else ("", None)
        if known is None or not (path or self._host.exists(device.syspath or "/")):
            raise HostError(f"{device.name} is unplugged", hint="Plug it in again, or delete the pod that asks for it.")
        resource, subject = known
        record = replace(subject.record, devnode=path or subject.record.devnode, devnum=number)
        found = nodes.resolve(resource.nodes, replace(subject, record=record), self._host)
        if found.missing:
            raise HostError(f"{device.name}: {'; '.join(found.missing)}", hint="Check the device and its driver.")
        return found.found

    async def run(self, on_snapshot: Callable[[Snapshot], None]) -> None:
        """Watch until cancelled; ``on_snapshot`` gets every snapshot that differs from the one before, on the loop."""
        try:
            while True:
                self._round(on_snapshot)
                await self._pause()
        finally:
            self._close()

    # --- waiting ----------------------------------------------------------------------------------------------------

    async def _pause(self) -> None:
        """Sleep until something is due or an event arrives; a burst of events is waited for a little."""
        if not self._wake.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._next_due() - time.monotonic())):
                    await self._wake.wait()
        if self._failed:
            await asyncio.sleep(RESTART_BACKOFF_SECONDS[min(self._failures, len(RESTART_BACKOFF_SECONDS) - 1)])
        elif self._wake.is_set() and (delay := self._pacer.delay(time.monotonic())):
            await asyncio.sleep(delay)

    def _next_due(self) -> float:
        dates = (self._resync_at, self._recheck_at, self._owed.next(), self._tracker.next_expiry(time.monotonic()))
        return min(date for date in dates if date is not None)

    # --- one round --------------------------------------------------------------------------------------------------

    def _round(self, on_snapshot: Callable[[Snapshot], None]) -> None:
        """Take in what happened, compute the list, hand it on when it changed."""
        start = time.monotonic()
        self._wake.clear()
        full = self._prepare(start)
        try:
            snapshot = self._reconcile(start, full)
        except OSError as error:  # sysfs or the node directory misbehaves as a whole: the last list stands
            self._on_fact(ReconcileFailed(str(error)))
            self._stale = True
            self._resync_at = start + FAULTY_RECHECK_SECONDS
            return
        seconds = time.monotonic() - start
        self._pacer.spend(start, seconds)
        self._on_fact(Reconciled(seconds, full, len(self.current.devices), snapshot is not None))
        if snapshot is not None:
            on_snapshot(snapshot)

    def _rename(self) -> None:
        """Begin with a changed configuration, in the round that builds by it: who is given a device before is a holder
        that the round knows of, and what is held keeps its name.
        """
        self._builder = Builder(self._config, self._host, self._of_held(self._builder.named_by))
        if (wanted_now := self._wanted()) != self._udev.wanted:
            self._udev.wanted = wanted_now
            self._close()  # the filters of the sockets are the wanted subsystems
            self._world.records.clear()

    def _prepare(self, now: float) -> bool:
        """Open or replace the event sockets; true when everything has to be enumerated."""
        if self._builder.config is not self._config:
            self._rename()
        if self._failed:
            self._on_fact(MonitorRestarted(self._failed))
            self._failures += 1
            self._close()
            self._failed = ""
            self._stale = True
        self._stale |= now >= self._resync_at
        if (self._stale or self._doubt) and self._monitors and self._detected_kind() is not self.status.kind:
            self._close()
        self._doubt = False
        if not self._monitors:
            self._open()
            self._stale = True
        return self._stale

    def _reconcile(self, now: float, full: bool) -> Snapshot | None:
        self._database = self._database_path.is_dir()
        news = latest_per_device(self._take_events())
        full = full or len(news) > BULK_DEVICES
        touched = self._world.enumerate() if full else set()
        touched |= self._apply(news, now, enumerated=full)
        touched |= self._pay(now)
        if (full or touched) and any(map(needs_nvidia, self.configs())):
            self._facts = nvidia.read(self._proc / "driver/nvidia")
        if full:
            self._stale = False
            self._resync_at = now + self._config.resync_seconds
        self._world.note_new(now)
        built = self._builder.build(
            self._world.records,
            self._facts,
            given=self._known(),
            held=self._held,
            ready=lambda record: not self._database or self._world.finished(record, now),
            fresh=full,
        )
        for syspath in built.waiting:
            self._owed.add(syspath, now + SETTLE_SECONDS[0])
        faulty = any(device.presence is Presence.FAULTY for device in built.devices)
        self._recheck_at = now + FAULTY_RECHECK_SECONDS if faulty else None
        names = [resource.name for resource in self._config.resources]
        return self._tracker.update(built.devices, built.collisions, names, now)

    # --- events -------------------------------------------------------------------------------------------------------

    def _apply(self, news: Mapping[str, Uevent], now: float, *, enumerated: bool) -> set[str]:
        """Act on the last event of every device; what an event cannot be trusted for is looked at again later.

        ``enumerated``: everything was looked at after these events had been taken, so only removals are news.
        """
        touched = set()
        for syspath, event in news.items():
            if event.group == "udev":
                self._owed.answered(syspath, event.seqnum)
                self._world.settled.add(syspath)
            elif self.status.kind is EventKind.UDEV and event.action != "remove":
                self._owed.add(syspath, now + UNANSWERED_SECONDS, event.seqnum)
                continue
            elif self._database:
                for delay in SETTLE_SECONDS:
                    self._owed.add(syspath, now + delay)
            if event.action == "remove":
                self._owed.add(syspath, now + SETTLE_SECONDS[0])  # a synthetic event removes nothing
                touched |= self._world.remove(syspath, alone=enumerated)
            elif not enumerated:
                touched |= self._world.check([syspath])
        return touched

    def _pay(self, now: float) -> set[str]:
        """Look at what is due. An event that udevd has not answered casts doubt on udevd."""
        due = self._owed.take(now)
        if any(debt.seqnum for debt in due):
            self._doubt = True
            self._wake.set()
        return self._world.check({debt.syspath for debt in due})

    # --- event sockets ----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Listen, to both groups where both work, and say which one counts and why."""
        before = self.status
        self.status = self._listen()
        loop = asyncio.get_running_loop()
        for monitor in self._monitors:
            loop.add_reader(monitor.fileno(), self._readable, monitor)
        if self.status != before:
            self._on_fact(SourceChanged(self.status))

    def _listen(self) -> EventSource:
        asked = self._config.udev_events
        try:
            kernel = self._udev.monitor("kernel")
        except HostError as error:
            return EventSource(EventKind.NONE, f"{error.message}; every {self._config.resync_seconds} s by timer", True)
        self._monitors = [kernel]
        if asked == "kernel":
            return EventSource(EventKind.KERNEL, "the configuration says udevEvents: kernel")
        try:
            udev = self._udev.monitor("udev")
        except HostError as error:
            return EventSource(EventKind.KERNEL, error.message, asked == "udev")
        found = event_source.udev_group_works(udev.fileno(), self._proc)
        if found.kind is not EventKind.UDEV and asked == "auto":
            udev.close()
            return found
        self._monitors.append(udev)
        if found.kind is EventKind.UDEV:
            return found
        return EventSource(EventKind.UDEV, f"the configuration says udevEvents: udev, although {found.why}", True)

    def _detected_kind(self) -> EventKind:
        """Which kind would be chosen now, judged without opening anything."""
        if self._config.udev_events != "auto" or self.status.kind is EventKind.NONE:
            return self.status.kind
        udev = next((monitor for monitor in self._monitors if monitor.group == "udev"), None)
        if udev is not None:
            return event_source.udev_group_works(udev.fileno(), self._proc).kind
        return EventKind.UDEV if event_source.udevd_listens(self._proc) else EventKind.KERNEL

    def _readable(self, monitor: Monitor) -> None:
        try:
            events = monitor.drain()
        except OSError as error:
            asyncio.get_running_loop().remove_reader(monitor.fileno())  # it would be readable for ever
            self._failed = f"{monitor.group} events were lost: {error}"
            self._wake.set()
            return
        self._failures = 0
        self._inbox += events
        if events:
            self._wake.set()

    def _take_events(self) -> list[Uevent]:
        """What arrived so far, including what waits in the sockets this moment."""
        for monitor in self._monitors:
            if not self._failed:
                self._readable(monitor)
        events, self._inbox = self._inbox, []
        for event in events:
            self._on_fact(EventSeen(event.group, event.subsystem, event.action))
        return events

    def _close(self) -> None:
        with contextlib.suppress(RuntimeError):  # no loop any more
            loop = asyncio.get_running_loop()
            for monitor in self._monitors:
                loop.remove_reader(monitor.fileno())
        for monitor in self._monitors:
            monitor.close()
        self._monitors = []
