r"""The one table that says who may hold a device.

Two rules. Nothing else changes ownership: every owner and every lane in the ledger comes out of a row of this table.
And the table knows no clock, no socket and no file: the effect of a row follows from ledger, event and policy alone.

Why a ledger
------------
Two authorities give devices away, and they do not know each other. For pods with limits kubelet chooses, and asks by
Allocate. For claims the scheduler chooses, writes the allocation into the claim, and kubelet asks by NodePrepare. Each
believes that its own list is the truth. The ledger is the third party that both must ask before a container starts: it
has one entry per device, on disk before the answer leaves.

What an entry says
------------------
The *owner* says who holds the device now. The *lane* says which API may be offered it when it is free. They are two
things: a lane never takes a device from anybody, and an owner never decides what comes next.

    limits:   NONE --Allocate--> LEGACY --released--> NONE
    claims:   NONE --allocated--> DRA_GRANTED --NodePrepare--> DRA_PREPARED --Unprepare, deallocated--> NONE
    shared:   NONE --allocated--> DRA_PENDING --kubelet gave it up--> DRA_GRANTED
                                      \--Allocate came first--> LEGACY, and the claim is denied

Nobody tells us when a pod with limits releases a device: the DevicePlugin API has no Deallocate. So LEGACY ends only by
evidence: by a proof (:mod:`drabridge.ledger.proofs`), or after a wait (:mod:`drabridge.ledger.release_rule`).

Who wins
--------
A running holder wins over a promised one. A claim that is only pending gives way to an Allocate. A claim that is
granted or prepared does not: the Allocate is refused, and kubelet fails the pod. If evidence shows a pod on a device
that a claim holds, both may run: the owner is CONFLICT until all but one have gone. If the record of a holder is lost,
the owner is QUARANTINE until evidence, a reboot or the operator says that nobody has it. No row makes either of them
free sooner.

How a device changes lanes
--------------------------
Revoke, acknowledge, grant. First the API that offers the device stops offering it, and the device is in one of the two
lanes that are offered nowhere. Then that API's authority confirms: kubelet by its allocatable number, the scheduler's
side by a slice that no longer shows the device and a later list of claims in which nobody has it. Only then may the
other API offer it. If a grant of the old side arrives in between, it is served, and the move waits. A shared device
skips the move: there each claim is confirmed by itself, after kubelet has given the device up (the lease).

How to read the table
---------------------
An event reaches a device as one or more signals (:mod:`drabridge.ledger.apply_event`). The signal, the owner and the
lane of the device choose exactly one row. A combination without a row, or with two, is an error at import. Devices that
share hardware (a GPU and its MIG parts, the functions of one IOMMU group) have an entry each: before a row's function
makes a hold stronger, it looks at these relatives (:mod:`drabridge.ledger.eligibility`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from drabridge.ledger.entries import DRA_OWNERS, Entry, Lane, Owner
from drabridge.ledger.transaction import Outcome, Transaction
from drabridge.ledger.transitions import claims as claims
from drabridge.ledger.transitions import lanes as lanes
from drabridge.ledger.transitions import no_change as no_change
from drabridge.ledger.transitions import pods as pods
from drabridge.ledger.transitions import recovery as recovery

Transition = Callable[[Transaction, Entry, Any], Outcome]


class DeviceSignal(StrEnum):
    """What an event means for one device."""

    ALLOCATE = "allocate"  # kubelet gives units of it to a pod
    SEEN = "seen"  # fresh evidence shows a pod on it
    ABSENT = "absent"  # the evidence shows no pod on it
    CLAIM_ALLOCATED = "claim-allocated"  # the API server gave it to a claim
    CLAIM_DEALLOCATED = "claim-deallocated"  # the API server took it from a claim
    PREPARE = "prepare"  # kubelet wants to start a claim's container
    PREPARE_ADMIN = "prepare-admin"  # the same, with admin access
    UNPREPARE = "unprepare"  # no container uses the claim
    FOUND_PREPARED = "found-prepared"  # a record, a CDI file or kubelet says that it may be in use
    SET_LANE = "set-lane"  # the device shall be in another lane
    WITHDRAWN_FROM_KUBELET = "withdrawn-from-kubelet"  # kubelet no longer offers it
    WITHDRAWN_FROM_SLICES = "withdrawn-from-slices"  # the API server no longer offers it
    NO_CLAIM_LISTED = "no-claim-listed"  # a later list of claims shows no claim with it
    REBOOTED = "rebooted"  # the node booted
    RECOUNT = "recount"  # kubelet or the agent started: evidence is counted from zero
    RECORD_LOST = "record-lost"  # the record of its holder is unreadable
    MANUAL_RELEASE = "manual-release"  # the operator says that nobody uses it
    LEASE_GRANTED = "lease-granted"
    LEASE_DENIED = "lease-denied"


class Row(NamedTuple):
    """What a signal does to devices with these owners and lanes."""

    signal: DeviceSignal
    owners: frozenset[Owner]
    lanes: frozenset[Lane]
    transition: Transition


def _owners(*owners: Owner) -> frozenset[Owner]:
    return frozenset(owners)


def _lanes(*lanes: Lane) -> frozenset[Lane]:
    return frozenset(lanes)


ANY = frozenset(Owner)
FREE = _owners(Owner.NONE)
LEGACY = _owners(Owner.LEGACY)
PENDING = _owners(Owner.DRA_PENDING)
CLAIMED = _owners(Owner.DRA_GRANTED, Owner.DRA_PREPARED)
UNCLEAR = _owners(Owner.CONFLICT, Owner.QUARANTINE)

ALL = frozenset(Lane)
TO_DRA = _lanes(Lane.LEGACY_TO_DRA)
TO_LEGACY = _lanes(Lane.DRA_TO_LEGACY)
SHARED = _lanes(Lane.SHARED)
FOR_PODS = _lanes(Lane.LEGACY, Lane.LEGACY_TO_DRA)  # until kubelet has confirmed, it may still choose the device
FOR_CLAIMS = _lanes(Lane.DRA, Lane.DRA_TO_LEGACY)  # until claims are listed, the scheduler may have chosen it

S = DeviceSignal
ROWS: tuple[Row, ...] = (
    # signal               owner       lane         what happens
    Row(S.ALLOCATE, FREE, FOR_PODS | SHARED, pods.take),
    Row(S.ALLOCATE, FREE, FOR_CLAIMS, no_change.refuse_to_pods),
    Row(S.ALLOCATE, LEGACY, ALL, pods.retake),
    Row(S.ALLOCATE, PENDING, ALL, pods.preempt),
    Row(S.ALLOCATE, CLAIMED | UNCLEAR, ALL, no_change.refuse_held),
    #
    Row(S.SEEN, FREE | CLAIMED, ALL, pods.adopt),
    Row(S.SEEN, PENDING, ALL, pods.adopt_before_lease),
    Row(S.SEEN, _owners(Owner.QUARANTINE), ALL, pods.adopt),
    Row(S.SEEN, LEGACY | _owners(Owner.CONFLICT), ALL, pods.confirm),
    Row(S.ABSENT, LEGACY | UNCLEAR, ALL, pods.judge_absence),
    Row(S.ABSENT, FREE | DRA_OWNERS, ALL, no_change.ignore),
    #
    Row(S.CLAIM_ALLOCATED, FREE, FOR_CLAIMS, claims.grant),
    Row(S.CLAIM_ALLOCATED, FREE, FOR_PODS, no_change.refuse_to_claims),
    Row(S.CLAIM_ALLOCATED, FREE, SHARED, claims.pend),
    Row(S.CLAIM_ALLOCATED, PENDING, ALL, claims.pend_as_well),
    Row(S.CLAIM_ALLOCATED, CLAIMED, ALL, claims.regrant),
    Row(S.CLAIM_ALLOCATED, LEGACY, ALL, no_change.refuse_held),
    Row(S.CLAIM_ALLOCATED, UNCLEAR, ALL, claims.note_allocated),
    Row(S.CLAIM_DEALLOCATED, ANY, ALL, claims.deallocate),
    #
    Row(S.PREPARE, FREE, FOR_CLAIMS, claims.prepare),
    Row(S.PREPARE, FREE, FOR_PODS | SHARED, no_change.refuse_to_claims),
    Row(S.PREPARE, DRA_OWNERS, ALL, claims.reprepare),
    Row(S.PREPARE, LEGACY | UNCLEAR, ALL, no_change.refuse_held),
    Row(S.PREPARE_ADMIN, ANY, ALL, claims.admit_admin),
    Row(S.UNPREPARE, ANY, ALL, claims.unprepare),
    Row(S.FOUND_PREPARED, ANY, ALL, claims.found_prepared),
    #
    Row(S.SET_LANE, FREE, ALL, lanes.move_free),
    Row(S.SET_LANE, ANY - FREE, ALL, lanes.move_when_released),
    Row(S.WITHDRAWN_FROM_KUBELET, FREE, TO_DRA, lanes.acknowledge),
    Row(S.WITHDRAWN_FROM_KUBELET, FREE, ALL - TO_DRA, no_change.ignore),
    Row(S.WITHDRAWN_FROM_KUBELET, PENDING, ALL, claims.lease_withdrawn),
    Row(S.WITHDRAWN_FROM_KUBELET, ANY - FREE - PENDING, ALL, no_change.ignore),
    Row(S.WITHDRAWN_FROM_SLICES, FREE, TO_LEGACY, lanes.quiesce),
    Row(S.WITHDRAWN_FROM_SLICES, FREE, ALL - TO_LEGACY, no_change.ignore),
    Row(S.WITHDRAWN_FROM_SLICES, ANY - FREE, ALL, no_change.ignore),
    Row(S.NO_CLAIM_LISTED, FREE, TO_LEGACY, lanes.end_quiet_time),
    Row(S.NO_CLAIM_LISTED, FREE, ALL - TO_LEGACY, no_change.ignore),
    Row(S.NO_CLAIM_LISTED, ANY - FREE, ALL, no_change.ignore),
    #
    Row(S.REBOOTED, ANY, ALL, recovery.reboot),
    Row(S.RECOUNT, ANY, ALL, pods.recount),
    Row(S.RECORD_LOST, FREE, ALL, recovery.quarantine),
    Row(S.RECORD_LOST, ANY - FREE, ALL, no_change.ignore),  # a holder that is known stays
    Row(S.MANUAL_RELEASE, UNCLEAR | _owners(Owner.DRA_PREPARED), ALL, recovery.release_manually),
    Row(S.MANUAL_RELEASE, ANY - UNCLEAR - _owners(Owner.DRA_PREPARED), ALL, no_change.ignore),
    #
    Row(S.LEASE_GRANTED, ANY - UNCLEAR, ALL, claims.lease_grant),
    Row(S.LEASE_GRANTED, UNCLEAR, ALL, no_change.refuse_held),
    Row(S.LEASE_DENIED, ANY, ALL, claims.lease_deny),
)


def compile_rows(rows: Iterable[Row]) -> Mapping[tuple[DeviceSignal, Owner, Lane], Transition]:
    """Return the table as a mapping; :exc:`ValueError` names the first combination that no row covers, or two do."""
    table: dict[tuple[DeviceSignal, Owner, Lane], Transition] = {}
    for row in rows:
        for owner in row.owners:
            for lane in row.lanes:
                key = (row.signal, owner, lane)
                if key in table:
                    raise ValueError(f"two rows for {' '.join(key)}: {table[key].__name__}, {row.transition.__name__}")
                table[key] = row.transition
    for signal in DeviceSignal:
        for owner in Owner:
            for lane in Lane:
                if (signal, owner, lane) not in table:
                    raise ValueError(f"no row for {signal} {owner} {lane}")
    return table


TABLE = compile_rows(ROWS)
