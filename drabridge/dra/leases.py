"""Grant or deny leases to claims, one claim at a time: leases of free devices that both APIs offer.

The scheduler allocates such a device, and waits for a condition on the claim before it binds the pod (KEP-5007).
Meanwhile this agent takes the device from kubelet. It sets the condition only when kubelet has acknowledged that and
the lease is on disk. A claim that cannot have all of its devices is denied: first the slices show the denial, then the
failure condition is set. In the other order the scheduler would choose the same devices again. A pod gets the leases of
all of its claims here, or none: the scheduler takes back only denied claims, and the other claims would keep devices
for a pod that waits.

After every failure the work on a claim begins again. The next step follows from the present claim and ledger alone, so
a restart of any program in the middle only costs time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from itertools import chain

from msgspec import Struct

from drabridge.config import schema as config
from drabridge.dra.allocation import allocation_here
from drabridge.dra.claim_names import ClaimKey, ClaimNames, WaitingPod
from drabridge.dra.claim_objects import ClaimObjects
from drabridge.dra.deallocation import holds_of
from drabridge.dra.observer import LeaseEnded, LeaseOutcome, Observer
from drabridge.errors import DrabridgeError
from drabridge.kube.api import ConflictError, InvalidError, NotFoundError, backoff
from drabridge.kube.json_reader import Json
from drabridge.ledger.effects import Decision, RefusalCode
from drabridge.ledger.entries import ClaimRef, Lane, Owner, WaitsFor
from drabridge.ledger.events import ClaimAllocated, DeviceUse, LeaseDenied, LeaseGranted
from drabridge.ledger.service import LedgerService
from drabridge.offers.slices import lease_condition, lease_denied_condition
from drabridge.system.supervise import WakeUp, end, forever
from drabridge.system.untrusted import reading

log = logging.getLogger(__name__)

FIRST_SECONDS = 0.02  # the scheduler names the node about 10 ms before it writes the allocation
AGAIN_SECONDS = 0.1  # the next delay; each further one is longer
SHOWN_SECONDS = 5.0  # how long a denial waits for the slices before the claim is looked at again
WATCH_ON_SECONDS = 30.0  # how long hints or pods are followed without a shared device
TELL_TIMES = 4  # how many times a claim that was changed meanwhile is told
REMEMBERED = 1024  # claims whose denials are counted


class LeaseTo(Struct, frozen=True):
    """An allocated claim's devices here. ``shown``: for each device that needs a lease, the conditions set.

    The scheduler also waits for the condition of a device to which the claim has admin access, although such access
    holds nothing. That condition is set with the others, or at once if there are no others.

    Conditions are written only to this ``resource_version``: a claim that was allocated again is looked at again.
    """

    claim: ClaimRef
    uses: tuple[DeviceUse, ...]
    shown: tuple[frozenset[str], ...]
    resource_version: str

    @property
    def holds(self) -> bool:
        """Whether a device needs a lease that holds it."""
        return any(use.lease and not use.admin for use in self.uses)

    def is_told(self, condition: str) -> bool:
        """Whether every device already has the condition."""
        return all(condition in one for one in self.shown)


class Leases:
    """Serves the claims that ``names`` names. Runs on the agent's loop."""

    def __init__(
        self,
        ledger_service: LedgerService,
        claims: ClaimObjects,
        names: ClaimNames,
        *,
        driver: str,
        pool: str,
        rules: Callable[[], config.Leases],
        supported: Callable[[], bool | None],
        release_in_the_way: Callable[[ClaimRef, Decision], Awaitable[bool]],
        synced_seq: Callable[[], int],
        observer: Observer,
    ) -> None:
        """``supported`` returns whether the API server keeps binding conditions; None: not known yet.

        ``synced_seq`` returns the number of the ledger from which the slices follow. ``rules`` returns the rules in
        force. ``release_in_the_way`` asks whether the claims that hold the refused devices are still allocated.
        """
        self._ledger_service = ledger_service
        self._claims = claims
        self._names = names
        self._driver = driver
        self._pool = pool
        self._rules = rules
        self._supported = supported
        self._release_in_the_way = release_in_the_way
        self._synced_seq = synced_seq
        self._observer = observer
        self._look = WakeUp()
        self._changed = asyncio.Event()  # replaced at each change, because several tasks may wait for it
        self._serving: dict[ClaimKey, asyncio.Task[None]] = {}
        self._served: dict[ClaimKey, frozenset[str]] = {}  # settled claims -> for which reasons
        self._denials: dict[str, int] = {}  # claim UID -> number of denials
        self._verdicts: dict[ClaimRef, tuple[LeaseOutcome, str]] = {}  # claims in work that were denied -> how and why
        self._began: dict[ClaimKey, float] = {}  # when a claim in work was first seen allocated
        self._untold: dict[ClaimKey, str] = {}  # UIDs of claims whose lease is in the ledger, but no condition yet
        self._following: list[asyncio.Task[None]] = []  # the task that follows hints or pods; empty if none does

    def wake(self) -> None:
        """Look again: the ledger, the slices or the named claims changed."""
        self._look.set()
        before, self._changed = self._changed, asyncio.Event()
        before.set()

    def awaited(self, claim: ClaimRef) -> bool:
        """Whether this claim is still named, and not told of its lease yet: then nobody else needs to ask about it."""
        key = claim.namespace, claim.name
        followed = not self._names.chosen.lost_because and key in self._names.chosen.claims
        return followed and self._untold.get(key) == claim.uid

    def denials(self, claim: ClaimRef) -> int:
        """Return how often this claim was denied, as far as is remembered."""
        return self._denials.get(claim.uid, 0)

    async def run(self) -> None:
        """Serve until cancelled.

        ``names`` runs only while a device is shared or a denied claim is left, and ``WATCH_ON_SECONDS`` more.
        """
        unsubscribe = self._ledger_service.subscribe(lambda ledger, effects: self.wake())
        idle_since = 0.0
        try:
            while True:
                if self._needed():
                    idle_since = time.monotonic()
                    if not self._following:
                        self._following = [asyncio.create_task(forever("claim-names", self._names.run))]
                elif time.monotonic() - idle_since > WATCH_ON_SECONDS:
                    await end(*self._following)
                    self._following = []
                self._serve_claims()
                await self._look.wait(WATCH_ON_SECONDS)
        finally:
            unsubscribe()
            await end(*self._serving.values(), *self._following)

    def _needed(self) -> bool:
        entries = self._ledger_service.ledger.entries.values()
        # A shared device that is held counts as well: a claim may have admin access to it.
        return any(entry.lane is Lane.SHARED or entry.denied for entry in entries)

    def _serve_claims(self) -> None:
        """Begin with named claims that no task serves yet, and forget claims that are no longer named."""
        named = self._names.chosen.claims
        for key in self._served.keys() - named.keys():
            del self._served[key]
        for key, reasons in named.items():
            if key not in self._serving and not reasons <= self._served.get(key, frozenset()):
                task = asyncio.create_task(self._serve(key, reasons), name=f"lease {'/'.join(key)}")
                self._serving[key] = task
                task.add_done_callback(lambda _, key=key: self._ended(key))  # type: ignore[misc]

    def _ended(self, key: ClaimKey) -> None:
        self._serving.pop(key, None)
        self._untold.pop(key, None)
        self._began.pop(key, None)
        self._verdicts = {one: why for one, why in self._verdicts.items() if (one.namespace, one.name) in self._serving}
        self._look.set()

    async def _serve(self, key: ClaimKey, reasons: frozenset[str]) -> None:
        """Look at one claim again and again, until it is settled or no longer named."""
        delays = chain((FIRST_SECONDS,), backoff(AGAIN_SECONDS, self._names.chosen.most_seconds))
        for delay in delays:
            await asyncio.sleep(delay)
            if key not in self._names.chosen.claims:
                return
            try:
                if await self._settle(key):
                    self._served[key] = reasons
                    return
            except (NotFoundError, InvalidError) as error:
                if self._names.chosen.comes_after_allocation:
                    self._served[key] = reasons
                    return
                if isinstance(error, InvalidError):  # else it is created a moment later
                    log.warning("a lease waits", extra={"claim": "/".join(key), "reason": str(error)})
            except ConflictError:
                pass  # the claim was changed meanwhile
            except DrabridgeError as error:
                log.warning("a lease waits", extra={"claim": "/".join(key), "reason": str(error)})
            except Exception:
                log.exception("a lease failed", extra={"claim": "/".join(key)})

    async def _settle(self, key: ClaimKey) -> bool:
        """Look at a claim once, and take the next step. Return whether the claim is settled. Raises DrabridgeError."""
        obj, wanted = await self._read(key)
        if wanted is None:
            return self._names.chosen.comes_after_allocation
        if any(map(wanted.is_told, (lease_condition(self._driver), lease_denied_condition(self._driver)))):
            return True  # or no device here needs a lease
        claim, service = wanted.claim, self._ledger_service
        self._began.setdefault(key, time.monotonic())
        pods = await self._names.chosen.pods(key, obj)
        if not pods:
            return False  # no pod waits for it, or the pod's scheduler is not known
        if not wanted.holds:
            await self._tell(wanted, lease_condition(self._driver), "AdminAccess", "admin access holds no device")
            return True
        if self._supported() is None:
            return False
        others = await self._others(wanted, pods)
        if others is None and not self._is_denied(wanted):
            return False  # the scheduler writes one allocation after the other
        others = others or []
        if why := self._refusal(pods):
            return await self._deny(wanted, others, LeaseOutcome.UNSUPPORTED, why)
        self._untold[key] = claim.uid
        decision = await service.apply(ClaimAllocated(claim, wanted.uses, service.now()))
        if await self._release_in_the_way(claim, decision):
            decision = await service.apply(ClaimAllocated(claim, wanted.uses, service.now()))
        if not decision.accepted:
            if any(refusal.code is RefusalCode.NOT_DURABLE for refusal in decision.refusals):
                return False
            why = "; ".join(one.message for one in decision.refusals)
            return await self._deny(wanted, others, LeaseOutcome.HELD, why)
        if not await self._given_up_by_kubelet(wanted, others):
            seconds = self._rules().kubelet_seconds
            why = f"kubelet did not give it up in {seconds:g} s"
            return await self._deny(wanted, others, LeaseOutcome.TIMEOUT, why)
        if denied := min(filter(self._is_denied, others), key=self._is_free, default=None):
            return await self._deny(wanted, others, LeaseOutcome.HELD, f"claim {denied.claim} of its pod was denied")
        beside = tuple(one.claim for one in others)
        if not (await service.apply(LeaseGranted(claim, service.now(), beside))).accepted:
            return False  # a pod was quicker, or a device broke: the next look finds the next step
        await self._tell(wanted, lease_condition(self._driver), "Leased", "kubelet has given the device up")
        self._report(wanted, LeaseOutcome.GRANTED)
        return True

    async def _read(self, key: ClaimKey) -> tuple[Json, LeaseTo | None]:
        """Read a claim; None if it is not allocated. Raises DrabridgeError."""
        obj = await self._claims.get(ClaimRef("", *key))
        with reading(f"claim {'/'.join(key)}"):
            return obj, lease_to(obj, self._driver, self._pool)

    def _refusal(self, pods: Sequence[WaitingPod]) -> str:
        """Say why no lease can be granted to a claim, whatever its devices are; "" if one can."""
        if not self._supported():
            return "the API server does not keep binding conditions any more"
        known = self._rules().schedulers
        for pod in pods:
            if pod.scheduler not in known:
                return f"the scheduler {pod.scheduler} of pod {pod} is not listed in dra.leases.schedulers"
        return ""

    async def _others(self, wanted: LeaseTo, pods: Sequence[WaitingPod]) -> list[LeaseTo] | None:
        """Read the pods' other claims that wait for a lease here; None if one is not allocated yet.

        Raises DrabridgeError.
        """
        own = wanted.claim.name
        names = {(pod.namespace, name) for pod in pods for name in pod.claims if name != own}
        found = []
        for key in sorted(names):
            _, other = await self._read(key)
            if other is None:
                return None
            if other.holds and not other.is_told(lease_condition(self._driver)):
                found.append(other)
        return found

    async def _given_up_by_kubelet(self, wanted: LeaseTo, others: Sequence[LeaseTo]) -> bool:
        """Wait until kubelet has given up all devices of these claims, or one claim was denied; False: not in time.

        This does not ask kubelet: the mover does so for every entry that waits for kubelet.
        """
        deadline = time.monotonic() + self._rules().kubelet_seconds
        while not (any(map(self._is_denied, others)) or self._may_be_granted(wanted, others)):
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._changed.wait()
            except TimeoutError:
                return False
        return True

    def _may_be_granted(self, wanted: LeaseTo, others: Sequence[LeaseTo]) -> bool:
        """Whether kubelet has given up every device of these claims, and ``others`` have all got devices in the ledger.

        If ``wanted`` has lost its devices, there is nothing to wait for.
        """
        holds = [holds_of(self._ledger_service.ledger, one.claim) for one in (wanted, *others)]
        if any(held.waits_for is WaitsFor.KUBELET for one in holds for held in one):
            return False
        return not holds[0] or all(holds)

    async def _deny(self, wanted: LeaseTo, others: Sequence[LeaseTo], outcome: LeaseOutcome, reason: str) -> bool:
        """Deny a claim all its devices: in the ledger, in the slices, then by a condition.

        The other claims of its pod are then denied as well, by their own tasks. Of all denied claims, those whose
        devices somebody else has are told first. If the scheduler takes back only such a claim, it cannot choose the
        same device for it again. It takes back each other claim when that claim is told.
        """
        service = self._ledger_service
        if not self._is_denied(wanted):
            self._verdicts[wanted.claim] = outcome, reason
        if not (await service.apply(LeaseDenied(wanted.claim, wanted.uses, service.now(), reason))).accepted:
            return False
        denied = [wanted, *filter(self._is_denied, others)]
        seq = service.ledger.seq
        while self._synced_seq() < seq:
            try:
                async with asyncio.timeout(SHOWN_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                return False
        for one in sorted(denied, key=self._is_free):
            how, why = self._verdicts.get(one.claim, (LeaseOutcome.HELD, reason))
            if await self._tell_denied(one, why):
                self._denials[one.claim.uid] = self._denials.pop(one.claim.uid, 0) + 1
                if len(self._denials) > REMEMBERED:
                    del self._denials[next(iter(self._denials))]
                self._report(one, how, why)
        return True

    async def _tell_denied(self, wanted: LeaseTo, reason: str) -> bool:
        """Set the failure condition, even if the claim was changed meanwhile but has the same devices.

        The scheduler changes all claims of a pod when it sees that one has failed. Return whether it was set now.
        Raises DrabridgeError.
        """
        condition, one = lease_denied_condition(self._driver), wanted
        for _ in range(TELL_TIMES):
            if one.is_told(condition):
                return False  # by the task of another claim of its pod
            try:
                await self._tell(one, condition, "Denied", reason)
                return True
            except ConflictError:
                _, again = await self._read((wanted.claim.namespace, wanted.claim.name))
                if again is None or (again.claim.uid, again.uses) != (wanted.claim.uid, wanted.uses):
                    return False
                one = again
        raise ConflictError(f"claim {wanted.claim} changes all the time")

    def _is_free(self, wanted: LeaseTo) -> bool:
        """Whether nobody has the devices that a claim was denied."""
        entries = (self._ledger_service.ledger.entries.get(use.device) for use in wanted.uses)
        return all(entry is not None and entry.owner is Owner.NONE for entry in entries)

    def _is_denied(self, wanted: LeaseTo) -> bool:
        entries = (self._ledger_service.ledger.entries.get(use.device) for use in wanted.uses)
        uids = {held.claim.uid for entry in entries if entry is not None for held in entry.denied}
        return wanted.claim.uid in uids or wanted.is_told(lease_denied_condition(self._driver))

    async def _tell(self, wanted: LeaseTo, condition: str, reason: str, message: str) -> None:
        """Set ``condition`` on every device that needs the lease. Raises ClusterError."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        state: Json = {
            "type": condition,
            "status": "True",
            "reason": reason,
            "message": message[:1024],
            "lastTransitionTime": now,
        }
        by_place = {
            (use.device, use.share): use for use in wanted.uses if use.lease
        }  # one device may belong to two requests
        entries = [self._entry(use, state) for use in by_place.values()]
        # A manager of its own: the status that is written after Prepare must not take the condition away.
        manager, seen = lease_condition(self._driver), wanted.resource_version
        await self._claims.apply_devices(wanted.claim, entries, manager=manager, resource_version=seen)

    def _entry(self, use: DeviceUse, condition: Json) -> Json:
        entry: Json = {"driver": self._driver, "pool": self._pool, "device": use.device}
        if use.share is not None:
            entry["shareID"] = use.share.id
        return {**entry, "conditions": [condition]}

    def _report(self, wanted: LeaseTo, outcome: LeaseOutcome, reason: str = "") -> None:
        began = self._began.get((wanted.claim.namespace, wanted.claim.name), time.monotonic())
        devices = tuple(use.device for use in wanted.uses)
        self._observer(LeaseEnded(wanted.claim, devices, outcome, time.monotonic() - began, reason))


def lease_to(obj: Json, driver: str, pool: str) -> LeaseTo | None:
    """Read an allocated claim's devices of ``pool``.

    None: the claim is not allocated.

    Raises PeerError.
    """
    status = obj.get("status") or {}
    if not status.get("allocation"):
        return None
    here = allocation_here(obj, driver, pool)
    if here is None:
        return LeaseTo(ClaimRef(""), (), (), "")
    shown = _conditions(status.get("devices") or (), here.uses, driver, pool)
    return LeaseTo(here.claim, here.uses, shown, str(obj["metadata"]["resourceVersion"]))


def _conditions(
    entries: Sequence[Json], uses: Sequence[DeviceUse], driver: str, pool: str
) -> tuple[frozenset[str], ...]:
    shown = {
        (entry.get("device"), entry.get("shareID") or ""): frozenset(
            str(one["type"]) for one in entry.get("conditions") or () if one.get("status") == "True"
        )
        for entry in entries
        if (entry.get("driver"), entry.get("pool")) == (driver, pool)
    }
    leased = [(use.device, use.share.id if use.share else "") for use in uses if use.lease]
    return tuple(shown.get(place, frozenset()) for place in leased)
