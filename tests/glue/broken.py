"""Glue that is broken on purpose: the stories must find each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from drabridge.dra.claim_objects import ClaimObjects
from drabridge.dra.deallocation import Deallocations
from drabridge.dra.leases import Leases
from drabridge.evidence.kubelet import KubeletEvidence
from drabridge.lanes.acknowledgements import KubeletAcknowledgements
from drabridge.ledger.events import WithdrawnFromKubelet
from drabridge.ledger.model import Entry


async def _nobody(self: KubeletEvidence) -> frozenset[Any]:
    return frozenset()


async def _at_once(self: KubeletAcknowledgements, revoked: list[Entry]) -> float:
    service = self._ledger_service
    for entry in revoked:
        await service.apply(WithdrawnFromKubelet(entry.name, service.ledger.seq, service.now()))
    return 1.0


_apply = ClaimObjects.apply_devices


async def _whatever_it_is_now(self: ClaimObjects, *given: Any, resource_version: str = "", **more: Any) -> None:
    await _apply(self, *given, **more)


async def _never(self: Deallocations, claim: Any) -> bool:
    return False


BROKEN: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "kubelet is not asked whether it has given a device up": lambda: patch.object(
        KubeletAcknowledgements, "fetch", _at_once
    ),
    "pods that kubelet shows do not stop an acknowledgement": lambda: patch.object(KubeletEvidence, "shown", _nobody),
    "what kubelet still offers does not stop an acknowledgement": lambda: patch.object(
        KubeletEvidence, "allocatable", _nobody
    ),
    "a lease is told of whatever the claim is now": lambda: patch.object(
        ClaimObjects, "apply_devices", _whatever_it_is_now
    ),
    "a claim's deallocation is never asked about": lambda: patch.object(
        Deallocations, "release_if_deallocated", _never
    ),
    "a claim whose lease is not told is followed for ever": lambda: patch.object(
        Leases, "awaited", lambda self, claim: claim.uid in self._untold.values()
    ),
    "overlapping hardware is nobody's": lambda: patch(
        "drabridge.ledger.transitions.claims.overlap", lambda tx, entry, uid="": None
    ),
}
