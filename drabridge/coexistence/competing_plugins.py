"""Another plugin that registers one of our resources as well: the vendor's, left running or brought back.

Kubelet calls whoever registered a name last and tells the other nothing: its stream stays open, and the lists of both
overwrite each other (plugin/v1beta1/handler.go up to 1.36). So it is asked what it would give out: what our list has
not had Healthy for a while, somebody else offers. Asking costs it no new count, unlike a List. A pod that has such an
id which no device here has may have any of the devices: as at a start, those that nobody is known to hold are doubted.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

from msgspec import Struct

from drabridge.agent.runtime import Runtime
from drabridge.inventory.model import device_id_of
from drabridge.ledger.observation import record_lost_by_unknown_units, unknown_units
from podresources import PodResourcesError

log = logging.getLogger(__name__)

ASK_SECONDS = 2.0  # kubelet answers from memory; what else is due by time waits as long
SETTLED_SECONDS = 30.0  # kubelet may be late with a list: it writes a file after each, on whatever disk
RETRY_SECONDS = 10.0  # before we register a second time against another plugin; twice that before the next, and so on
RETRY_MOST_SECONDS = 300.0


class _Rival(Struct):
    """``seen_at``: when kubelet last had another's list; it may call the other plugin until we register after that."""

    seen_at: float
    registered_at: float = -math.inf
    due: float = -math.inf  # not before it is there another registration of ours
    pause: float = RETRY_SECONDS
    foreign: bool = False  # it offers ids that no device here has
    doubted: frozenset[str] = frozenset()  # such ids that pods had: devices were put in doubt, once, because of them


class Rivals:
    """Keeps ``runtime.rivals``. ``clock`` counts seconds and never goes back. Kubelet is asked at every third look
    (``every``), and at each while there is reason to.
    """

    def __init__(self, runtime: Runtime, clock: Callable[[], float] = time.monotonic, every: int = 3) -> None:
        self._runtime = runtime
        self._clock = clock
        self._every = every
        self._looks = 0
        self._ours: dict[str, dict[str, float]] = {}  # resource -> id -> when it was last Healthy in our list
        self._suspected: dict[str, set[str]] = {}  # resource -> ids that kubelet offered against our list, a look ago
        self._rivals: dict[str, _Rival] = {}

    async def look(self) -> None:
        """One question at most, and what follows from the answer. Never raises. Two answers in a row make a rival."""
        legacy, at = self._runtime.legacy, self._clock()
        listed = legacy.healthy()
        for resource, ids in listed.items():
            recent = {one: seen for one, seen in self._ours.get(resource, {}).items() if at - seen < SETTLED_SECONDS}
            self._ours[resource] = recent | dict.fromkeys(ids, at)
        self._looks += 1
        due = self._looks % self._every == 0 or any(self._suspected.values()) or self._runtime.rivals
        if not (listed and due):
            return
        try:
            answer = await self._runtime.podresources.allocatable(timeout_seconds=ASK_SECONDS)
        except PodResourcesError:
            return
        before, self._suspected = self._suspected, {resource: set() for resource in listed}
        for one in answer.devices:
            if one.resource in listed and one.device_id not in self._ours[one.resource]:
                self._suspected[one.resource].add(one.device_id)
        for resource, strange in self._suspected.items():
            if strange & before.get(resource, set()):
                self._found(resource, strange, at)
        for resource, rival in self._rivals.items():
            await self._answer(resource, rival, at)
            if rival.foreign and resource in self._runtime.rivals:
                await self._doubt(resource, rival)
        if self._runtime.rivals:  # whom the other serves must be a holder soon
            self._runtime.evidence.hurry()

    def _found(self, resource: str, strange: set[str], at: float) -> None:
        if resource not in self._runtime.rivals:
            log.error("another plugin serves a resource of ours", extra={"resource": resource, "ids": sorted(strange)})
        rival = self._rivals.setdefault(resource, _Rival(at))
        rival.seen_at = at
        known = {device.id for device in self._runtime.devices.values()}
        served = "; pods that it served keep their devices"
        if not known.issuperset(map(device_id_of, strange)):
            rival.foreign = True
            served = " and the pods that it served: nobody can say which of the devices here have such ids"
        self._runtime.rivals[resource] = (
            f"{resource}: another plugin on this node registered it, too: kubelet offers {', '.join(sorted(strange))}, "
            f"which this agent does not. Remove the other plugin{served}"
        )

    async def _doubt(self, resource: str, rival: _Rival) -> None:
        """Not twice for the same pods: the operator may have said since that they have none of the devices."""
        try:
            async with asyncio.timeout(ASK_SECONDS):
                shown = await self._runtime.kubelet_evidence.shown()
        except TimeoutError:
            return
        ledger_service = self._runtime.ledger_service
        if found := unknown_units(ledger_service.ledger, resource, shown or ()) - rival.doubted:
            lost = record_lost_by_unknown_units(ledger_service.ledger, resource, found, self._runtime.now())
            if lost is not None and (await ledger_service.apply(lost)).accepted:
                rival.doubted |= found

    async def _answer(self, resource: str, rival: _Rival, at: float) -> None:
        """The later registration wins, and the later list: ours, without a war with who wants the same."""
        if rival.registered_at < rival.seen_at:
            if at >= rival.due:
                rival.registered_at, rival.due = at, at + rival.pause
                rival.pause = min(2 * rival.pause, RETRY_MOST_SECONDS)
                await self._runtime.legacy.register_again(resource)
            elif rival.seen_at == at:
                self._runtime.legacy.repeat({resource})
        elif at - rival.seen_at > SETTLED_SECONDS and self._runtime.rivals.pop(resource, ""):
            log.info("no other plugin is seen to serve a resource of ours", extra={"resource": resource})
            self._runtime.changed.set()
