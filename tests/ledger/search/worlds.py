"""The worlds that the tests search completely. :class:`.states.Config` says what the words mean."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from drabridge.ledger.entries import Lane
from tests.ledger.search.states import POLICY, Config

_PROMPT = Config(late_evidence=False, moves=1)
_GRACE = replace(_PROMPT, devices=1, faults=2, grace=True, policy=replace(POLICY, grace_seconds=2))
_LOST = replace(_PROMPT, devices=1, pods=1, files_lost=True)
_HARDWARE = frozenset({"unplug", "crash", "kubelet", "reboot", "force"})
_TENDER = frozenset({"lost", "crash", "kubelet", "reboot"})  # a claim that is force-deleted would leave no trace

_LEASES = replace(_PROMPT, faults=2, moves=0, leases=True, lanes=(Lane.SHARED, Lane.SHARED))
_KEPT = frozenset({"crash", "kubelet", "force", "reboot"})  # the record is not lost: it has the denials

_PROOFS = replace(_GRACE, claims=1, proofs=True, kinds=frozenset({"force", "crash", "kubelet", "forget"}))

DEEP: Mapping[str, Config] = {
    # for make deep: every kind of fault, and every pair of them, anywhere in the course of things
    "2 devices, 2 pods, 2 claims, a move, two faults of any kind": replace(_PROMPT, faults=2),
    "1 device, 2 pods, 2 claims, leases, two faults of any kind": replace(_LEASES, devices=1),
    "2 devices, 2 pods, 2 claims, leases, prompt, two faults": replace(_LEASES, prompt=True, kinds=_KEPT),
    "2 devices, 2 pods, 2 claims, leases, prompt, a fault of any kind": replace(_LEASES, prompt=True, faults=1),
    "1 device, a pod, 2 claims, leases, lent to claims, a fault": replace(
        _LEASES, devices=1, pods=1, moves=1, faults=1, kinds=_KEPT
    ),
    "1 device, a pod, 2 claims, leases, a cordon, a fault": replace(
        _LEASES, devices=1, pods=1, moves=1, faults=1, kinds=_KEPT, cordons=True
    ),
    "2 devices, a pod, a claim, a move, late evidence, a fault": Config(pods=1, claims=1, faults=1, moves=1),
    "2 devices, a pod, a claim, a move, the API server instead of the checkpoint, two faults": replace(
        _PROMPT, pods=1, claims=1, faults=2, checkpoint=False
    ),
    "2 devices, a pod, a claim, a move, unplugged, two faults": replace(
        _PROMPT, pods=1, claims=1, faults=2, kinds=_HARDWARE
    ),
    "1 device, 2 pods, a claim, a move, ends proven, two faults": _PROOFS,
    "2 devices, 2 pods, a claim, a move, evidence that is late by any time": Config(claims=1, faults=0, moves=1),
    "2 devices, 2 pods, a claim, physical probe, pods that will not die, two faults": replace(
        _PROMPT, claims=1, faults=2, moves=0, probe=True
    ),
    "1 device, 2 pods, 2 claims, leases, the record is kept, two faults": replace(_LEASES, devices=1, kinds=_KEPT),
    "2 devices, a pod, a claim, leases, two faults": replace(_LEASES, pods=1, claims=1, kinds=_KEPT),
    "1 device, 2 pods, a claim, a move, ends proven, a fault": replace(_PROOFS, faults=1),
}
OTHERS: Mapping[str, Config] = {
    "1 device, 2 pods, a claim, a cordon, two faults": replace(_PROMPT, devices=1, claims=1, faults=2, cordons=True),
    "1 device, 2 pods, 2 claims, a move, late evidence, a fault": Config(devices=1, faults=1, moves=1),
    "1 device, a pod, 2 claims, a move, late evidence, a fault, files of claims lost with the record": replace(
        _LOST, faults=1, late_evidence=True, claims_shown=True
    ),
    "2 devices, 2 claims, a fault, files of claims lost with the record": replace(
        _LOST, devices=2, pods=0, moves=0, faults=1, claims_shown=True, lanes=(Lane.DRA, Lane.DRA)
    ),
    "1 device, a pod, 2 claims, a move, files lost and kubelet shows no claims, two faults": replace(
        _LOST, faults=2, kinds=_TENDER
    ),
    "2 devices, 2 pods, a claim, physical probe, pods that will not die, a fault": replace(
        _PROMPT, claims=1, moves=0, probe=True
    ),
    # a GPU for containers and for virtual machines
    "2 devices at one place, 2 pods, late evidence, two faults": replace(
        _PROMPT, late_evidence=True, faults=2, one_place=True, claims=0, moves=0, lanes=(Lane.LEGACY, Lane.LEGACY)
    ),
    "2 devices at one place, 2 claims, a fault": replace(
        _PROMPT, one_place=True, pods=0, moves=0, lanes=(Lane.DRA, Lane.DRA)
    ),
    # what a real kubelet does, and what makes it safe
    "1 device, 2 pods, a claim, a move, pods' and claims' processes outlive the absence, two faults": replace(
        _GRACE, claims=1, kinds=frozenset({"force", "crash", "kubelet"})
    ),
    "1 device, a pod, 2 claims, a move, claims unprepared early, two faults": replace(
        _GRACE, pods=1, kinds=frozenset({"force", "crash", "lost", "reboot"})
    ),
    "1 device, 2 pods, a claim, a move, kubelet loses its checkpoint, two faults": replace(
        _GRACE, claims=1, kinds=frozenset({"forget", "crash", "kubelet"})
    ),
}
LEASES: Mapping[str, Config] = {
    # both APIs share the devices; the scheduler gives up and tries again
    "1 device, 2 pods, a claim, leases, the record is kept, a fault": replace(
        _LEASES, devices=1, claims=1, faults=1, kinds=_KEPT
    ),
    "1 device, 2 pods, a claim, leases, pods bound whatever the conditions say, two faults": replace(
        _LEASES, devices=1, claims=1, kinds=_KEPT, bound_early=True
    ),
    "a shared device, one of the DRA lane, a pod, a claim, leases, a fault": replace(
        _LEASES, pods=1, claims=1, faults=1, kinds=_KEPT, lanes=(Lane.SHARED, Lane.DRA)
    ),
    "1 device, a pod, 2 claims, leases, lent to claims": replace(_LEASES, devices=1, pods=1, moves=1, faults=0),
}
PROOFS: Mapping[str, Config] = {
    # what is proven acts at once; nothing else is quicker than in the worlds above
    "1 device, 2 pods, a claim, a move, ends proven, late evidence": Config(
        devices=1, claims=1, faults=0, moves=1, proofs=True
    ),
    "1 device, 2 pods, a claim, leases, ends proven, a fault": replace(
        _LEASES, devices=1, claims=1, faults=1, proofs=True, kinds=_KEPT
    ),
}
SMALLEST = (
    "1 device, 2 pods, a claim, a cordon, two faults",
    "1 device, 2 pods, 2 claims, a move, late evidence, a fault",
    "1 device, a pod, 2 claims, a move, files lost and kubelet shows no claims, two faults",
    "2 devices at one place, 2 pods, late evidence, two faults",
    "2 devices at one place, 2 claims, a fault",
    "1 device, 2 pods, a claim, leases, the record is kept, a fault",
    "1 device, a pod, 2 claims, leases, lent to claims",
    "1 device, 2 pods, a claim, a move, ends proven, late evidence",
)
"""Of OTHERS, LEASES and PROOFS: at most 5 s each, and one at least for each fault and each API. For ``make test``."""
WORLDS: Mapping[str, Config] = {**DEEP, **OTHERS, **LEASES, **PROOFS}
