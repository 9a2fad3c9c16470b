"""Detect another device plugin that registered one of our resources, usually the vendor's.

Kubelet calls the plugin that last registered a name. It tells the other plugin nothing: the other's stream stays open,
and the lists of both overwrite each other (plugin/v1beta1/handler.go up to 1.36). So the agent asks kubelet which ids
it would give out. An id that our list has not had as Healthy for a while comes from another plugin. Unlike a List, this
call does not make kubelet count its devices again.

When the other plugin ends, kubelet no longer has a plugin for the resource, although our stream is open: it refuses
pods ("endpoint has been stopped"), and after five minutes the node has none of the devices (GetCapacity in
pkg/kubelet/cm/devicemanager/manager.go). So ids that kubelet does not offer, although our list has had them as Healthy
for a while, are a reason to register again, too.

A pod with an id that no device here has may have any device. So all devices without a known holder are quarantined, as
at a start.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping

from msgspec import Struct

from drabridge.evidence.kubelet import KubeletEvidence
from drabridge.inventory.devices import Device, device_id_of
from drabridge.ledger.events import Unit
from drabridge.ledger.observation import record_lost_by_unknown_units, unknown_units
from drabridge.ledger.service import LedgerService
from drabridge.legacy.manager import LegacyManager
from podresources import Client, PodResourcesError

log = logging.getLogger(__name__)

ASK_SECONDS = 2.0  # kubelet answers from memory; the next look waits for this answer
SETTLED_SECONDS = 30.0  # kubelet may be late with a list: it writes a file after each, on whatever disk
RETRY_SECONDS = 10.0  # before we register again against another plugin; doubles each time
RETRY_MOST_SECONDS = 300.0


class _CompetingPlugin(Struct):
    """``seen_at``: when kubelet last had the plugin's list. Kubelet may call the plugin until our next registration."""

    seen_at: float
    registered_at: float = -math.inf
    due: float = -math.inf  # the earliest time of our next registration
    pause: float = RETRY_SECONDS
    foreign_ids: bool = False  # the plugin offers ids that no device here has
    doubted: frozenset[str] = frozenset()  # those foreign ids of pods that led to quarantine


class CompetingPlugins:
    """Asks kubelet whether it offers ids that are not ours; if so, registers the resource again.

    ``found``: resource -> what was found, in words. Two answers in a row make a finding. Kubelet is asked at every
    third look (``every``), and at each look while something is suspected or found. ``clock``: monotonic seconds.
    """

    def __init__(
        self,
        legacy: LegacyManager,
        podresources: Client,
        kubelet: KubeletEvidence,
        ledger_service: LedgerService,
        devices: Callable[[], Mapping[str, Device]],
        clock: Callable[[], float] = time.monotonic,
        every: int = 3,
    ) -> None:
        self.found: dict[str, str] = {}
        self._legacy = legacy
        self._podresources = podresources
        self._kubelet = kubelet
        self._ledger_service = ledger_service
        self._devices = devices
        self._clock = clock
        self._every = every
        self._looks = 0
        self._ours: dict[str, dict[str, float]] = {}  # resource -> id -> when it was last Healthy in our list
        self._since: dict[str, dict[str, float]] = {}  # resource -> id -> since when it is Healthy in our list
        self._suspected: dict[str, set[str]] = {}  # resource -> foreign ids in kubelet's last answer
        self._missing: dict[str, set[str]] = {}  # resource -> ids of ours that kubelet's last answer lacked
        self._plugins: dict[str, _CompetingPlugin] = {}

    async def look(self) -> None:
        """Ask kubelet at most once, and act on the answer. Never raises."""
        now, listed = self._clock(), self._legacy.healthy_ids()
        for resource, ids in listed.items():
            recent = {one: seen for one, seen in self._ours.get(resource, {}).items() if now - seen < SETTLED_SECONDS}
            self._ours[resource] = recent | dict.fromkeys(ids, now)
        self._since = {
            resource: {one: self._since.get(resource, {}).get(one, now) for one in ids}
            for resource, ids in listed.items()
        }
        self._looks += 1
        due = self._looks % self._every == 0 or any(self._suspected.values()) or self.found
        if not (listed and due):
            return
        try:
            answer = await self._podresources.allocatable(timeout_seconds=ASK_SECONDS)
        except PodResourcesError:
            return
        before, self._suspected = self._suspected, {resource: set() for resource in listed}
        for one in answer.devices:
            if one.resource in listed and one.device_id not in self._ours[one.resource]:
                self._suspected[one.resource].add(one.device_id)
        for resource, strange in self._suspected.items():
            if strange & before.get(resource, set()):
                self._add(resource, strange, now)
        self._look_for_missing({(one.resource, one.device_id) for one in answer.devices}, now)
        for resource, plugin in self._plugins.items():
            await self._answer(resource, plugin, now)
            if plugin.foreign_ids and resource in self.found:
                await self._doubt_devices(resource, plugin)

    def _look_for_missing(self, offered: Collection[Unit], now: float) -> None:
        """Note the resources of which kubelet lacks ids: a plugin that is gone may have replaced our registration."""
        before = self._missing
        self._missing = {
            resource: {
                one for one, at in since.items() if now - at >= SETTLED_SECONDS and (resource, one) not in offered
            }
            for resource, since in self._since.items()
        }
        for resource, ids in self._missing.items():
            if lost := ids & before.get(resource, set()):
                log.warning("kubelet lacks healthy devices", extra={"resource": resource, "ids": sorted(lost)})
                self._plugins.setdefault(resource, _CompetingPlugin(now)).seen_at = now

    def _add(self, resource: str, ids: set[str], now: float) -> None:
        if resource not in self.found:
            log.error("another plugin serves a resource of ours", extra={"resource": resource, "ids": sorted(ids)})
        plugin = self._plugins.setdefault(resource, _CompetingPlugin(now))
        plugin.seen_at = now
        known = {device.id for device in self._devices().values()}
        served = "; pods that it served keep their devices"
        if not known.issuperset(map(device_id_of, ids)):
            plugin.foreign_ids = True
            served = " and the pods that it served: nobody can say which of the devices here have such ids"
        self.found[resource] = (
            f"{resource}: another plugin on this node registered it, too: kubelet offers {', '.join(sorted(ids))}, "
            f"which this agent does not. Remove the other plugin{served}"
        )

    async def _doubt_devices(self, resource: str, plugin: _CompetingPlugin) -> None:
        """Quarantine devices, but only once for the same units: the operator may have released the devices since."""
        try:
            async with asyncio.timeout(ASK_SECONDS):
                shown = await self._kubelet.shown()
        except TimeoutError:
            return
        service = self._ledger_service
        if units := unknown_units(service.ledger, resource, shown or ()) - plugin.doubted:
            lost = record_lost_by_unknown_units(service.ledger, resource, units, service.now())
            if lost is not None and (await service.apply(lost)).accepted:
                plugin.doubted |= units

    async def _answer(self, resource: str, plugin: _CompetingPlugin, now: float) -> None:
        """Register again, or send our list again: the later plugin wins. Registers with growing pauses."""
        if plugin.registered_at < plugin.seen_at:
            if now >= plugin.due:
                plugin.registered_at, plugin.due = now, now + plugin.pause
                plugin.pause = min(2 * plugin.pause, RETRY_MOST_SECONDS)
                await self._legacy.register_again(resource)
            elif plugin.seen_at == now:
                self._legacy.resend_soon({resource})
        elif now - plugin.seen_at > SETTLED_SECONDS and self.found.pop(resource, ""):
            log.info("no other plugin serves a resource of ours any more", extra={"resource": resource})
