"""When has a legacy pod let go of a device? The DevicePlugin API never says; this rule does, and in doubt it says no.

A pod that was seen to end has ended. One that is gone otherwise, as after a force delete, counts as running for its
grace period: kubelet before 1.31, and any that learns of it late, grants it (kubernetes#120449, #119276).

PodResources List is not enough: it leaves out plain init containers (kubernetes/kubernetes#120501), pods that were
force-deleted while they run (#104824), everything that a new kubelet has not re-synced, and the moments between
Allocate's reply and kubelet's own record. So a hold ends only when every evidence that can be asked agrees, twice, some
time after Allocate and some time after kubelet's start, and at least two kinds of evidence could be asked.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from drabridge.inventory.model import device_id_of
from drabridge.ledger.events import DeviceUse
from drabridge.ledger.model import ClaimRef, Entry, HeldBecause, Hold, LedgerPolicy, PodRef


class DeviceEvidence(Struct, frozen=True):
    """What one round of evidence says about one device. ``None``: this evidence could not be asked."""

    listed: tuple[PodRef, ...] | None = None  # PodResources
    checkpointed: tuple[PodRef, ...] | None = None  # kubelet's checkpoint file
    barrier: bool = False  # the checkpoint was provably written after the List
    unaccounted: tuple[str, ...] | None = None  # API server: pods whose devices kubelet does not show
    opened: bool | None = None  # physical probe
    units: tuple[str, ...] = ()  # kubelet's ids by which it shows the device with a pod
    claimed: tuple[ClaimRef, ...] = ()  # PodResources: claims that a container has the device by
    allocated: tuple[tuple[ClaimRef, DeviceUse], ...] | None = ()  # API server: claims that the device is allocated to
    elsewhere: str = (
        ""  # the resource that the units are counted under, where it is not one that is known for the device
    )
    ended: bool = False  # API server: the pods of the hold were seen to end
    grace: float | None = None  # API server: what the pods that are shown have to end; None: not known
    alone: bool = False  # no API server is followed, hence claims get nothing

    @property
    def pods(self) -> tuple[PodRef, ...]:
        """The pods that fresh evidence shows on the device."""
        return (self.listed or ()) + ((self.checkpointed or ()) if self.barrier else ())


class HoldEnded(Struct, frozen=True):
    """The hold has ended; ``because`` is what is recorded."""

    because: str


def holding_claims(entry: Entry, claimed: Iterable[ClaimRef]) -> tuple[ClaimRef, ...]:
    """Of the claims that kubelet shows with a device, those that have more of it than admin access."""
    watching = {(held.claim.namespace, held.claim.name) for held in entry.claims if held.admin}
    return tuple(claim for claim in claimed if (claim.namespace, claim.name) not in watching)


def seen(hold: Hold, evidence: DeviceEvidence, at: float) -> Hold:
    """The hold after evidence that shows it. Names from PodResources are preferred to the checkpoint's bare UIDs."""
    pods = evidence.listed or evidence.pods
    if pods != hold.pods:
        pods = tuple(_with_uid(pod, hold.pods) for pod in pods)
    grace = hold.grace if evidence.grace is None else evidence.grace
    known = not hold.retaken
    as_before = hold.confirmed and hold.known is known and hold.pods == pods and hold.grace == grace
    if as_before and not hold.unseen_since and hold.because is HeldBecause.RUNNING:
        return hold if hold.last_seen == at else replace(hold, last_seen=at)
    return replace(
        hold,
        confirmed=True,
        last_seen=at,
        absences=0,
        absent_since=0.0,
        pods=pods,
        because=HeldBecause.RUNNING,
        known=known,
        unseen_since=0.0,
        grace=grace,
    )


def without_ended_shares(hold: Hold, entry: Entry, evidence: DeviceEvidence, at: float, policy: LedgerPolicy) -> Hold:
    """The hold without shares that no pod has any more, where pods have more of them than the device has by now.

    Kubelet is told that a pod's share is Healthy, so one that is taken for a pod's for ever would be given out for
    ever. Both of kubelet's answers must be there, and some time be over since the last Allocate; a share that shows up
    again is a pod's again. Only what kubelet is known to show by the device's own id: the hold stays in any case.
    """
    if set(hold.units) <= set(entry.device.units) or not hold.confirmed:
        return hold
    if at - hold.allocated_at < policy.min_hold_seconds:
        return hold
    if evidence.listed is None or evidence.checkpointed is None or not evidence.barrier:
        return hold
    ended = {unit for unit in hold.units if unit not in evidence.units and device_id_of(unit) == entry.device.id}
    return replace(hold, units=tuple(unit for unit in hold.units if unit not in ended)) if ended else hold


def _with_uid(pod: PodRef, before: Iterable[PodRef]) -> PodRef:
    """PodResources does not know UIDs; the API server said it, perhaps when it could be asked the last time."""
    if pod.uid or not pod.name:
        return pod
    return next((known for known in before if replace(known, uid="") == pod), pod)


def weigh(
    hold: Hold,
    evidence: DeviceEvidence,
    *,
    at: float,
    suspended_until: float,
    policy: LedgerPolicy,
    strict: bool = False,
) -> Hold | HoldEnded:
    """Judge a hold that fresh evidence does not show. ``strict`` (quarantine) wants every evidence that there is, and
    asks about claims, too: with the record of pods that of claims was lost.
    """
    if evidence.listed is None:
        return _held(hold, HeldBecause.NO_LIST)
    if strict and evidence.claimed:
        return _held(hold, HeldBecause.RUNNING)
    if evidence.checkpointed:
        return _held(hold, HeldBecause.IN_CHECKPOINT, 0.0)
    hold = hold if hold.unseen_since else replace(hold, unseen_since=at)
    if evidence.opened:
        return _held(hold, HeldBecause.STILL_OPEN)
    if at < suspended_until:
        return _held(hold, HeldBecause.KUBELET_UNSETTLED)
    if evidence.unaccounted:
        return _held(hold, HeldBecause.POD_UNACCOUNTED)
    by_checkpoint = evidence.checkpointed is not None and evidence.barrier
    by_api = evidence.unaccounted is not None
    by_everybody = by_api and evidence.allocated is not None and (by_checkpoint or evidence.checkpointed is None)
    # Kubelet without its checkpoint (a usual piece of advice) skips what runs: both of its answers are silent then.
    by_kubelet = by_checkpoint and (hold.known or evidence.alone or evidence.opened is False)
    enough = by_everybody if strict else by_kubelet or by_api
    if not enough:
        return _held(hold, HeldBecause.NO_SECOND_SOURCE)
    if at - hold.allocated_at < (policy.min_hold_seconds if hold.confirmed else policy.unconfirmed_seconds):
        return _held(hold, HeldBecause.TOO_YOUNG)
    since = hold.absent_since if hold.absences else at
    absences = hold.absences + 1
    if absences < policy.absent_lists or at - since < policy.absent_seconds:
        return replace(hold, absences=absences, absent_since=since, because=HeldBecause.ONCE_ABSENT)
    grace = 0.0 if evidence.ended else _grace(hold, evidence, policy)
    if grace and at - hold.unseen_since < grace + policy.absent_seconds:
        return replace(hold, absences=absences, absent_since=since, because=HeldBecause.GRACE_PERIOD)
    names = " and ".join(
        name
        for name, asked in (
            ("PodResources", True),
            ("kubelet's checkpoint", by_checkpoint),
            ("the API server", by_api),
            ("the physical probe", evidence.opened is not None),
        )
        if asked
    )
    how = "no pod was seen on it" if hold.confirmed or strict else "the pod that it was allocated to never appeared"
    return HoldEnded(f"{how}: {names} agreed {absences} times over {at - since:.0f} s")


def _grace(hold: Hold, evidence: DeviceEvidence, policy: LedgerPolicy) -> float:
    """Seconds for which the processes of a pod may outlive kubelet's knowledge of it. What kubelet never showed waits
    for ``unconfirmed_seconds`` anyway; where no claim can get the device kubelet alone gives it out again.
    """
    if evidence.alone or not hold.confirmed:
        return 0.0
    return policy.grace_seconds if hold.grace is None else hold.grace


def _held(hold: Hold, because: HeldBecause, unseen_since: float | None = None) -> Hold:
    """Evidence that cannot end the hold begins the count again."""
    unseen_since = hold.unseen_since if unseen_since is None else unseen_since
    if hold.because is because and not hold.absences and hold.unseen_since == unseen_since:
        return hold
    return replace(hold, absences=0, absent_since=0.0, because=because, unseen_since=unseen_since)
