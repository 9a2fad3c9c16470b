"""Watch the devices of this node: udev's events and a timer in, snapshots out.

Events are hints about where to look; only what is found there counts. The event sockets are opened first, then
everything is enumerated, so nothing happens unseen in between. If both groups of events work, both are listened to.
udevd's events are acted on at once; a kernel event only if udevd does not follow it up within ``UNANSWERED_SECONDS``.
So nothing is missed when udevd is killed or stuck. After lost events (any error of a socket) everything is enumerated
once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from drabridge.config.schema import Config
from drabridge.config.template import Lookup
from drabridge.errors import HostError
from drabridge.inventory import event_source, mig, nvidia
from drabridge.inventory.attribute_values import LastKnown
from drabridge.inventory.builder import DeviceBuilder
from drabridge.inventory.cdi_index import CdiIndex
from drabridge.inventory.cdi_names import other_drivers
from drabridge.inventory.container_edits import resolve_again
from drabridge.inventory.devices import Device, Presence, Snapshot
from drabridge.inventory.driver_follower import DriverFollower
from drabridge.inventory.event_source import EventKind, EventSource
from drabridge.inventory.events import Pacer, RecheckQueue, Uevent, latest_per_device
from drabridge.inventory.exec_checks import ExecChecks
from drabridge.inventory.fallbacks import Fallbacks
from drabridge.inventory.host import Host, HostPaths
from drabridge.inventory.identity import Key, KnownIdentities, name_of
from drabridge.inventory.named_resources import NamedResources
from drabridge.inventory.nvml_process import NvmlClient
from drabridge.inventory.observer import EventSeen, MonitorRestarted, OnFact, Reconciled, ReconcileFailed, SourceChanged
from drabridge.inventory.snapshots import TOMBSTONE_SECONDS, DeviceTracker
from drabridge.inventory.udev import Monitor, Udev
from drabridge.inventory.udev_cache import UdevCache
from drabridge.inventory.udev_device import UdevDevice
from drabridge.inventory.udev_scope import cdi_kinds, distinct_configs, needs_nvidia, scope_of_all, why_database
from drabridge.inventory.vfio import with_twins

UNANSWERED_SECONDS = 1.0
"""How long udevd may take for an event before the kernel's event is acted on. Its rules usually run for 5 to 50 ms."""

RECHECK_SECONDS = (0.1, 1.0)
"""When to look, after a kernel event, for what udevd adds: its database may reach us where its events do not."""

FAULTY_RECHECK_SECONDS = 5.0
"""How often faulty devices are looked at again: a node that is made by hand sends no event."""

BULK_DEVICES = 64
"""If one batch of events is about more devices, one enumeration is cheaper than a look at each (0.3 ms)."""

RESTART_BACKOFF_SECONDS = (0.0, 0.1, 1.0, 5.0)
"""Pause before event sockets that keep failing are opened again."""


class Inventory:
    """The devices of this node, by one configuration. Everything runs on the loop that ``run`` runs on.

    ``held(name)`` says whether somebody may hold the device of that name. ``known``: the identities of an earlier run.
    ``on_fact`` gets a fact for each thing that happens (``observer.py``).
    """

    def __init__(
        self,
        config: Config,
        *,
        held: Callable[[str], bool] = lambda name: False,
        known: KnownIdentities | None = None,
        paths: HostPaths | None = None,
        tombstone_seconds: float = TOMBSTONE_SECONDS,
        on_fact: OnFact = lambda fact: None,
    ) -> None:
        self._names = NamedResources(config)
        self._config = self._names.config
        self._host = Host(self.refresh)
        self._paths = paths or HostPaths()
        self._held = held
        known = known or KnownIdentities()
        self._known_before = dict(known.ids)
        self._on_fact = on_fact
        self._tracker = DeviceTracker(held, tombstone_seconds)
        self._wake = asyncio.Event()
        self.nvml = NvmlClient(self._wake.set, on_fact, proc=self._paths.proc)
        self._checks = ExecChecks(self._wake.set)
        held_by = self._held_ones(known.named_by)
        self._builder = DeviceBuilder(
            self._config, self._host, held_by, config, self._checks.failures, LastKnown(known.values)
        )
        self._udev = Udev(scope_of_all(self._scoped()))
        self._cache = UdevCache(self._udev)
        self._monitors: list[Monitor] = []
        self._failed: str = ""  # why the event sockets must be replaced
        self._failures = 0
        self._inbox: list[Uevent] = []
        self._rechecks = RecheckQueue()
        self._pacer = Pacer()
        self._nvidia = nvidia.NOTHING
        self._fallbacks = Fallbacks()
        self._doubt_udevd = False  # udevd's answers are in doubt: check them
        self._database = False  # udevd's database is readable here; udevd writes it after the kernel's event
        self._stale = True  # everything must be enumerated again
        self._resync_at = 0.0
        self._recheck_at: float | None = None
        self.cdi = CdiIndex(self._paths.cdi, config.driver, self._wake.set)
        self.driver = DriverFollower(self._paths, self._wake.set)
        self.status = EventSource(EventKind.NONE, "not started")
        self.notes: tuple[str, ...] = ()  # sentences for people about hardware that is not offered

    @property
    def current(self) -> Snapshot:
        """Return the newest snapshot; it is not ``complete`` before the first enumeration."""
        return self._tracker.current

    def reconfigure(self, config: Config) -> None:
        """Use another configuration from the next snapshot on, which is taken at once. Call it on the loop."""
        self._names = NamedResources(config, self._names.values)
        self._config = self._names.config
        self.refresh()

    @property
    def config(self) -> Config:
        """The configuration in use. Templates in resource names are replaced by the names that the devices give."""
        return self._config

    @property
    def file(self) -> Config:
        """The configuration as the file has it, with templates in resource names."""
        return self._names.file

    def identities(self) -> KnownIdentities:
        """Return the identities of devices that are here, or held."""
        named_by = self._builder.named_by
        ids = {key: device_id for key, device_id in self._known_ids().items() if device_id in named_by}
        return KnownIdentities(ids, named_by, self._builder.last.values)

    def released(self, names: Iterable[str]) -> None:
        """Enumerate again if one of these released devices can now get its proper name.

        That is a device that kept an earlier configuration's name, or that was not offered because it might have been
        the held one.
        """
        waiting = self._builder.former_names.union(name_of(collision.identity) for collision in self.current.collisions)
        if not waiting.isdisjoint(names):
            self.refresh()

    def _known_ids(self) -> dict[Key, str]:
        """Return the ids of devices that are or were here, each only at its last place."""
        tracked = self._tracker.known_ids()
        ids = set(tracked.values())
        return {key: device_id for key, device_id in self._known_before.items() if device_id not in ids} | tracked

    def _held_ones(self, named_by: Mapping[str, Config]) -> dict[str, Config]:
        """Return the held devices of ``named_by``; all others take the name that the new configuration gives them."""
        return {device_id: config for device_id, config in named_by.items() if self._held(name_of(device_id))}

    def configs(self) -> list[Config]:
        """Return the configuration, and the earlier ones that named devices which may be held."""
        return distinct_configs((self._config, *self._builder.named_by.values()))

    def _scoped(self) -> list[Config]:
        """Return :meth:`configs` and the file's configuration, whose templates may not stand for any name yet."""
        return distinct_configs((self._names.file, *self.configs()))

    def refresh(self) -> None:
        """Enumerate everything again soon. Call it on the loop."""
        self._stale = True
        self._wake.set()

    def udev_device(self, name: str) -> UdevDevice | None:
        """Return the udev device behind the device of that name; None when it is not there."""
        source = self._builder.source(name)
        return source[1].udev if source else None

    def lookup(self, name: str) -> Lookup | None:
        """Return a lookup of template fields for the device of that name; None if it is not there."""
        source = self._builder.source(name)
        return source[1].lookup(self._host) if source else None

    def resolve(self, device: Device) -> Device:
        """Return the device with its nodes as they are at this moment, by the kernel's name and stat(2).

        No hardware is touched. CDI devices are taken from the index of their files. Raises HostError if the device or
        something that it needs is missing.
        """
        source = self._builder.source(device.name)
        path, number = self._host.own_node(source[1].udev.syspath) if source else ("", None)
        if source is None or not (path or self._host.exists(source[1].udev.seen_at or device.syspath or "/")):
            raise HostError(f"{device.name} is unplugged", hint="Plug it in again, or delete the pod that asks for it.")
        resource, matched = source
        now = replace(matched.udev, devnode=path or matched.udev.devnode, devnum=number)
        return resolve_again(device, resource, replace(matched, udev=now), self._host, self.cdi.current)

    async def run(self, on_snapshot: Callable[[Snapshot], None]) -> None:
        """Watch until cancelled; ``on_snapshot`` gets every snapshot that differs from the one before, on the loop."""
        try:
            self.nvml.follow(self._scoped(), self._config.nvidia)
            await self.nvml.answered()
            while True:
                await self.cdi.follow(lambda: cdi_kinds(self._scoped()))
                await self.driver.follow(self._scoped(), self._config.nvidia)
                self._round(on_snapshot)
                await self._pause()
        finally:
            self._close()
            self._host.close()
            await self._checks.stop()
            await self.nvml.stop()
            await self.cdi.stop()
            await self.driver.stop()

    # --- waiting ----------------------------------------------------------------------------------------------------

    async def _pause(self) -> None:
        """Sleep until something is due or an event arrives; in a burst, collect more events before going on."""
        if not self._wake.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._next_due() - time.monotonic())):
                    await self._wake.wait()
        if self._failed:
            await asyncio.sleep(RESTART_BACKOFF_SECONDS[min(self._failures, len(RESTART_BACKOFF_SECONDS) - 1)])
        elif self._wake.is_set() and (delay := self._pacer.delay(time.monotonic())):
            await asyncio.sleep(delay)

    def _next_due(self) -> float:
        dates = (
            self._resync_at,
            self._recheck_at,
            self._rechecks.next_due(),
            self._tracker.next_expiry(time.monotonic()),
        )
        return min(date for date in dates if date is not None)

    # --- one round --------------------------------------------------------------------------------------------------

    def _round(self, on_snapshot: Callable[[Snapshot], None]) -> None:
        """Process what happened, compute the list of devices, and pass it on if it changed."""
        start = time.monotonic()
        self._wake.clear()
        full = self._prepare(start)
        try:
            snapshot = self._reconcile(start, full)
        except OSError as error:  # sysfs or the node directory fails as a whole: the last list stays
            self._on_fact(ReconcileFailed(str(error)))
            self._stale = True
            self._resync_at = start + FAULTY_RECHECK_SECONDS
            return
        seconds = time.monotonic() - start
        self._pacer.spend(start, seconds)
        self._on_fact(Reconciled(seconds, full, len(self.current.devices), snapshot is not None))
        if snapshot is not None:
            for fact in self._fallbacks.changes(snapshot):
                self._on_fact(fact)
            on_snapshot(snapshot)

    def _use_new_configuration(self) -> None:
        """Switch to a changed configuration, in the round that builds devices by it.

        That round already knows every hold taken before it, so held devices keep their names.
        """
        events_before = self._builder.config.udev_events
        held, checks = self._held_ones(self._builder.named_by), self._checks.failures
        self._builder = DeviceBuilder(self._config, self._host, held, self._names.file, checks, self._builder.last)
        if self._config.udev_events != events_before:
            self._close()
        if (scope := scope_of_all(self._scoped())) != self._udev.scope:
            self._udev.scope = scope
            self._close()  # the sockets filter by the scope's subsystems
            self._cache.devices.clear()
        self.nvml.follow(self._scoped(), self._config.nvidia)

    def _prepare(self, now: float) -> bool:
        """Open or replace the event sockets; return whether everything has to be enumerated."""
        if self._builder.config is not self._config:
            self._use_new_configuration()
        if self._failed:
            self._on_fact(MonitorRestarted(self._failed))
            self._failures += 1
            self._close()
            self._failed = ""
            self._stale = True
        self._stale |= now >= self._resync_at
        if (self._stale or self._doubt_udevd) and self._monitors and self._detected_kind() is not self.status.kind:
            self._close()
        self._doubt_udevd = False
        if not self._monitors:
            self._open()
            self._stale = True
        return self._stale

    def _reconcile(self, now: float, full: bool) -> Snapshot | None:
        self._database = self._paths.udev_database.is_dir()
        news = latest_per_device(self._take_events())
        full = full or len(news) > BULK_DEVICES
        touched = self._cache.enumerate() if full else set()
        touched |= self._apply(news, now, enumerated=full)
        touched |= self._run_due_rechecks(now)
        if (full or touched or self.nvml.news) and any(map(needs_nvidia, self._scoped())):
            found = self.nvml.facts(nvidia.read(self._paths.proc / "driver/nvidia"))
            self._nvidia = mig.with_capabilities(found, self._paths.proc)
        if full:
            self._stale = False
            self._resync_at = now + self._config.resync_seconds
        self._cache.note_first_seen(now)
        devices = with_twins(mig.with_instances(self._cache.devices, self._nvidia), self._scoped())
        if self._names.update(devices.values()):
            devices = dict(devices)
            self._config = self._names.config
            self._use_new_configuration()
            if not self._monitors:  # the new configuration reads more: go on with a full round
                self._wake.set()
        self._builder.driver = self.driver.current
        built = self._builder.build(
            devices,
            self._nvidia,
            known_ids=self._known_ids(),
            held=self._held,
            ready=lambda device: not self._database or self._cache.finished(device, now),
            fresh=full,
            cdi=self.cdi.current,
        )
        self._checks.end_round()
        for syspath in built.waiting:
            self._rechecks.add(syspath, now + RECHECK_SECONDS[0])
        faulty = any(device.presence is Presence.FAULTY for device in built.devices)
        self._recheck_at = now + FAULTY_RECHECK_SECONDS if faulty else None
        names = [resource.name for resource in self._config.resources]
        notes = built.notes if self._database else (*built.notes, *why_database(self._config))
        self.notes = (*notes, *other_drivers(self.cdi.current, self._nvidia.gpus.values()))
        collisions = (*built.collisions, *self._names.collisions)
        return self._tracker.update(built.devices, collisions, names, now, built.away)

    # --- events -------------------------------------------------------------------------------------------------------

    def _apply(self, news: Mapping[str, Uevent], now: float, *, enumerated: bool) -> set[str]:
        """Act on the last event of every device; return the syspaths that changed.

        If an event cannot be trusted, the device is looked at again later. ``enumerated``: everything was enumerated
        after these events were taken, so only removals matter.
        """
        touched = set()
        for syspath, event in news.items():
            if event.group == "udev":
                self._rechecks.answered(syspath, event.seqnum)
                self._cache.reported_by_udevd.add(syspath)
            elif self.status.kind is EventKind.UDEV and event.action != "remove":
                self._rechecks.add(syspath, now + UNANSWERED_SECONDS, event.seqnum)
                continue
            elif self._database:
                for delay in RECHECK_SECONDS:
                    self._rechecks.add(syspath, now + delay)
            if event.action == "remove":
                self._rechecks.add(syspath, now + RECHECK_SECONDS[0])  # the device still exists after a synthetic event
                touched |= self._cache.remove(syspath, alone=enumerated)
            elif not enumerated:
                touched |= self._cache.check([syspath])
        return touched

    def _run_due_rechecks(self, now: float) -> set[str]:
        """Do the due rechecks; return the syspaths that changed. If udevd missed an event, have udevd checked."""
        due = self._rechecks.take_due(now)
        if any(recheck.seqnum for recheck in due):
            self._doubt_udevd = True
            self._wake.set()
        return self._cache.check({recheck.syspath for recheck in due})

    # --- event sockets ----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Listen to both groups of events if both work; report which group is used, and why."""
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
        found = event_source.udev_group_works(udev.fileno(), self._paths.proc)
        if found.kind is not EventKind.UDEV and asked == "auto":
            udev.close()
            return found
        self._monitors.append(udev)
        if found.kind is EventKind.UDEV:
            return found
        return EventSource(EventKind.UDEV, f"the configuration says udevEvents: udev, although {found.why}", True)

    def _detected_kind(self) -> EventKind:
        """Return the kind that would be chosen now. Opens nothing."""
        if self._config.udev_events != "auto" or self.status.kind is EventKind.NONE:
            return self.status.kind
        udev = next((monitor for monitor in self._monitors if monitor.group == "udev"), None)
        if udev is not None:
            return event_source.udev_group_works(udev.fileno(), self._paths.proc).kind
        return EventKind.UDEV if event_source.udevd_listens(self._paths.proc) else EventKind.KERNEL

    def _readable(self, monitor: Monitor) -> None:
        try:
            events = monitor.drain()
        except OSError as error:
            asyncio.get_running_loop().remove_reader(monitor.fileno())  # the failed socket would be readable for ever
            self._failed = f"{monitor.group} events were lost: {error}"
            self._wake.set()
            return
        self._failures = 0
        self._inbox += events
        if events:
            self._wake.set()

    def _take_events(self) -> list[Uevent]:
        """Return the events that have arrived, including those that still wait in the sockets."""
        for monitor in self._monitors:
            if not self._failed:
                self._readable(monitor)
        events, self._inbox = self._inbox, []
        for event in events:
            self._on_fact(EventSeen(event.group, event.subsystem, event.action))
        return events

    def _close(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop = asyncio.get_running_loop()
            for monitor in self._monitors:
                loop.remove_reader(monitor.fileno())
        for monitor in self._monitors:
            monitor.close()
        self._monitors = []
