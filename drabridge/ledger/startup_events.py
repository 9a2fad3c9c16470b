"""Turn what an agent finds at its start into events for its ledger. Pure; the exhaustive search runs the same code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from drabridge.ledger.entries import Ledger
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


class StartupFindings(Struct, frozen=True):
    """What was found on the node, and what kubelet shows."""

    at: float
    recorded: tuple[ClaimDevices, ...] = ()  # claims with records of this boot
    before: frozenset[str] = frozenset()  # UIDs of claims with records of an earlier boot: no container of theirs runs
    files: tuple[ClaimDevices, ...] = ()  # claims with CDI files, and every device that the files may mean
    left: frozenset[str] | None = frozenset()  # UIDs of claims of which any file is left; None: not known
    listed: Pods | None = None  # pods in PodResources; None: kubelet does not answer
    claims: tuple[ClaimDevices, ...] = ()  # claims in PodResources; without a UID if no CDI file has it
    checkpoint: CheckpointRead | None = None
    kubelet: str = ""  # the process that answers at kubelet's socket
    rebooted: bool = False  # the node booted after the ledger was written


def in_use(ledger: Ledger, found: StartupFindings) -> tuple[ClaimDevices, ...]:
    """Return the claims that a container may use, by our records and by kubelet; other claims by their CDI files."""
    claims = {one.claim.uid: one for one in found.recorded}
    if found.rebooted:  # no container uses what an earlier boot left behind
        return tuple(claims.values())
    for one in found.claims:
        if not one.claim.uid or one.claim.uid in found.before:
            continue
        known = claims.setdefault(one.claim.uid, one)
        recorded = {use.device for use in known.uses}  # admin access too, which kubelet does not show as such
        if more := tuple(use for use in one.uses if use.device not in recorded):  # so the record came from a backup
            claims[one.claim.uid] = ClaimDevices(known.claim, known.uses + more)
    for one in found.files:
        uid = one.claim.uid
        if uid in claims or uid in found.before:
            continue
        # If the ledger knows all holders, it outranks the file, which still names devices that were released manually.
        has = ledger.by_claim.get(uid) if ledger.node.whole else None
        uses = (use for use in one.uses if has is None or use.device in has or use.device not in ledger.entries)
        claims[uid] = ClaimDevices(one.claim, tuple(dict.fromkeys(uses)))
    return tuple(claims.values())


def events(ledger: Ledger, found: StartupFindings, claims: tuple[ClaimDevices, ...]) -> Iterator[Event]:
    """Return the events of this start, in their order; ``claims`` are those :func:`in_use`."""
    if ledger.node.lost and found.listed is not None and found.checkpoint is not None:
        yield from (Unprepare(uid, found.at) for uid in _ended(ledger, found, claims))
    if found.listed is not None and (devices := _without_uid(ledger, found, claims)):
        yield RecordLost(found.at, devices, "kubelet shows a claim on it that is not on record")
    yield AgentStarted(found.at, claims, found.listed, found.checkpoint, found.kubelet)
    yield from (ClaimDeallocated(uid, found.at) for uid in claims_without_name(ledger, claims))


def claims_without_name(ledger: Ledger, claims: Iterable[ClaimDevices]) -> list[str]:
    """Return the UIDs of claims that only a CDI file knows.

    Without a name the API server cannot be asked about them: they end with Unprepare, or by the operator.
    """
    return [one.claim.uid for one in claims if not one.claim.name and one.claim.uid not in ledger.by_claim]


def _ended(ledger: Ledger, found: StartupFindings, claims: Iterable[ClaimDevices]) -> list[str]:
    """Return the UIDs of claims that ended after an older copy of the ledger was made.

    They have no file any more and kubelet shows no container of theirs. Kubelet will not unprepare them again.
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
    """Return the devices of claims whose UID nobody knows: only a quarantine can keep these devices held."""
    known = {(one.claim.namespace, one.claim.name) for one in claims}
    return tuple(
        use.device
        for one in found.claims
        for use in one.uses
        if not one.claim.uid and (one.claim.namespace, one.claim.name) not in known and use.device in ledger.entries
    )
