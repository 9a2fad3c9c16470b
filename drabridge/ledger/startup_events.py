"""What an agent tells its ledger when it starts: one pure function, and the exhaustive search runs the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from drabridge.ledger.events import (
    AgentStarted,
    CheckpointRead,
    ClaimDeallocated,
    ClaimDevices,
    Event,
    Pods,
    RecordLost,
    Unprepare,
)
from drabridge.ledger.model import Ledger


class StartupFindings(Struct, frozen=True):
    """What lies on the node, and what kubelet shows."""

    at: float
    recorded: tuple[ClaimDevices, ...] = ()  # claims with records of this boot
    before: frozenset[str] = frozenset()  # UIDs of claims with records of an earlier boot: no container of theirs runs
    files: tuple[ClaimDevices, ...] = ()  # claims with CDI files, and every device that these may mean
    left: frozenset[str] | None = frozenset()  # UIDs of claims of which any file is left; None: nobody can say
    listed: Pods | None = None  # PodResources; None: kubelet does not answer
    claims: tuple[ClaimDevices, ...] = ()  # the same of claims; without a UID where no CDI file says it
    checkpoint: CheckpointRead | None = None
    kubelet: str = ""  # the process that answers at kubelet's socket
    rebooted: bool = False  # since the ledger was written


def in_use(ledger: Ledger, found: StartupFindings) -> tuple[ClaimDevices, ...]:
    """Claims that a container may use: by our records and as kubelet shows them; else by their CDI files."""
    claims = {one.claim.uid: one for one in found.recorded}
    if found.rebooted:  # whatever was left lying there, no container has it
        return tuple(claims.values())
    for one in found.claims:
        if not one.claim.uid or one.claim.uid in found.before:
            continue
        known = claims.setdefault(one.claim.uid, one)
        recorded = {use.device for use in known.uses}  # admin access too, which kubelet does not show as such
        if more := tuple(use for use in one.uses if use.device not in recorded):  # the record is of a backup
            claims[one.claim.uid] = ClaimDevices(known.claim, known.uses + more)
    for one in found.files:
        uid = one.claim.uid
        if uid in claims or uid in found.before:
            continue
        has = ledger.by_claim.get(uid) if ledger.node.whole else None  # the file still names what the operator took
        uses = (use for use in one.uses if has is None or use.device in has or use.device not in ledger.entries)
        claims[uid] = ClaimDevices(one.claim, tuple(dict.fromkeys(uses)))
    return tuple(claims.values())


def events(ledger: Ledger, found: StartupFindings, claims: tuple[ClaimDevices, ...]) -> Iterator[Event]:
    """What happened as far as anybody can say, in this order; ``claims`` are those :func:`in_use`."""
    if ledger.node.lost and found.listed is not None and found.checkpoint is not None:
        yield from (Unprepare(uid, found.at) for uid in _ended(ledger, found, claims))
    if found.listed is not None and (devices := _without_uid(ledger, found, claims)):
        yield RecordLost(found.at, devices, "kubelet shows a claim on it that is not on record")
    yield AgentStarted(found.at, claims, found.listed, found.checkpoint, found.kubelet)
    yield from (ClaimDeallocated(uid, found.at) for uid in nameless(ledger, claims))


def nameless(ledger: Ledger, claims: Iterable[ClaimDevices]) -> list[str]:
    """Claims that are known by a CDI file alone. Without a name the API server cannot be asked about them: they end
    with Unprepare, or by the operator.
    """
    return [one.claim.uid for one in claims if not one.claim.name and one.claim.uid not in ledger.by_claim]


def _ended(ledger: Ledger, found: StartupFindings, claims: Iterable[ClaimDevices]) -> list[str]:
    """Claims that are prepared in an older copy of the ledger alone: no file of theirs is left, and kubelet shows no
    container. They ended after the copy was made, and kubelet will not unprepare them again.
    """
    if found.left is None:
        return []
    shown = {(one.claim.namespace, one.claim.name) for one in found.claims if not one.claim.uid}
    left = {one.claim.uid for one in claims} | found.left
    held = {held.claim for entry in ledger.entries.values() for held in entry.claims}
    return sorted(
        claim.uid
        for claim in held
        if claim.name and claim.uid not in left and (claim.namespace, claim.name) not in shown
    )


def _without_uid(ledger: Ledger, found: StartupFindings, claims: Iterable[ClaimDevices]) -> tuple[str, ...]:
    """Devices of claims that nobody knows by their UID; nothing but a quarantine can hold them."""
    known = {(one.claim.namespace, one.claim.name) for one in claims}
    return tuple(
        use.device
        for one in found.claims
        for use in one.uses
        if not one.claim.uid and (one.claim.namespace, one.claim.name) not in known and use.device in ledger.entries
    )
