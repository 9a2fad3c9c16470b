"""What a round of evidence shows, sorted by the devices of the ledger.

Kubelet counts by resource: another plugin's id that is spelled like one of ours is another device, and small ids are
common. So what it shows is of a device under the device's own resource, and under the one that its hold is counted by.

With one exception, at a start where nobody knows better (:mod:`drabridge.ledger.apply_event`): the plugin before this
agent may have called the same hardware by the same id and another resource's name. That cannot be told from chance
(kubelet's file goes on naming the devices of a plugin that has ended), so it is believed, once: a mistake then costs
the use of a device while that resource shows a pod with the id, and not the device of a pod that runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from drabridge.inventory.model import device_id_of
from drabridge.ledger import events as ev
from drabridge.ledger.events import Pods, Unit
from drabridge.ledger.model import ClaimRef, Entry, Ledger, PodRef
from drabridge.ledger.release_rule import DeviceEvidence, holding_claims

Claims = tuple[tuple[ClaimRef, ...], tuple[tuple[ClaimRef, ev.DeviceUse], ...] | None]
NO_CLAIMS: Claims = ((), ())


class KubeletAnswer:
    """One answer of kubelet. Whatever unit a pod has, one of another number of replicas included, is of its device."""

    def __init__(self, shown: Pods) -> None:
        self._shown = shown
        self._resources = {resource for resource, _ in shown}
        self._units: dict[Unit, list[Unit]] = {}  # (resource, id of the device) -> units
        for unit in shown:
            self._units.setdefault((unit[0], device_id_of(unit[1])), []).append(unit)

    def units(self, entry: Entry, elsewhere: str = "") -> Sequence[Unit]:
        """The units that kubelet shows with a pod: the device's, and those that its hold names in whatever way.
        ``elsewhere``: instead, those of this resource that are spelled like the device's.
        """
        hold, names = entry.hold, (elsewhere,) if elsewhere else entry.counted_as
        found: Sequence[Unit] = self._units.get((names[0], entry.device.id), ())
        # Where all is as it was, what the hold names is found already: to look it up would only cost time.
        if elsewhere or hold is None or (len(names) == 1 and hold.units == entry.device.units):
            return found
        others = [unit for name in names[1:] for unit in self._units.get((name, entry.device.id), ())]
        former = [unit for name in names for one in hold.units if (unit := (name, one)) in self._shown]
        return tuple(dict.fromkeys((*found, *others, *former)))

    def pods(self, entry: Entry, elsewhere: str = "") -> tuple[PodRef, ...]:
        """The containers that kubelet shows with these units."""
        units = self.units(entry, elsewhere)
        if len(units) == 1:
            return self._shown[units[0]]
        return tuple(dict.fromkeys(pod for unit in units for pod in self._shown[unit]))

    def elsewhere(self, entry: Entry) -> set[str]:
        """Resources that are not known to be the device's, with pods on what they call as the device is called."""
        others = self._resources.difference(entry.counted_as)
        return {resource for resource in others if (resource, entry.device.id) in self._units}


def seen(witnesses: Sequence[KubeletAnswer], entry: Entry, elsewhere: str = "") -> DeviceEvidence | None:
    """What these answers together show of a device, the first one's names of pods preferred; None if no pod."""
    showing = [one for one in witnesses if one.pods(entry, elsewhere)]
    if not showing:
        return None
    units = tuple(unit for one in showing for _, unit in one.units(entry, elsewhere))
    return DeviceEvidence(listed=showing[0].pods(entry, elsewhere), units=units, elsewhere=elsewhere)


def seen_elsewhere(witnesses: Sequence[KubeletAnswer], entry: Entry) -> DeviceEvidence | None:
    """The same under a resource that is not known to be the device's. Of several one is chosen: at most one can be."""
    others = {other for one in witnesses for other in one.elsewhere(entry)}
    return seen(witnesses, entry, min(others)) if others else None


def unaccounted(event: ev.Observed, entry: Entry) -> tuple[str, ...] | None:
    """Pods that may have the device, as far as the API server tells; None: it cannot be asked."""
    if not event.unaccounted:
        return None if event.unaccounted is None else ()
    return tuple(pod for resource in entry.counted_as for pod in event.unaccounted.get(resource, ()))


def known_of_pods(event: ev.Observed, entry: Entry, evidence: DeviceEvidence) -> DeviceEvidence:
    """The same with what the API server says of the device's pods: their grace period, or that they have ended."""
    pods = evidence.pods
    if pods:
        return replace(
            evidence, grace=max((event.grace[pod.uid] for pod in pods if pod.uid in event.grace), default=None)
        )
    if entry.hold is None or not entry.hold.pods:
        return evidence
    return replace(evidence, ended=all(pod.uid in event.ended for pod in entry.hold.pods))


def strange(event: ev.Observed, ledger: Ledger) -> tuple[ClaimRef, ...]:
    """Claims that kubelet shows with devices of other names than any here: they may have any of them."""
    return tuple(claim for name, shown in event.claimed.items() if name not in ledger.entries for claim in shown)


def unknown_units(ledger: Ledger, resource: str, shown: Iterable[Unit]) -> frozenset[str]:
    """Units of ``resource`` among those that pods have, with ids that none of its devices here has, or had."""
    ours = [entry for entry in ledger.entries.values() if resource in entry.counted_as]
    units = {unit for one in ours for unit in (*one.device.units, *(one.hold.units if one.hold else ()))}
    known = set(map(device_id_of, units))
    return frozenset(unit for name, unit in shown if name == resource and device_id_of(unit) not in known)


def record_lost_by_unknown_units(
    ledger: Ledger, resource: str, units: Collection[str], at: float
) -> ev.RecordLost | None:
    """What follows from :func:`unknown_units`: a pod with one may have any device. None: there is no device."""
    ours = tuple(entry.name for entry in ledger.entries.values() if resource in entry.counted_as)
    reason = f"pods have {', '.join(sorted(units))} of {resource}, and no device here has such an id"
    return ev.RecordLost(at, ours, reason) if ours else None


def claims(event: ev.Observed, entry: Entry, strangers: tuple[ClaimRef, ...] = ()) -> Claims:
    """What is shown of claims with one device: by kubelet, and by the API server."""
    name = entry.device.name
    claimed = holding_claims(entry, (*event.claimed.get(name, ()), *strangers))
    if event.allocated is None:
        return claimed, None
    return claimed, tuple((one.claim, use) for one in event.allocated for use in one.uses if use.device == name)
