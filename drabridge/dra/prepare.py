"""Prepare and unprepare a claim, as a transaction that a crash may interrupt at any step.

Prepare: ask the API server, plan, record the intent, ask the ledger, run hooks, write CDI and metadata files, record
completion, answer. Unprepare goes the other way. The next call finishes or undoes whatever was interrupted, because the
intent is on disk before the first side effect, and completion after the last.

Kubelet gives a call 45 s, and after a failure calls again 60 to 90 s later (pkg/kubelet/cm/dra/plugin/dra_plugin.go and
the pod resync). So the call itself waits for obstacles that may pass. Each claim's work is done by a task of ours: a
client that gives up does not end the task, and its next call joins it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Sequence

from msgspec.structs import replace

from drabridge.config.container import Hook
from drabridge.config.fabric import fabric_resource, is_fabric_pool
from drabridge.containers.hooks import run_hook
from drabridge.dra.allocation import ClaimAllocation, allocation_of
from drabridge.dra.claim_files import ClaimFiles
from drabridge.dra.claim_objects import ClaimObjects
from drabridge.dra.concurrency import KeyedLocks, join, to_the_end
from drabridge.dra.deallocation import Deallocations, lingers
from drabridge.dra.observer import ClaimHandled, ClaimOutcome
from drabridge.dra.planning import DevicePlan, NotReadyError, Planner
from drabridge.dra.ports import DraPorts
from drabridge.dra.records import ClaimRecord, ClaimRecords, PreparedDevice, RecordState
from drabridge.errors import ConfigError, DrabridgeError, HostError, PeerError, RefusedError
from drabridge.inventory.devices import Device, Presence, Snapshot
from drabridge.kube.api import NotFoundError, UnreachableError, backoff
from drabridge.ledger import events
from drabridge.ledger.effects import Decision, RefusalCode, Side
from drabridge.ledger.entries import ClaimPhase, ClaimRef, Lane, Owner
from drabridge.ledger.service import LedgerService
from drabridge.system.supervise import end

log = logging.getLogger(__name__)

BUDGET_SECONDS = 40.0  # less than kubelet's 45 s
RETURN_SECONDS = 10.0  # how long a missing device may take to appear (USB re-enumeration, a reset)
RETRY_FIRST_SECONDS, RETRY_MOST_SECONDS = 0.1, 2.0

_Devices = tuple[PreparedDevice, ...]

# Refusals whose reason passes by itself within seconds.
_PASSING = frozenset({RefusalCode.STARTING, RefusalCode.PENDING, RefusalCode.NOT_DURABLE, RefusalCode.STALE})


class LedgerRefusedError(RefusedError):
    """The ledger refuses."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(str(decision))
        self.decision = decision


class PassingRefusalError(LedgerRefusedError):
    """The ledger refuses for now: trying again may help."""


class Preparer:
    """Prepares and unprepares claims. Every method may be called again at any time, and after any crash."""

    def __init__(
        self,
        planner: Planner,
        records: ClaimRecords,
        files: ClaimFiles,
        ledger_service: LedgerService,
        claims: ClaimObjects,
        deallocations: Deallocations,
        ports: DraPorts,
    ) -> None:
        self._planner = planner
        self._records = records
        self._files = files
        self._ledger_service = ledger_service
        self._claims = claims
        self._deallocations = deallocations
        self._ports = ports
        self._device_locks = KeyedLocks()  # so that two hooks never run at once on one device
        self._preparing: dict[str, asyncio.Task[_Devices]] = {}
        self._unpreparing: dict[str, asyncio.Task[_Devices]] = {}

    async def stop(self) -> None:
        """Cancel calls under way; those that are not recorded as completed are rolled back."""
        await end(*self._preparing.values(), *self._unpreparing.values())

    async def prepare(self, claim: ClaimRef) -> _Devices:
        """Return the claim's devices with their CDI ids, in the order of its allocation.

        Raises a DrabridgeError.
        """
        return await join(self._preparing, claim.uid, lambda: self._observed("prepare", claim, self._prepare(claim)))

    async def unprepare(self, claim: ClaimRef) -> None:
        """Undo everything; an unknown claim is a success.

        Raises a DrabridgeError if a device is not clean.
        """
        await join(self._unpreparing, claim.uid, lambda: self._observed("unprepare", claim, self._unprepare(claim)))

    async def _observed(self, method: str, claim: ClaimRef, work: Awaitable[tuple[_Devices, ClaimOutcome]]) -> _Devices:
        """Do the work of a call, and tell the observer how it ended."""
        started, outcome, error_text = time.monotonic(), ClaimOutcome.FAILED, ""
        devices: _Devices = ()
        try:
            devices, outcome = await work
            return devices
        except asyncio.CancelledError:
            outcome = ClaimOutcome.CANCELLED
            raise
        except DrabridgeError as error:
            outcome, error_text = _outcome_of(error), str(error)
            if isinstance(error, LedgerRefusedError) and method == "prepare":
                self._ledger_service.report_refusal(Side.DRA, error.decision, claim)
            raise
        finally:
            names, seconds = tuple(device.device for device in devices), time.monotonic() - started
            self._ports.observer(ClaimHandled(method, claim, outcome, seconds, names, error_text))

    # --- prepare

    async def _prepare(self, claim: ClaimRef) -> tuple[_Devices, ClaimOutcome]:
        """Try until the claim is prepared, the time is over, or another try cannot help."""
        started = time.monotonic()
        reason: DrabridgeError = HostError(f"preparing took longer than {BUDGET_SECONDS:g} s")
        try:
            async with asyncio.timeout(BUDGET_SECONDS), self._records.lock(claim.uid):
                for delay in backoff(RETRY_FIRST_SECONDS, RETRY_MOST_SECONDS):
                    try:
                        return await self._attempt(claim)
                    except NotReadyError as error:
                        if time.monotonic() - started > RETURN_SECONDS:
                            raise
                        reason = error
                    except (UnreachableError, PassingRefusalError) as error:
                        reason = error
                    await asyncio.sleep(delay)
        except TimeoutError:
            raise reason from None
        raise AssertionError("backoff() does not end")

    async def _attempt(self, claim: ClaimRef) -> tuple[_Devices, ClaimOutcome]:
        """Try once to prepare the claim. A recorded prepare is repeated, or undone and begun again."""
        record = await self._records.load(claim.uid)
        allocation = await self._allocation(claim, record)
        if record is not None and record.state is RecordState.COMPLETED and _still_fits(record, allocation):
            return await self._replay(record, allocation), ClaimOutcome.REPLAYED
        if record is not None:  # after a crash, or for another allocation: begin from nothing
            await self._check_closed(record)
            await self._undo(record)
            await self._release(claim)
        assert allocation is not None
        snapshot = self._ports.inventory()
        plans = self._planner.plan(allocation, snapshot)
        self._refuse_paused(allocation)
        await self._confirm([name for plan in plans for name in plan.device.cdi_devices])
        record = ClaimRecord(
            claim,
            RecordState.STARTED,
            self._records.boot_id,
            tuple(plan.prepared for plan in plans),
            self._ports.clock(),
            allocation.pod_claim_name,
        )
        await self._records.save(record)
        try:
            await self._grant(claim, record.uses)
            self._refuse_paused(allocation)  # again, because a PCI function may have been taken and released since
            devices = await self._apply(record, plans, snapshot, hooks=True)
            await self._records.save(replace(record, state=RecordState.COMPLETED, devices=devices))
        except BaseException as error:
            await to_the_end(self._roll_back(record, error))
            raise
        return devices, ClaimOutcome.OK

    async def _allocation(self, claim: ClaimRef, record: ClaimRecord | None) -> ClaimAllocation | None:
        """Read the claim's allocation.

        None: the API server does not answer, but the record has all that is needed.
        """
        try:
            obj = await self._claims.get(claim)
        except NotFoundError as error:
            raise PeerError(f"claim {claim.namespace}/{claim.name} does not exist any more") from error
        except UnreachableError:
            if record is not None and record.state is RecordState.COMPLETED:
                return None
            raise
        return allocation_of(claim, obj, self._planner.config.driver)

    def _refuse_paused(self, allocation: ClaimAllocation) -> None:
        """Raise NotReadyError for a device that no new holder may get for now."""
        paused = self._ports.paused()
        for use in allocation.uses:
            if use.device in paused and not use.admin:
                why = f"device {use.device} is given to nobody new because of {paused[use.device]}"
                raise NotReadyError(why, hint="Kubelet tries again until that is over")

    async def _replay(self, record: ClaimRecord, allocation: ClaimAllocation | None) -> _Devices:
        """Return the same answer as before, with ledger and files renewed; run hooks again after a reboot."""
        snapshot = self._ports.inventory()
        plans = [self._planner.again(record.claim.uid, device, snapshot, record.devices) for device in record.devices]
        ours = f"{self._planner.config.driver}/"
        told = [name for device in record.devices for name in device.cdi_ids]
        await self._confirm([name for name in told if not name.startswith(ours)])
        await self._grant(record.claim, allocation.uses if allocation else record.uses)
        rebooted = not self._records.of_this_boot(record)
        await self._apply(record, plans, snapshot, hooks=rebooted)
        if rebooted:
            await self._records.save(replace(record, boot_id=self._records.boot_id))
        return record.devices

    async def _confirm(self, names: Sequence[str]) -> None:
        """Check that CDI devices of other programs exist. Raises NotReadyError: somebody may be replacing the file."""
        if names:
            try:
                await self._ports.confirm_cdi(names)
            except HostError as error:
                raise NotReadyError(error.message, hint=error.hint) from error

    async def _apply(
        self, record: ClaimRecord, plans: Sequence[DevicePlan], snapshot: Snapshot, *, hooks: bool
    ) -> _Devices:
        """Bind devices to vfio-pci, run the profiles' hooks and write the claim's files.

        Returns the devices with the CDI ids of these files.
        """
        for plan in plans:
            if not plan.prepared.admin:
                await self._ports.bind(plan.device)
        due = [(plan.hook, plan.device) for plan in plans if hooks and plan.hook is not None]
        for hook, device in due:
            await self._run_hook(hook, device, record.claim, "prepare")
        now = self._ports.inventory()
        if due or now is not snapshot:  # a hook that binds a driver creates other nodes, and only we renew the files
            prepared = [plan.prepared for plan in plans]
            plans = [self._planner.again(record.claim.uid, one, now, prepared) for one in prepared]
        return await self._files.write(record, plans)

    async def _grant(self, claim: ClaimRef, uses: tuple[events.DeviceUse, ...]) -> None:
        """Ask the ledger for this node's devices. Raises LedgerRefusedError or ClusterError.

        The ledger does not have fabric devices: several nodes have them, and only the API server says who holds them.

        If other claims are in the way, ask the API server whether they are still allocated, and then the ledger again.
        """
        if not uses:
            return
        pods = self._ports.pods()
        grace = pods.grace(claim) if pods is not None else 0.0
        event = events.Prepare(claim, uses, self._ports.clock(), grace)
        decision = await self._ledger_service.apply(event)
        if await self._deallocations.release_in_the_way(claim, decision):
            decision = await self._ledger_service.apply(event)
        if not decision.accepted and await self._lease(claim, uses):
            decision = await self._ledger_service.apply(event)
        _raise_if_refused(decision)

    async def _lease(self, claim: ClaimRef, uses: tuple[events.DeviceUse, ...]) -> bool:
        """Lease free shared devices to a claim whose pod is bound. Returns whether to ask the ledger again.

        The scheduler bound the pod by an older slice, when the devices were for claims alone. So it waits for no
        condition, and nobody else would ever lease the devices to this claim. Kubelet gives them up between two
        attempts.
        """
        service = self._ledger_service
        entries = [entry for use in uses if (entry := service.ledger.entries.get(use.device))]
        if any(entry.lane is Lane.SHARED and entry.owner is Owner.NONE for entry in entries):
            leased = tuple(replace(use, lease=True) for use in uses)
            read = await self._allocation(claim, None)  # an old allocation would take away what the claim has now
            if read is None or tuple(replace(use, lease=True) for use in read.uses) != leased:
                raise NotReadyError(f"claim {claim} was allocated anew meanwhile")
            return (await service.apply(events.ClaimAllocated(claim, leased, service.now()))).accepted
        if any(entry.owner is Owner.DRA_PENDING for entry in entries):
            return (await service.apply(events.LeaseGranted(claim, service.now()))).accepted
        return False

    async def _roll_back(self, record: ClaimRecord, error: BaseException) -> None:
        """Undo this attempt. What cannot be undone stays recorded as started: the next call begins with it."""
        try:
            if not isinstance(error, RefusedError):
                await self._undo(record)
                await self._release(record.claim)
            await self._records.delete(record.claim.uid)
        except DrabridgeError as problem:
            log.error("prepare not rolled back", extra={"claim": record.claim.uid, "reason": str(problem)})

    # --- unprepare

    async def _unprepare(self, claim: ClaimRef) -> tuple[_Devices, ClaimOutcome]:
        late = self._preparing.get(claim.uid)
        if late is not None:  # kubelet gave up waiting for this prepare and would never know its result
            late.cancel()
            await asyncio.wait([late])
        try:
            async with asyncio.timeout(BUDGET_SECONDS), self._records.lock(claim.uid):
                record = await self._records.load(claim.uid)
                if record is not None:
                    await self._check_closed(record)
                    await self._undo(record)
                else:  # unknown, or its record is damaged: remove all files with the UID in their names
                    await self._files.remove(claim)
                # Nothing is left to be undone, so the record may go before the ledger knows it: after a crash in
                # between the device is held until kubelet asks again.
                async with self._records.deleted_meanwhile(claim.uid):
                    decision = await self._release(claim)
                _raise_if_refused(decision)
        except TimeoutError:
            raise HostError(f"unpreparing took longer than {BUDGET_SECONDS:g} s") from None
        return (), ClaimOutcome.OK

    async def _release(self, claim: ClaimRef) -> Decision:
        """Tell the ledger that the claim is unprepared, and how long its pods' processes may run on."""
        service, ports = self._ledger_service, self._ports
        return await service.apply(events.Unprepare(claim.uid, ports.clock(), lingers(service.ledger, ports, claim)))

    async def _check_closed(self, record: ClaimRecord) -> None:
        """Raise HostError if a process has a device open that only this claim holds; kubelet asks again.

        Only devices whose configuration asks for the probe are looked at. Kubelet unprepares claims of force-deleted
        pods while their containers run (pkg/kubelet/cm/dra/manager.go, reconcileLoop). After a restart it prepares them
        for other pods without having unprepared them. In a conflict the pod with limits may have the device open; so
        the device is not probed, and stays held.
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
        if users := await self._ports.in_use(alone):
            said = ", ".join(f"{name} is open in {user}" for name, user in sorted(users.items()))
            raise HostError(f"claim {record.claim} is in use: {said}", hint="it is released when the process has ended")

    async def _undo(self, record: ClaimRecord) -> None:
        """Run clean-up hooks, then remove files.

        No hook runs after a reboot, or for a device that is gone. No hook runs for a device that the claim was not
        granted, or that a pod has as well: others may use it.
        """
        devices, entries = self._ports.inventory().by_name(), self._ledger_service.ledger.entries
        for prepared in reversed(record.devices):
            if not prepared.unprepare or prepared.admin or not self._records.of_this_boot(record):
                continue
            if is_fabric_pool(prepared.pool):
                device = Device(prepared.device, prepared.device, fabric_resource(self._planner.config.driver))
            else:
                entry = entries.get(prepared.device)
                holders = entry.holders if entry is not None and entry.hold is None else ()
                if not any(one.claim.uid == record.claim.uid and one.phase is ClaimPhase.PREPARED for one in holders):
                    continue
                found = devices.get(prepared.device)
                if found is None or found.presence is Presence.GONE:
                    log.warning("clean-up hook skipped: the device is gone", extra={"device": prepared.device})
                    continue
                device = found
            command, seconds = prepared.unprepare["command"], prepared.unprepare["timeoutSeconds"]
            await self._run_hook(Hook(tuple(command), seconds), device, record.claim, "unprepare")
        await self._files.remove(record.claim)

    async def _run_hook(self, hook: Hook, device: Device, claim: ClaimRef, phase: str) -> None:
        """Run a hook to its end. Raises HostError with its output."""
        environment = {
            "DRABRIDGE_PHASE": phase,
            "DRABRIDGE_CLAIM_UID": claim.uid,
            "DRABRIDGE_CLAIM": f"{claim.namespace}/{claim.name}",
        }
        async with self._device_locks.lock(device.name):
            await run_hook(hook, device, device.name, environment)


def _still_fits(record: ClaimRecord, allocation: ClaimAllocation | None) -> bool:
    """Whether the record is about the devices that are allocated now."""
    if allocation is None:
        return True
    recorded = [(d.request, d.pool, d.device, d.share_id, d.admin) for d in record.devices]
    return recorded == [(r.request, r.pool, r.device, r.share_id, r.admin) for r in allocation.results]


def _raise_if_refused(decision: Decision) -> None:
    if decision.accepted:
        return
    passing = all(refusal.code in _PASSING for refusal in decision.refusals)
    raise (PassingRefusalError if passing else LedgerRefusedError)(decision)


def _outcome_of(error: DrabridgeError) -> ClaimOutcome:
    if isinstance(error, RefusedError):
        return ClaimOutcome.REFUSED
    return ClaimOutcome.INVALID if isinstance(error, ConfigError | PeerError) else ClaimOutcome.FAILED
