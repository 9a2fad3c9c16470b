"""Ledgers without what does not matter to what happens next: times but for "now", names, counts beyond two."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from drabridge.inventory.devices import Presence
from drabridge.ledger.entries import (
    ClaimHold,
    ClaimRef,
    Entry,
    HeldBecause,
    Ledger,
    PodRef,
)
from tests.ledger.search.states import DEVICES, PODS, SWAPPED, UIDS, Gathered

LONG_AGO = -2.0  # 0 is never
_UNSEEN: dict[str, Any] = {"known": False, "unseen_since": 0.0}


def normal(entry: Entry, *, grace: bool = False, proofs: bool = False) -> Entry:
    """Without what no transition looks at. ``grace``: it matters how long a pod has not been seen.

    ``proofs``: it matters which pod had the device.
    """
    hold, move = entry.hold, entry.move
    if hold is not None:
        former = _ordered(hold.former) if proofs else ()
        hold = replace(hold, former=former, recorded=_ordered(hold.recorded), earlier=_ordered(hold.earlier))
        hold = replace(hold, absences=min(hold.absences, 2), last_seen=0.0, pods=(), because=HeldBecause.TOO_YOUNG)
        if not grace:
            hold = replace(hold, unseen_since=0.0)
    if move is not None:
        move = replace(move, since=0.0, reason="")
    return replace(
        entry,
        hold=hold,
        move=move,
        claims=tuple(sorted(map(_normal_claim, entry.claims), key=lambda held: held.claim.uid)),
        since=entry.since if entry.device.presence is Presence.GONE else 0.0,
        released_because="",
        presence_since=0.0,
        legacy_until=0.0,
        former=_ordered(entry.former) if proofs else (),
    )


def _ordered(pods: tuple[PodRef, ...]) -> tuple[PodRef, ...]:
    return tuple(sorted((PodRef(uid=pod.uid) for pod in pods), key=lambda pod: pod.uid))


def _normal_claim(held: ClaimHold) -> ClaimHold:
    return replace(held, claim=ClaimRef(held.claim.uid), since=held.since if held.lingers else 0.0)


def unsequenced(ledger: Ledger) -> Ledger:
    """Nobody gathers evidence: it does not matter what changed since when."""
    entries = [replace(entry, seq=0) for entry in ledger.entries.values()]
    return Ledger.of(entries, replace(ledger.node, kubelet_seq=0), seq=0)


def aged(ledger: Ledger) -> Ledger:
    """Everything that happened just now happened long ago."""
    entries = []
    for entry in ledger.entries.values():
        hold = entry.hold and replace(entry.hold, allocated_at=0.0, absent_since=0.0)
        if hold and hold.unseen_since:
            hold = replace(hold, unseen_since=LONG_AGO)
        if hold and hold.earlier:
            hold = replace(hold, earlier_until=LONG_AGO)
        move = entry.move and replace(entry.move, step_since=0.0)
        claims = tuple(replace(held, since=LONG_AGO if held.lingers else 0.0) for held in entry.claims)
        entries.append(replace(entry, hold=hold, move=move, claims=claims, since=0.0))
    return Ledger.of(entries, replace(ledger.node, releases_suspended_until=0.0), ledger.seq)


def aged_a_while(ledger: Ledger) -> Ledger:
    """What waits for less than a grace period has waited for it."""
    entries = [
        replace(entry, hold=replace(entry.hold, allocated_at=0.0, absent_since=0.0))
        if entry.hold and entry.hold.confirmed
        else entry
        for entry in ledger.entries.values()
    ]
    return Ledger.of(entries, replace(ledger.node, releases_suspended_until=0.0), ledger.seq)


def crashed(ledger: Ledger) -> Ledger:
    """What another process reads from the disk."""
    entries = [
        replace(
            entry, hold=entry.hold and replace(entry.hold, confirmed=False, absences=0, absent_since=0.0, **_UNSEEN)
        )
        for entry in ledger.entries.values()
    ]
    return Ledger.of(entries, replace(ledger.node, merged=False), ledger.seq)


def swap_gathered(seen: Gathered) -> Gathered:
    """The two devices exchanged."""
    return seen._replace(
        listed=SWAPPED[seen.listed],
        checkpoint=SWAPPED[seen.checkpoint],
        opened=SWAPPED[seen.opened],
        healthy=SWAPPED[seen.healthy],
        api=SWAPPED[seen.api],
        shown=SWAPPED[seen.shown],
        allocated=seen.allocated and tuple(SWAPPED[mask] for mask in seen.allocated),
        recorded=seen.recorded[::-1],
    )


def swap_devices(ledger: Ledger) -> Ledger:
    """The two devices exchanged."""
    other = {DEVICES[0]: DEVICES[1], DEVICES[1]: DEVICES[0]}
    entries = [
        replace(
            entry,
            device=replace(entry.device, name=other[name], units=(other[name],)),
            hold=entry.hold and replace(entry.hold, units=tuple(other[unit] for unit in entry.hold.units)),
        )
        for name, entry in ledger.entries.items()
    ]
    return Ledger.of(entries, ledger.node, ledger.seq)


def swap_pods(ledger: Ledger) -> Ledger:
    """The two pods exchanged."""

    def other(pods: tuple[PodRef, ...]) -> tuple[PodRef, ...]:
        names = {PODS[0].uid: PODS[1], PODS[1].uid: PODS[0]}
        return _ordered(tuple(names.get(pod.uid, pod) for pod in pods))

    entries = [
        replace(
            entry,
            hold=entry.hold
            and replace(
                entry.hold,
                recorded=other(entry.hold.recorded),
                former=other(entry.hold.former),
                earlier=other(entry.hold.earlier),
            ),
            former=other(entry.former),
        )
        for entry in ledger.entries.values()
    ]
    return Ledger.of(entries, ledger.node, ledger.seq)


def swap_claims(ledger: Ledger) -> Ledger:
    """The two claims exchanged."""
    other = {UIDS[0]: UIDS[1], UIDS[1]: UIDS[0]}
    entries = [
        replace(
            entry,
            claims=tuple(replace(held, claim=ClaimRef(other[held.claim.uid])) for held in entry.claims),
        )
        for entry in ledger.entries.values()
    ]
    return Ledger.of(entries, ledger.node, ledger.seq)
