"""Sort a round of evidence by the devices of the ledger.

Kubelet counts by resource: the same id under another plugin's resource is another device, and short ids are common. So
a unit that kubelet shows belongs to a device only under the device's own resource, or under the resource that its hold
is counted under.

There is one exception, at a start where the holder is not known (:mod:`drabridge.ledger.apply_event`): the plugin
before this agent may have given the same hardware the same id under another resource's name. That cannot be told from
chance, because kubelet's checkpoint still names the devices of a plugin that has ended. So it is believed, once. If
that is wrong, a device is blocked while that resource shows a pod with the id. If it were not believed, a running pod
could lose its device to another one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from drabridge.inventory.devices import device_id_of
from drabridge.ledger import events as ev
from drabridge.ledger.entries import ClaimRef, Entry, Ledger, Owner, PodRef
from drabridge.ledger.events import Pods, Unit
from drabridge.ledger.release_rule import DeviceEvidence, holding_claims


class KubeletAnswer:
    """One answer of kubelet, by device. A unit belongs to its device whatever the number of replicas."""

    def __init__(self, shown: Pods) -> None:
        self._shown = shown
        self._resources = {resource for resource, _ in shown}
        self._units: dict[Unit, list[Unit]] = {}  # (resource, id of the device) -> units
        for unit in shown:
            self._units.setdefault((unit[0], device_id_of(unit[1])), []).append(unit)

    def units(self, entry: Entry, other_resource: str = "") -> Sequence[Unit]:
        """Return the units that kubelet shows with a pod and that belong to the device, or are named by its hold.

        With ``other_resource``: the units of that resource whose ids equal the device's.
        """
        hold, names = entry.hold, (other_resource,) if other_resource else entry.counted_as
        found: Sequence[Unit] = self._units.get((names[0], entry.device.id), ())
        # Usually the hold names the device's own units, which are found already.
        if other_resource or hold is None or (len(names) == 1 and hold.units == entry.device.units):
            return found
        others = [unit for name in names[1:] for unit in self._units.get((name, entry.device.id), ())]
        former = [unit for name in names for one in hold.units if (unit := (name, one)) in self._shown]
        return tuple(dict.fromkeys((*found, *others, *former)))

    def pods(self, entry: Entry, other_resource: str = "") -> tuple[PodRef, ...]:
        """Return the containers that kubelet shows with these units."""
        units = self.units(entry, other_resource)
        if len(units) == 1:
            return self._shown[units[0]]
        return tuple(dict.fromkeys(pod for unit in units for pod in self._shown[unit]))

    def other_resources(self, entry: Entry) -> set[str]:
        """Resources that are not known to be the device's, but show a pod on the device's id."""
        others = self._resources.difference(entry.counted_as)
        return {resource for resource in others if (resource, entry.device.id) in self._units}


class EvidenceRound:
    """One round of evidence, by device."""

    def __init__(self, event: ev.Observed, ledger: Ledger) -> None:
        checkpoint = event.checkpoint
        self._event = event
        self._listed = None if event.listed is None else KubeletAnswer(event.listed)
        self._checkpoint = None if checkpoint is None else KubeletAnswer(checkpoint.pods)
        self._recorded = KubeletAnswer(event.recorded)
        self._barrier = checkpoint is not None and checkpoint.barrier
        self._opened = event.opened or {}
        # Kubelet shows these claims with devices of unknown names: they may have any device.
        self._strange = tuple(
            claim for name, shown in event.claimed.items() if name not in ledger.entries for claim in shown
        )

    def about(self, entry: Entry) -> DeviceEvidence:
        """Return what this round says about one device."""
        listed, checkpoint = self._listed, self._checkpoint
        answers = (listed, checkpoint)
        in_doubt = entry.owner is Owner.QUARANTINE  # then claims count as well
        evidence = DeviceEvidence(
            None if listed is None else listed.pods(entry),
            None if checkpoint is None else checkpoint.pods(entry),
            self._barrier,
            self._unaccounted(entry),
            self._opened.get(entry.device.name),
            tuple(unit for answer in answers if answer is not None for _, unit in answer.units(entry)),
            self._claimed(entry) if in_doubt else (),
            self._allocated(entry) if in_doubt else (),
            alone=self._event.alone,
            recorded=self._named((*self._recorded.pods(entry), *(entry.hold.recorded if entry.hold else ()))),
        )
        return self._with_ends(entry, evidence) if self._event.ends or self._event.grace else evidence

    def _named(self, pods: Iterable[PodRef]) -> tuple[PodRef, ...]:
        """Return the pods of the checkpoint, with namespace and name where the API server knows them."""
        names = self._event.names
        return tuple(
            PodRef(*names[pod.uid], pod.container, pod.uid) if pod.uid in names else pod for pod in dict.fromkeys(pods)
        )

    def _unaccounted(self, entry: Entry) -> tuple[str, ...] | None:
        """Return the pods that may have the device, as the API server shows them; None: it cannot be asked."""
        unaccounted, lingering = self._event.unaccounted, self._event.lingering.get(entry.name, ())
        if not unaccounted:
            return None if unaccounted is None else lingering
        return (*(pod for resource in entry.counted_as for pod in unaccounted.get(resource, ())), *lingering)

    def _claimed(self, entry: Entry) -> tuple[ClaimRef, ...]:
        return holding_claims(entry, (*self._event.claimed.get(entry.device.name, ()), *self._strange))

    def _allocated(self, entry: Entry) -> tuple[tuple[ClaimRef, ev.DeviceUse], ...] | None:
        if self._event.allocated is None:
            return None
        name = entry.device.name
        return tuple((one.claim, use) for one in self._event.allocated for use in one.uses if use.device == name)

    def _with_ends(self, entry: Entry, evidence: DeviceEvidence) -> DeviceEvidence:
        """Add what the API server says of the device's pods: their grace period, and how they ended."""
        event, pods = self._event, evidence.pods
        if pods:
            known = (event.grace[pod.uid] for pod in pods if pod.uid in event.grace)
            return replace(evidence, grace=max(known, default=None), ends=event.ends)
        if entry.hold is None:
            return evidence
        ended = bool(entry.hold.pods) and all(pod.uid in event.ends for pod in entry.hold.pods)
        return replace(evidence, ended=ended, ends=event.ends)


def shown_on(answers: Sequence[KubeletAnswer], entry: Entry, other_resource: str = "") -> DeviceEvidence | None:
    """Return what kubelet's answers together show on a device, or None. The first answer with pods names them."""
    showing = [answer for answer in answers if answer.pods(entry, other_resource)]
    if not showing:
        return None
    units = tuple(unit for answer in showing for _, unit in answer.units(entry, other_resource))
    return DeviceEvidence(listed=showing[0].pods(entry, other_resource), units=units, elsewhere=other_resource)


def shown_as_another_resource(answers: Sequence[KubeletAnswer], entry: Entry) -> DeviceEvidence | None:
    """Do as :func:`shown_on`, under any one resource that is not known to be the device's."""
    others = {resource for answer in answers for resource in answer.other_resources(entry)}
    return shown_on(answers, entry, min(others)) if others else None


def unknown_units(ledger: Ledger, resource: str, shown: Iterable[Unit]) -> frozenset[str]:
    """Return the units of ``resource`` that kubelet shows with a pod, and whose ids no device and no hold here has."""
    ours = [entry for entry in ledger.entries.values() if resource in entry.counted_as]
    units = {unit for one in ours for unit in (*one.device.units, *(one.hold.units if one.hold else ()))}
    known = set(map(device_id_of, units))
    return frozenset(unit for name, unit in shown if name == resource and device_id_of(unit) not in known)


def record_lost_by_unknown_units(
    ledger: Ledger, resource: str, units: Collection[str], at: float
) -> ev.RecordLost | None:
    """Return the event for :func:`unknown_units`, whose pods may have any device; None: no device is of this kind."""
    ours = tuple(entry.name for entry in ledger.entries.values() if resource in entry.counted_as)
    reason = f"pods have {', '.join(sorted(units))} of {resource}, and no device here has such an id"
    return ev.RecordLost(at, ours, reason) if ours else None
