"""Decide when a legacy pod has released a device. The DevicePlugin API never says so. In doubt the pod has it.

PodResources List alone is not enough. It leaves out plain init containers (kubernetes/kubernetes#120501), pods that
were force-deleted but still run (#104824), everything that a new kubelet has not re-synced, and pods in the moments
between Allocate's reply and kubelet's own record. So a hold whose end is not proven (:mod:`drabridge.ledger.proofs`)
ends only when all of these are true:

- every source of evidence that can be asked agrees that no pod has the device, in at least two rounds;
- at least two kinds of source could be asked;
- some time has passed since Allocate, and since kubelet's start;
- the pods were seen to end, or their grace period is over. Kubelet before 1.31, and any kubelet that learns of a
  deletion late, lets the processes of a force-deleted pod run that long (kubernetes#120449, #119276).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from drabridge.inventory.devices import device_id_of
from drabridge.ledger import proofs
from drabridge.ledger.entries import NEVER_KNOWN, ClaimRef, Entry, HeldBecause, Hold, PodRef
from drabridge.ledger.events import DeviceUse
from drabridge.ledger.policy import LedgerPolicy
from drabridge.ledger.proofs import End

MOST_EARLIER = 16  # pods that had a device before and may still run: somebody may delete many by force


class DeviceEvidence(Struct, frozen=True):
    """What one round of evidence says about one device. ``None``: this source could not be asked."""

    listed: tuple[PodRef, ...] | None = None  # PodResources
    checkpointed: tuple[PodRef, ...] | None = None  # kubelet's checkpoint file
    barrier: bool = False  # the checkpoint was certainly written after the List
    unaccounted: tuple[str, ...] | None = None  # API server: pods whose devices kubelet does not show
    opened: bool | None = None  # open-file probe
    units: tuple[str, ...] = ()  # the ids with which kubelet shows the device on a pod
    claimed: tuple[ClaimRef, ...] = ()  # PodResources: claims that give the device to a container
    allocated: tuple[tuple[ClaimRef, DeviceUse], ...] | None = ()  # API server: claims that have the device allocated
    elsewhere: str = ""  # the resource that the units are counted under, if it is not known to be the device's
    ended: bool = False  # API server: the pods of the hold were seen to end
    grace: float | None = None  # API server: seconds that the shown pods have to end; None: not known
    alone: bool = False  # no API server is followed, so claims get nothing
    recorded: tuple[PodRef, ...] = ()  # kubelet's checkpoint before List
    ends: Mapping[str, End] = {}  # API server: how pods ended, by UID

    @property
    def pods(self) -> tuple[PodRef, ...]:
        """The pods that fresh evidence shows on the device."""
        return tuple(dict.fromkeys((self.listed or ()) + ((self.checkpointed or ()) if self.barrier else ())))


class HoldEnded(Struct, frozen=True):
    """The hold has ended; ``because`` is recorded as the reason."""

    because: str


def holding_claims(entry: Entry, claimed: Iterable[ClaimRef]) -> tuple[ClaimRef, ...]:
    """Return those of the claims that have more than admin access to the device; kubelet shows them all with it."""
    admins = {(held.claim.namespace, held.claim.name) for held in entry.claims if held.admin}
    return tuple(claim for claim in claimed if (claim.namespace, claim.name) not in admins)


def confirm(hold: Hold, evidence: DeviceEvidence, at: float) -> Hold:
    """Return the hold after evidence that shows it; PodResources' names are preferred to the checkpoint's bare UIDs."""
    pods = evidence.listed or evidence.pods
    if pods != hold.pods:
        pods = tuple(_with_uid(pod, hold.pods) for pod in pods)
    grace = hold.grace if evidence.grace is None else evidence.grace
    if grace is not None and hold.earlier:
        grace = max(grace, hold.grace or 0.0)
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


def with_earlier(hold: Hold, pods: Iterable[PodRef], until: float) -> Hold:
    """Return the hold with these pods among those that had the device and may run on; ``until`` in seconds."""
    earlier = tuple(dict.fromkeys((*hold.earlier, *pods)))
    if len(earlier) > MOST_EARLIER:
        earlier = (NEVER_KNOWN, *earlier[-MOST_EARLIER + 1 :])
    return replace(hold, earlier=earlier, earlier_until=max(hold.earlier_until, until)) if earlier else hold


def with_record(hold: Hold, evidence: DeviceEvidence, at: float) -> Hold:
    """Return the hold with the pods that kubelet's checkpoint names, if it was written after the last Allocate.

    A checkpoint that was read behind the barrier was written after it. Any other one counts only if the former pods are
    known and it names other pods as well. Pods in ``earlier`` that have ended are removed.
    """
    if hold.earlier:
        left = tuple(pod for pod in hold.earlier if not _has_ended(pod.uid, evidence))
        left = left if at < hold.earlier_until and not evidence.alone else ()
        if left != hold.earlier:
            hold = replace(hold, earlier=left, earlier_until=hold.earlier_until if left else 0.0)
    former = {(pod.uid, pod.container) for pod in hold.former}
    shown = {(pod.uid, pod.container): pod for pod in evidence.recorded}
    if shown.keys() <= former or NEVER_KNOWN in hold.former:
        shown = {(pod.uid, pod.container): pod for pod in (evidence.checkpointed or ()) if evidence.barrier}
    if not shown:
        return hold
    known = {(pod.uid, pod.container): pod for pod in hold.recorded}
    recorded = tuple({**known, **shown}.values())
    pods = tuple(pod if pod.name else shown.get((pod.uid, pod.container), pod) for pod in hold.pods) or recorded
    if known.keys() == {**known, **shown}.keys() and pods == hold.pods:
        return hold
    return replace(hold, recorded=recorded, former=(), pods=pods)


def without_ended_units(hold: Hold, entry: Entry, evidence: DeviceEvidence, at: float, policy: LedgerPolicy) -> Hold:
    """Return the hold without units that neither the device nor a pod has any more.

    This matters after ``replicas`` was made smaller: a pod's units are shown to kubelet as Healthy, so a unit that
    stayed in the hold would be given out again and again. Both of kubelet's answers must be there, and some time must
    have passed since the last Allocate. A unit that kubelet shows again comes back into the hold. Only units with the
    device's own id are dropped, because kubelet would show those. The hold itself always stays.
    """
    if set(hold.units) <= set(entry.device.units) or not hold.confirmed:
        return hold
    if at - hold.allocated_at < policy.min_hold_seconds:
        return hold
    if evidence.listed is None or evidence.checkpointed is None or not evidence.barrier:
        return hold
    ended = {unit for unit in hold.units if unit not in evidence.units and device_id_of(unit) == entry.device.id}
    return replace(hold, units=tuple(unit for unit in hold.units if unit not in ended)) if ended else hold


def without_left(hold: Hold, before: Hold, evidence: DeviceEvidence, at: float, policy: LedgerPolicy) -> Hold:
    """Return the hold with pods moved to ``earlier`` that kubelet no longer shows, while other pods have units of it.

    A pod that was deleted by force may run on; the other pods' ends and grace periods do not say for how long.
    ``before``: the hold before this round of evidence.
    """
    if len(hold.units) < 2 or evidence.listed is None:
        return hold
    shown = (*(_with_uid(pod, before.pods) for pod in evidence.listed), *(evidence.checkpointed or ()))
    uids, names = {pod.uid for pod in shown}, {(pod.namespace, pod.name) for pod in shown}
    known = before.pods if evidence.checkpointed is None else (*before.pods, *hold.recorded)  # includes init containers
    left = {
        pod.uid: pod if pod.uid else NEVER_KNOWN
        for pod in known
        if (pod.uid not in uids if pod.uid else (pod.namespace, pod.name) not in names)
    }
    if not left:
        return hold
    hold = replace(hold, recorded=tuple(pod for pod in hold.recorded if pod.uid not in left))
    run = [pod for uid, pod in left.items() if not _has_ended(uid, evidence)]
    if not run:
        return hold
    grace = max(grace_of(before, policy), grace_of(hold, policy))  # a new agent starts this wait again
    return with_earlier(replace(hold, grace=grace), run, at + grace + policy.absent_seconds)


def end_of_hold(hold: Hold, ends: Mapping[str, End]) -> End:
    """Return the weakest end among the pods of a hold. ``ends``: what the API server showed, by UID."""
    recorded = [pod.uid for pod in hold.recorded]
    return proofs.end_of(
        [*recorded, *(pod.uid for pod in hold.earlier)] if recorded else (), ends, retaken=hold.retaken
    )


def grace_of(hold: Hold, policy: LedgerPolicy) -> float:
    """Return the seconds that a hold's pods have to end when they are deleted, as far as is known."""
    return policy.grace_seconds if hold.grace is None else hold.grace


def _has_ended(uid: str, evidence: DeviceEvidence) -> bool:
    return proofs.end_of([uid], evidence.ends).proves


def _with_uid(pod: PodRef, before: Iterable[PodRef]) -> PodRef:
    """Return the pod with the UID that is known from before; PodResources has no UIDs."""
    if pod.uid or not pod.name:
        return pod
    return next((known for known in before if replace(known, uid="") == pod), pod)


def judge(
    hold: Hold,
    evidence: DeviceEvidence,
    *,
    at: float,
    suspended_until: float,
    policy: LedgerPolicy,
    quarantined: bool = False,
) -> Hold | HoldEnded:
    """Judge a hold that fresh evidence does not show: it has ended, or it goes on for the reason in ``because``.

    If the device is ``quarantined``, every source must answer, and claims count as well: the record of claims was lost
    together with that of pods.
    """
    if evidence.listed is None:
        return _held(hold, HeldBecause.NO_LIST)
    if quarantined and evidence.claimed:
        return _held(hold, HeldBecause.RUNNING)
    if evidence.checkpointed:
        return _held(hold, HeldBecause.IN_CHECKPOINT, 0.0)
    hold = hold if hold.unseen_since else replace(hold, unseen_since=at)
    if evidence.opened:
        return _held(hold, HeldBecause.STILL_OPEN)
    end = end_of_hold(hold, evidence.ends)
    if not quarantined and evidence.checkpointed is not None and end.proves:
        return HoldEnded(f"{end}, and kubelet shows no pod on it")
    if at < suspended_until:
        return _held(hold, HeldBecause.KUBELET_UNSETTLED)
    if evidence.unaccounted:
        return _held(hold, HeldBecause.POD_UNACCOUNTED)
    by_checkpoint = evidence.checkpointed is not None and evidence.barrier
    by_api = evidence.unaccounted is not None
    by_all = by_api and evidence.allocated is not None and (by_checkpoint or evidence.checkpointed is None)
    # When its checkpoint is deleted (as people are often advised to do), kubelet forgets running pods: both of its
    # answers miss them. So kubelet alone is believed only about a device that this kubelet process has known.
    by_kubelet = by_checkpoint and (hold.known or evidence.alone or evidence.opened is False)
    if not (by_all if quarantined else by_kubelet or by_api):
        return _held(hold, HeldBecause.NO_SECOND_WITNESS)
    if at - hold.allocated_at < (policy.min_hold_seconds if hold.confirmed else policy.unconfirmed_seconds):
        return _held(hold, HeldBecause.TOO_YOUNG)
    since = hold.absent_since if hold.absences else at
    absences = hold.absences + 1
    if absences < policy.absent_lists or at - since < policy.absent_seconds:
        return replace(hold, absences=absences, absent_since=since, because=HeldBecause.ONCE_ABSENT)
    grace = 0.0 if evidence.ended else _grace_seconds(hold, evidence, policy)
    if hold.earlier or (grace and at - hold.unseen_since < grace + policy.absent_seconds):
        return replace(hold, absences=absences, absent_since=since, because=HeldBecause.GRACE_PERIOD)
    sources = ["PodResources"]
    sources += ["kubelet's checkpoint"] if by_checkpoint else []
    sources += ["the API server"] if by_api else []
    sources += ["the physical probe"] if evidence.opened is not None else []
    seen = hold.confirmed or quarantined
    how = "no pod was seen on it" if seen else "the pod that it was allocated to never appeared"
    return HoldEnded(f"{how}: {' and '.join(sources)} agreed {absences} times over {at - since:.0f} s")


def _grace_seconds(hold: Hold, evidence: DeviceEvidence, policy: LedgerPolicy) -> float:
    """Return the seconds for which a pod's processes may run on after kubelet has forgotten the pod.

    0 for a hold that kubelet never showed, because it has already waited ``unconfirmed_seconds``. Also 0 where no claim
    can get the device, because then only kubelet gives it out again.
    """
    if evidence.alone or not hold.confirmed:
        return 0.0
    return grace_of(hold, policy)


def _held(hold: Hold, because: HeldBecause, unseen_since: float | None = None) -> Hold:
    """Let the hold go on for this reason; absences are counted from zero again."""
    unseen_since = hold.unseen_since if unseen_since is None else unseen_since
    if hold.because is because and not hold.absences and hold.unseen_since == unseen_since:
        return hold
    return replace(hold, absences=0, absent_since=0.0, because=because, unseen_since=unseen_since)
