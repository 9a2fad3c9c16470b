"""Prepare and unprepare of one claim: a transaction whose every step can be the last one before a crash.

Prepare: ask the API server, plan, record the intent, ask the ledger, run hooks, write CDI and metadata files, record
completion, answer. Unprepare goes the other way. Whatever is interrupted is either finished or undone by the next call,
because the intent is on disk before the first side effect and completion after the last.

Kubelet gives a call 45 s and after a failure comes back 60 to 90 s later (pkg/kubelet/cm/dra/plugin/dra_plugin.go and
the pod resync), so what may pass by itself is waited for inside the call. The work is done by a task of ours, one for
each claim: a client that gives up does not cut it short, and its repetition joins it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from drabridge.containers.cdi_store import CdiStore, Family
from drabridge.dra.allocation import ClaimAllocation, allocation_of, is_allocated
from drabridge.dra.concurrency import KeyedLocks, join, to_the_end
from drabridge.dra.device_hooks import HookRunner, decode_hook
from drabridge.dra.facts import ClaimHandled, ClaimOutcome, Observer
from drabridge.dra.metadata import MetadataFiles
from drabridge.dra.planning import DevicePlan, NotReadyError, Planner, cdi_devices, metadata_facts
from drabridge.dra.ports import ClaimPods, InUse, Inventory, no_pods, nobody
from drabridge.dra.records import ClaimRecord, PreparedDevice, RecordStore, State
from drabridge.errors import ConfigError, DrabridgeError, HostError, PeerError, RefusedError
from drabridge.inventory.model import Presence
from drabridge.kube.api import Cluster, Kind, NotFoundError, UnreachableError, backoff
from drabridge.ledger import events
from drabridge.ledger.effects import Decision, RefusalCode, Side
from drabridge.ledger.model import ClaimPhase, ClaimRef
from drabridge.ledger.service import LedgerService
from drabridge.system.io_thread import IoThread
from drabridge.system.untrusted import reading

log = logging.getLogger(__name__)

BUDGET_SECONDS = 40.0  # of kubelet's 45
SETTLE_SECONDS = 10.0  # how long a device that is not there may take to come (USB re-enumeration, a reset)
RETRY_FIRST_SECONDS, RETRY_MOST_SECONDS = 0.1, 2.0

# Refusals that pass by themselves within seconds.
_PASSING = frozenset({RefusalCode.STARTING, RefusalCode.PENDING, RefusalCode.NOT_DURABLE, RefusalCode.STALE})
_CLAIMS_IN_THE_WAY = frozenset({RefusalCode.CLAIM_HELD, RefusalCode.OVERCOMMITTED})


class LedgerRefusedError(RefusedError):
    """The ledger says no."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(str(decision))
        self.decision = decision


class PassingRefusalError(LedgerRefusedError):
    """The ledger says no for now."""


class Preparer:
    """Prepares and unprepares claims. Every method may be called again at any time, and after any crash."""

    def __init__(
        self,
        *,
        planner: Planner,
        inventory: Inventory,
        ledger_service: LedgerService,
        cluster: Cluster,
        claims: Kind,
        records: RecordStore,
        locks: KeyedLocks,
        cdi: CdiStore,
        metadata: MetadataFiles | None,
        boot_id: str,
        observer: Observer,
        budget_seconds: float = BUDGET_SECONDS,
        settle_seconds: float = SETTLE_SECONDS,
        in_use: InUse = nobody,
        pods: Callable[[], ClaimPods | None] = no_pods,
        clock: Callable[[], float] = time.time,
        files: IoThread | None = None,
    ) -> None:
        """``files``: whose thread waits for disks, in the order in which it is asked."""
        self.planner = planner
        self._files = files or IoThread("claims")
        self.claims = claims
        self._inventory = inventory
        self._ledger_service = ledger_service
        self._cluster = cluster
        self._records = records
        self._locks = locks
        self._cdi = cdi
        self._metadata = metadata
        self._boot_id = boot_id
        self._observer = observer
        self._budget_seconds = budget_seconds
        self._settle_seconds = settle_seconds
        self._in_use = in_use
        self._pods = pods
        self._clock = clock
        self._hooks = HookRunner()
        self._preparing: dict[str, asyncio.Task[tuple[PreparedDevice, ...]]] = {}
        self._unpreparing: dict[str, asyncio.Task[None]] = {}

    # --- prepare

    async def prepare(self, claim: ClaimRef) -> tuple[PreparedDevice, ...]:
        """The claim's devices with their CDI ids, in the order of its allocation. Raises a DrabridgeError."""
        return await join(self._preparing, claim.uid, lambda: self._prepare(claim))

    async def _prepare(self, claim: ClaimRef) -> tuple[PreparedDevice, ...]:
        started = time.monotonic()
        outcome, error_text = ClaimOutcome.FAILED, ""
        devices: tuple[PreparedDevice, ...] = ()
        try:
            devices, replayed = await self._prepare_within_budget(claim, started)
            outcome = ClaimOutcome.REPLAYED if replayed else ClaimOutcome.OK
            return devices
        except asyncio.CancelledError:
            outcome = ClaimOutcome.CANCELLED
            raise
        except DrabridgeError as error:
            outcome, error_text = _outcome_of(error), str(error)
            if isinstance(error, LedgerRefusedError):
                self._ledger_service.report_refusal(Side.DRA, error.decision, claim)
            raise
        finally:
            names = tuple(device.device for device in devices)
            seconds = time.monotonic() - started
            self._observer(ClaimHandled("prepare", claim, outcome, seconds, names, error_text))

    async def _prepare_within_budget(self, claim: ClaimRef, started: float) -> tuple[tuple[PreparedDevice, ...], bool]:
        reason: DrabridgeError = HostError(f"preparing took longer than {self._budget_seconds:g} s")
        try:
            async with asyncio.timeout(self._budget_seconds), self._locks.lock(claim.uid):
                for delay in backoff(RETRY_FIRST_SECONDS, RETRY_MOST_SECONDS):
                    try:
                        return await self._attempt(claim)
                    except NotReadyError as error:
                        if time.monotonic() - started > self._settle_seconds:
                            raise
                        reason = error
                    except (UnreachableError, PassingRefusalError) as error:
                        reason = error
                    await asyncio.sleep(delay)
        except TimeoutError:
            raise reason from None
        raise AssertionError("backoff() does not end")

    async def _attempt(self, claim: ClaimRef) -> tuple[tuple[PreparedDevice, ...], bool]:
        """One try. Returns the answer and whether the claim had been prepared before."""
        record = await self._files.promptly(lambda: self._records.load(claim.uid))
        allocation = await self._allocation(claim, record)
        if record is not None and record.state is State.COMPLETED and _still_fits(record, allocation):
            return await self._replay(record, allocation), True
        if record is not None:  # a crash, or another allocation: begin from nothing
            await self._check_closed(record)
            await self._undo(record)
            await self._ledger_service.apply(self._unprepared(claim))
        assert allocation is not None
        plans = self.planner.plan(allocation, self._inventory())
        return await self._fresh(allocation, plans), False

    async def _allocation(self, claim: ClaimRef, record: ClaimRecord | None) -> ClaimAllocation | None:
        """The claim as the API server has it now. None: it does not answer, and the record says all that is needed."""
        try:
            obj = await self._cluster.get(self.claims, claim.name, namespace=claim.namespace)
        except NotFoundError as error:
            raise PeerError(f"claim {claim.namespace}/{claim.name} does not exist any more") from error
        except UnreachableError:
            if record is not None and record.state is State.COMPLETED:
                return None
            raise
        return allocation_of(claim, obj, self.planner.config.driver)

    async def _fresh(self, allocation: ClaimAllocation, plans: Sequence[DevicePlan]) -> tuple[PreparedDevice, ...]:
        claim = allocation.claim
        uses = tuple(plan.result.use() for plan in plans)
        record = ClaimRecord(
            claim,
            State.STARTED,
            self._boot_id,
            tuple(plan.record() for plan in plans),
            self._clock(),
            allocation.pod_claim_name,
        )
        await self._save(record)
        try:
            decision = await self._grant(self._asked(claim, uses))
            if not decision.accepted:
                raise _refused(decision)
            devices = await self._effects(allocation.claim, allocation.pod_claim_name, plans, hooks=True)
            await self._save(replace(record, state=State.COMPLETED, devices=devices))
        except BaseException as error:
            await to_the_end(self._roll_back(record, error))
            raise
        return devices

    async def _replay(self, record: ClaimRecord, allocation: ClaimAllocation | None) -> tuple[PreparedDevice, ...]:
        """Prepared before: the same answer, with files and ledger made sure of; hooks again after a reboot."""
        claim, snapshot = record.claim, self._inventory()
        plans = [self.planner.again(claim.uid, device, snapshot) for device in record.devices]
        uses = tuple(result.use() for result in allocation.results) if allocation else record.uses
        decision = await self._grant(self._asked(claim, uses))
        if not decision.accepted:
            raise _refused(decision)
        rebooted = record.boot_id != self._boot_id
        await self._effects(claim, record.pod_claim_name, plans, hooks=rebooted)
        if rebooted:
            await self._save(replace(record, boot_id=self._boot_id))
        return record.devices

    async def _effects(
        self, claim: ClaimRef, pod_claim_name: str, plans: Sequence[DevicePlan], *, hooks: bool
    ) -> tuple[PreparedDevice, ...]:
        for plan in plans:
            if hooks and plan.prepare is not None:
                await self._hooks.run(plan.prepare, plan.device, claim, "prepare")
        spec = self._cdi.claim_spec(claim.uid, cdi_devices(plans))
        # A hook that binds a driver makes other nodes, and upkeep leaves to us what is only begun.
        snapshot = self._inventory()
        now = [self.planner.again(claim.uid, plan.record(spec.names), snapshot) for plan in plans]
        written = self._cdi.claim_spec(claim.uid, cdi_devices(now))
        await self._cdi.thread.promptly(lambda: self._cdi.write(written))
        extra = await self._write_metadata(claim, pod_claim_name, now)
        devices = []
        for plan in plans:
            ids = [spec.qualified(plan.cdi.name), extra.pop(plan.result.base_request, None)]
            devices.append(plan.record([id_ for id_ in ids if id_]))
        return tuple(devices)

    async def _save(self, record: ClaimRecord) -> None:
        await self._files.promptly(lambda: self._records.save(record))

    async def _write_metadata(
        self, claim: ClaimRef, pod_claim_name: str, plans: Sequence[DevicePlan]
    ) -> dict[str, str]:
        """Metadata is a service to the container, not a condition for it: a failure is logged (KEP-5304)."""
        if (metadata := self._metadata) is None:
            return {}
        facts = metadata_facts(plans)
        try:
            return await self._files.promptly(lambda: metadata.write(claim, pod_claim_name, facts))
        except HostError as error:
            log.error("device metadata not written", extra={"claim": claim.uid, "error": str(error)})
            return {}

    async def _grant(self, event: events.Prepare) -> Decision:
        """Ask the ledger; where claims are in the way, ask the API server whether they are still allocated.

        What one that is not, and was never unprepared, still holds is withdrawn from the slices; the refusal says so.
        """
        decision = await self._ledger_service.apply(event)
        ledger = self._ledger_service.ledger
        others = {
            held.claim
            for refusal in decision.refusals
            if refusal.code in _CLAIMS_IN_THE_WAY and (entry := ledger.entries.get(refusal.device)) is not None
            for held in entry.holders
            if held.api_allocated and held.claim.name and held.claim.uid != event.claim.uid
        }
        gone = [await self.release_if_deallocated(claim) for claim in sorted(others, key=lambda claim: claim.uid)]
        return await self._ledger_service.apply(event) if any(gone) else decision

    async def release_if_deallocated(self, claim: ClaimRef) -> bool:
        """Ask the API server about a claim; tell the ledger what it let go of. What is prepared stays held.

        Returns whether any device here is no longer allocated to it: none is, or it was allocated anew. Raises
        ClusterError when it cannot be asked: then the claim keeps what it has, as with an answer without sense, or
        while processes of its pods may go on: kubelet may have heard earlier than we that they are gone.
        """
        if not self._lingering(claim) and self._lingers(claim):
            return False
        try:
            obj = await self._cluster.get(self.claims, claim.name, namespace=claim.namespace)
        except NotFoundError:
            obj = None
        kept: frozenset[str] = frozenset()
        try:
            with reading(f"claim {claim}"):
                allocated = is_allocated(claim, obj)
            results = allocation_of(claim, obj, self.planner.config.driver).results if obj and allocated else ()
        except PeerError as error:
            log.error("a claim keeps its devices", extra={"claim": claim.uid, "reason": str(error)})
            return False
        if allocated:
            kept = frozenset(r.device for r in results if r.pool == self.planner.pool and not r.admin)
            if kept.issuperset(self._ledger_service.ledger.by_claim.get(claim.uid, ())):
                return False
        await self._ledger_service.apply(events.ClaimDeallocated(claim.uid, self._clock(), kept))
        return True

    def _lingering(self, claim: ClaimRef) -> bool:
        """Whether the ledger knows of processes that may go on: then it holds the devices, whoever deallocates."""
        ledger = self._ledger_service.ledger
        held = (ledger.entries[name].claim(claim.uid) for name in ledger.by_claim.get(claim.uid, ()))
        return any(one is not None and one.phase is ClaimPhase.PREPARED for one in held)

    async def _roll_back(self, record: ClaimRecord, error: BaseException) -> None:
        """Undo this attempt. What cannot be undone stays recorded as started: the next call begins with it."""
        try:
            if not isinstance(error, RefusedError):
                await self._undo(record)
                await self._ledger_service.apply(self._unprepared(record.claim))
            await self._files.promptly(lambda: self._records.delete(record.claim.uid))
        except DrabridgeError as problem:
            log.error("prepare not rolled back", extra={"claim": record.claim.uid, "error": str(problem)})

    # --- unprepare

    async def unprepare(self, claim: ClaimRef) -> None:
        """Undo everything; success for a claim that is not known. Raises a DrabridgeError if a device is not clean."""
        await join(self._unpreparing, claim.uid, lambda: self._unprepare(claim))

    async def _unprepare(self, claim: ClaimRef) -> None:
        started = time.monotonic()
        outcome, error_text = ClaimOutcome.FAILED, ""
        try:
            late = self._preparing.get(claim.uid)
            if late is not None:  # kubelet gave up waiting for it and would never know what it did
                late.cancel()
                await asyncio.wait([late])
            async with asyncio.timeout(self._budget_seconds), self._locks.lock(claim.uid):
                await self._unprepare_locked(claim)
            outcome = ClaimOutcome.OK
        except TimeoutError:
            error_text = f"unpreparing took longer than {self._budget_seconds:g} s"
            raise HostError(error_text) from None
        except DrabridgeError as error:
            outcome, error_text = _outcome_of(error), str(error)
            raise
        finally:
            self._observer(ClaimHandled("unprepare", claim, outcome, time.monotonic() - started, error=error_text))

    async def _unprepare_locked(self, claim: ClaimRef) -> None:
        record = await self._files.promptly(lambda: self._records.load(claim.uid))
        if record is not None:
            await self._check_closed(record)
            await self._undo(record)
        else:  # unknown, or its record was damaged: what has the UID in its name goes all the same
            await self._remove_files(claim)
        decision = await self._ledger_service.apply(self._unprepared(claim))
        if not decision.accepted:
            raise _refused(decision)
        await self._files.promptly(lambda: self._records.delete(claim.uid))

    def _asked(self, claim: ClaimRef, uses: tuple[events.DeviceUse, ...]) -> events.Prepare:
        pods = self._pods()
        return events.Prepare(claim, uses, self._clock(), pods.grace(claim) if pods is not None else 0.0)

    def _unprepared(self, claim: ClaimRef) -> events.Unprepare:
        return events.Unprepare(claim.uid, self._clock(), self._lingers(claim))

    def _lingers(self, claim: ClaimRef) -> float:
        """Kubelet unprepares the claims of force-deleted pods while their containers have their grace period, so what
        is unprepared is not free yet where nobody saw the pod end (kubernetes#141471).
        """
        pods, ledger = self._pods(), self._ledger_service.ledger
        if pods is None:
            return 0.0
        held = (ledger.entries[name].claim(claim.uid) for name in ledger.by_claim.get(claim.uid, ()))
        return pods.lingers(claim, max((one.grace for one in held if one is not None), default=0.0))

    async def _check_closed(self, record: ClaimRecord) -> None:
        """Kubelet unprepares claims of force-deleted pods while their containers run (pkg/kubelet/cm/dra/manager.go,
        reconcileLoop), and after a restart prepares them for others without it. Where nodes are probed, a device of
        this claim alone that is open is not given up; kubelet asks again. In a conflict it may be the pod
        that has it open, and the device stays held.
        """
        entries = self._ledger_service.ledger.entries
        alone = {
            device.device
            for device in record.devices
            if not device.admin
            and (entry := entries.get(device.device))
            and entry.hold is None
            and [held.claim.uid for held in entry.holders] == [record.claim.uid]
        }
        if users := await self._in_use(alone):
            said = ", ".join(f"{name} is open in {user}" for name, user in sorted(users.items()))
            raise HostError(f"claim {record.claim} is in use: {said}", hint="it is released when the process has ended")

    async def _undo(self, record: ClaimRecord) -> None:
        """Clean-up hooks, then files. No hook for a device that is gone, nor for what was done before a reboot, nor for
        what the claim was not granted, or a pod has as well: others may use it.
        """
        devices, entries = self._inventory().by_name(), self._ledger_service.ledger.entries
        for prepared in reversed(record.devices):
            device = devices.get(prepared.device)
            hook = decode_hook(prepared.unprepare)
            if hook is None or prepared.admin or record.boot_id != self._boot_id:
                continue
            entry = entries.get(prepared.device)
            holders = entry.holders if entry is not None and entry.hold is None else ()
            if not any(held.claim.uid == record.claim.uid and held.phase is ClaimPhase.PREPARED for held in holders):
                continue
            if device is None or device.presence is Presence.GONE:
                log.warning("clean-up hook skipped: the device is gone", extra={"device": prepared.device})
                continue
            await self._hooks.run(hook, device, record.claim, "unprepare")
        await self._remove_files(record.claim)

    async def _remove_files(self, claim: ClaimRef) -> None:
        await self._cdi.thread.promptly(lambda: self._cdi.remove(Family.CLAIM, claim.uid))
        if (metadata := self._metadata) is not None:
            try:
                await self._files.promptly(lambda: metadata.remove(claim))
            except HostError as error:  # no device stays held for its sake
                log.error("device metadata not removed", extra={"claim": claim.uid, "error": str(error)})

    # --- around

    async def stop(self) -> None:
        """Roll back what has not committed."""
        tasks = [*self._preparing.values(), *self._unpreparing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _still_fits(record: ClaimRecord, allocation: ClaimAllocation | None) -> bool:
    """Whether the record is about the devices that are allocated now."""
    if allocation is None:
        return True
    recorded = [(d.request, d.pool, d.device, d.share_id, d.admin) for d in record.devices]
    return recorded == [(r.request, r.pool, r.device, r.share_id, r.admin) for r in allocation.results]


def _refused(decision: Decision) -> LedgerRefusedError:
    passing = all(refusal.code in _PASSING for refusal in decision.refusals)
    return (PassingRefusalError if passing else LedgerRefusedError)(decision)


def _outcome_of(error: DrabridgeError) -> ClaimOutcome:
    if isinstance(error, RefusedError):
        return ClaimOutcome.REFUSED
    return ClaimOutcome.INVALID if isinstance(error, ConfigError | PeerError) else ClaimOutcome.FAILED
