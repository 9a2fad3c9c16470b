"""Moving free devices between the lanes of a running node: what is wanted, and the acknowledgements a move waits for.

The ledger decides; this fetches what it waits for. Legacy to DRA: kubelet's word that it no longer offers the device.
DRA to legacy: the API server's word that no slice shows it, a quiet time, and a LIST of claims in which none has it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence

from drabridge.agent.runtime import Runtime
from drabridge.config.lanes import Lanes, LaneShare, Selection
from drabridge.config.schema import Resource
from drabridge.dra.lifecycle import ClaimSide
from drabridge.errors import ClusterError
from drabridge.inventory.match import matches
from drabridge.inventory.model import Device, Presence, Snapshot, device_id_of
from drabridge.lanes.desired import Wishes
from drabridge.lanes.plan import (
    LaneTarget,
    counted_devices,
    destination_lane,
    from_selection,
    plan,
    seconds_until_replan,
    startable_without_slices,
    starting_lanes,
)
from drabridge.ledger.events import ClaimAllocated, NoClaimListed, SetLane, WithdrawnFromKubelet, WithdrawnFromSlices
from drabridge.ledger.model import Entry, Lane, Ledger, MoveStep

log = logging.getLogger(__name__)

DELIVERY_SECONDS = 2.0  # kubelet reads a list within milliseconds; if not, it restarts
RETRY_SECONDS = 0.05  # between questions to kubelet while a move waits for its answer (its limiter: 100 a second)
SHOWN_RETRY_SECONDS = 1.0  # where a pod is shown: the evidence needs a moment to make it the holder
CLAIMS_RETRY_SECONDS = 5.0  # between LISTs of claims, which cost the API server more
GATHER_SECONDS = 0.02  # each Allocate changes the ledger, few changes move a lane: many of them are looked at together


class Transfers:
    """Plans, begins and accompanies moves."""

    def __init__(self, runtime: Runtime, claims: ClaimSide, wishes: Wishes) -> None:
        self._runtime = runtime
        self._claims = claims
        self._wishes = wishes
        self._slices_due = 0.0  # wall-clock seconds: not before, after a LIST that failed
        self._claims_due = 0.0  # as well, and after one that showed a claim which cannot be served: refusing it is news

    def first_lanes(self, snapshot: Snapshot) -> Mapping[str, Lane]:
        """Where devices start that the ledger has never seen."""
        ledger = self._runtime.ledger_service.ledger
        found: dict[str, Lane] = {}
        here = {device.syspath for device in snapshot.devices if device.presence is not Presence.GONE}
        for resource in self._wholes_first():
            devices = [
                device
                for device in snapshot.of(resource.name)
                if device.presence is not Presence.GONE or device.syspath not in here  # another has its place, and lane
            ]
            wanted, _ = self._wanted(self._wishes.lanes(resource), devices)
            found |= starting_lanes(ledger, devices, wanted.beside_wholes(ledger, devices, found))
        return found

    async def run(self) -> None:
        while True:
            await self._begin()
            pause = await self._accompany()
            if await self._runtime.changed.wait(pause):
                await asyncio.sleep(GATHER_SECONDS)

    # --- what is wanted ---------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Ask the ledger for every change that the plan wants; what cannot be now waits there, visibly."""
        runtime = self._runtime
        if not runtime.inventory.current.complete:
            return
        for resource in self._wholes_first():
            ledger = runtime.ledger_service.ledger
            devices = self._counted(ledger, resource.name)
            wanted, notes = self._wanted(self._wishes.lanes(resource), devices)
            if self._wishes.lost(resource):
                continue
            changes = plan(ledger, devices, wanted.beside_wholes(ledger, devices, {}), runtime.now())
            begun = changes if self._claims.published else startable_without_slices(ledger, changes)
            for change in begun:
                await runtime.ledger_service.apply(SetLane(change.device, change.lane, runtime.now(), change.reason))
            if held_up := sum(change.lane is Lane.DRA for change in changes if change not in begun):
                notes.append(f"{held_up} more for the dra lane wait until slices can be published")
            self._wishes.unmet[resource.name] = notes or self._divided(devices, wanted)

    def _wholes_first(self) -> list[Resource]:
        """The resources in an order in which the lane of a whole is known before its parts follow it."""
        return sorted(self._runtime.config.resources, key=lambda resource: resource.partition is not None)

    def _divided(self, devices: Sequence[Device], wanted: LaneTarget) -> list[str]:
        """Where the parts of a device would have to be in both lanes, or not with their whole."""
        entries = self._runtime.ledger_service.ledger.entries
        there = sum(destination_lane(entries[device.name]) is Lane.DRA for device in devices if device.name in entries)
        if there == wanted.dra or not any(device.root for device in devices):
            return []
        return [
            f"the dra lane has {there} devices and not {wanted.dra}: parts of one device stay together, and with it"
        ]

    def _counted(self, ledger: Ledger, resource: str) -> list[Device]:
        names = counted_devices(ledger, resource, self._runtime.now())
        devices = self._runtime.devices
        return [devices[name] for name in names if name in devices]

    def _wanted(self, lanes: Lanes, devices: Sequence[Device]) -> tuple[LaneTarget, list[str]]:
        """And what of it is not to be had, in words."""
        total = len(devices)
        selected = {
            lane: set(self._selected(share, lane, devices))
            for lane, share in zip((Lane.LEGACY, Lane.DRA), lanes.resolved, strict=True)
            if isinstance(share, Selection)
        }
        notes = [f"no device matches what is to be in the {lane} lane" for lane, names in selected.items() if not names]
        wanted = LaneTarget(lanes.targets(total)[1])
        if any(selected.values()):
            pinned = {name: lane for lane in (Lane.DRA, Lane.LEGACY) for name in selected.get(lane, ())}
            # A lane given by selection has exactly those devices; the other one has the rest.
            rest = Lane.LEGACY if Lane.DRA in selected else Lane.DRA
            wanted = from_selection(devices, pinned, rest=rest, min_legacy=lanes.min_legacy, min_dra=lanes.min_dra)
            if left := sum(wanted.lane_of(name) is not lane for name, lane in pinned.items()):
                notes.append(f"{left} of {len(pinned)} chosen devices: minLegacy and minDra leave no room for them")
        numbers = zip((Lane.LEGACY, Lane.DRA), lanes.resolved, (total - wanted.dra, wanted.dra), strict=True)
        notes += [
            f"the {lane} lane has {'what the chosen devices leave, ' if selected else ''}{count} and not {share}"
            for lane, share, count in numbers
            if isinstance(share, LaneShare) and not _had(share, count, total)
        ]
        if self._runtime.off is not None:  # what claims had stays theirs, nobody could have any more
            entries = self._runtime.ledger_service.ledger.entries
            theirs = [e for d in devices if (e := entries.get(d.name)) and e.lane in (Lane.DRA, Lane.DRA_TO_LEGACY)]
            return LaneTarget(min(wanted.dra, len(theirs))), []
        return wanted, notes if devices else []

    def _selected(self, selection: Selection, lane: Lane, devices: Sequence[Device]) -> Iterator[str]:
        """What is away is matched by nothing: it is chosen for the lane that it has."""
        entries = self._runtime.ledger_service.ledger.entries
        for device in devices:
            record = self._runtime.inventory.udev_device(device.name)
            if record is not None:
                chosen_now = matches(record, selection.match)
            else:
                chosen_now = device.name in entries and destination_lane(entries[device.name]) is lane
            if chosen_now:
                yield device.name

    # --- what moves wait for ----------------------------------------------------------------------------------------

    async def _accompany(self) -> float | None:
        """Fetch acknowledgements; returns how long until the next attempt, None when nothing waits for one."""
        pauses: list[float] = []
        entries = self._runtime.ledger_service.ledger.entries.values()
        leaving = [
            entry
            for entry in entries
            if entry.lane is Lane.LEGACY_TO_DRA
            and _at(entry, MoveStep.REVOKING)
            and entry.device.resource not in self._runtime.rivals  # who may offer it again
        ]
        if leaving and self._claims.published:  # else they may still be taken back
            pauses.append(await self._ask_kubelet(leaving))
        if returning := [e for e in entries if e.lane is Lane.DRA_TO_LEGACY and _at(e, MoveStep.REVOKING)]:
            await self._look_at_slices(returning)
            pauses.append(CLAIMS_RETRY_SECONDS)
        if quiet := [e for e in entries if e.lane is Lane.DRA_TO_LEGACY and _at(e, MoveStep.QUIESCING)]:
            pauses.append(await self._ask_for_claims(quiet))
        if (left := seconds_until_replan(self._runtime.ledger_service.ledger, self._runtime.now())) is not None:
            pauses.append(left)
        return min(pauses, default=None)

    async def _ask_kubelet(self, waiting: list[Entry]) -> float:
        """What would kubelet still give out? No Allocate may be open before, during or after the question.

        And what has it given out without us, to pods of the plugin before this one, say? It is asked that after it has
        heard that the devices are revoked, and no oftener than needed: a List may make kubelet count wrongly (see
        :mod:`drabridge.evidence.kubelet`). A pod that it shows is left to the evidence, which makes it a holder.

        Returns seconds until the next attempt.
        """
        runtime = self._runtime
        since = runtime.ledger_service.ledger.seq
        resources = {entry.device.resource for entry in waiting}  # one that kubelet does not serve holds up no other
        heard = {name for name in resources if await runtime.legacy.delivered({name}, DELIVERY_SECONDS)}
        if not heard:
            return RETRY_SECONDS
        busy = runtime.legacy.busy_ids
        offered = await runtime.kubelet_evidence.allocatable()
        if offered is None:
            return RETRY_SECONDS
        healthy = {(resource, device_id_of(unit)) for resource, unit in offered}
        open_ids = set(map(device_id_of, (*busy, *runtime.legacy.busy_ids)))  # former units as well
        given_up = [
            entry
            for entry in waiting
            if entry.device.resource in heard
            and (entry.device.resource, entry.device.id) not in healthy
            and entry.device.id not in open_ids
        ]
        shown = await runtime.kubelet_evidence.shown() if given_up else None
        if shown is None:
            return RETRY_SECONDS
        held = {(resource, device_id_of(unit)) for resource, unit in shown}
        open_ids = set(map(device_id_of, runtime.legacy.busy_ids))
        pause = RETRY_SECONDS
        for entry in given_up:
            if (entry.device.resource, entry.device.id) in held:
                runtime.evidence.hurry()
                pause = SHOWN_RETRY_SECONDS
            elif entry.device.id not in open_ids:
                await runtime.ledger_service.apply(WithdrawnFromKubelet(entry.name, since, runtime.now()))
        return pause

    async def _look_at_slices(self, waiting: list[Entry]) -> None:
        driver = self._claims.driver
        runtime = self._runtime
        if driver is None or runtime.now() < self._slices_due:
            return
        since = driver.synced_seq
        names = {entry.name for entry in waiting if since >= entry.seq}
        if not names:
            return
        try:
            withdrawn = await driver.withdrawn(names)  # once for a move: what was written may rest on a watch that lags
        except ClusterError as error:
            self._slices_due = runtime.now() + CLAIMS_RETRY_SECONDS
            log.warning("a lane move waits for the API server", extra={"reason": str(error)})
            return
        for name in withdrawn:
            await runtime.ledger_service.apply(WithdrawnFromSlices(name, since, runtime.now()))

    async def _ask_for_claims(self, waiting: list[Entry]) -> float:
        """After the quiet time: does any claim have one of these devices? Returns seconds until the next look."""
        runtime = self._runtime
        due = (
            min(entry.move.step_since for entry in waiting if entry.move)
            + runtime.ledger_service.policy.quiesce_seconds
        )
        if (left := max(due, self._claims_due) - runtime.now()) > 0:
            return left + 0.01
        since = runtime.ledger_service.ledger.seq
        if runtime.cluster is None:
            return CLAIMS_RETRY_SECONDS
        if (allocated := await self._claims.allocated()) is None:  # one that cannot be read may have any device
            log.warning("a lane move waits for the API server", extra={"reason": "its claims are not known"})
            self._claims_due = runtime.now() + CLAIMS_RETRY_SECONDS
            return CLAIMS_RETRY_SECONDS
        # Admin access holds nothing (KEP-5018): a monitoring claim on every device must not stop a move.
        names = {entry.name for entry in waiting}
        taken: set[str] = set()
        for allocation in allocated:
            if took := names & {use.device for use in allocation.uses if not use.admin}:
                taken |= took
                asked = await runtime.ledger_service.apply(
                    ClaimAllocated(allocation.claim, allocation.uses, runtime.now())
                )
                if not asked.accepted:
                    why = "; ".join(refused.message for refused in asked.refusals)
                    reason = f"claim {allocation.claim} has it allocated, and cannot be served: {why}"
                    self._claims_due = runtime.now() + CLAIMS_RETRY_SECONDS
                    for name in took:
                        await runtime.ledger_service.apply(SetLane(name, Lane.LEGACY, runtime.now(), reason))
        for name in names - taken:
            await runtime.ledger_service.apply(NoClaimListed(name, since, runtime.now()))
        return CLAIMS_RETRY_SECONDS


def _had(share: LaneShare, count: int, total: int) -> bool:
    """Whether a lane with ``count`` devices has its share; of two percentages one may be rounded away."""
    asked = share.of(total)
    return asked is None or abs(asked - count) <= (share.percent is not None)


def _at(entry: Entry, step: MoveStep) -> bool:
    return entry.move is not None and entry.move.step is step
