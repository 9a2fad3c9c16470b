"""Glue that is broken on purpose. Each has a story that finds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from msgspec import Struct

from drabridge.coexistence.competing_plugins import CompetingPlugins
from drabridge.dra.deallocation import Deallocations
from drabridge.dra.leases import Leases
from drabridge.evidence.kubelet import KubeletEvidence
from drabridge.lanes.acknowledgements import KubeletAcknowledgements
from drabridge.ledger.entries import Entry
from drabridge.ledger.events import WithdrawnFromKubelet

_leases = Leases.__init__


class Broken(Struct, frozen=True):
    """``found_in``: the world and the seed of a story that finds it."""

    found_in: tuple[str, int]
    breaks: Callable[[], AbstractContextManager[Any]]


async def _nothing(self: KubeletEvidence) -> frozenset[Any]:
    return frozenset()


async def _believe_kubelet(self: KubeletAcknowledgements, revoked: list[Entry]) -> float:
    service = self.ledger_service
    for entry in revoked:
        await service.apply(WithdrawnFromKubelet(entry.name, service.ledger.seq, service.now()))
    return 1.0


async def _never(self: Deallocations, claim: Any) -> bool:
    return False


def _without_slices(self: Leases, *given: Any, **more: Any) -> None:
    _leases(self, *given, **{**more, "synced_seq": lambda: 1 << 60})


BROKEN: Mapping[str, Broken] = {
    "kubelet is not asked whether it has given a device up": Broken(
        ("shared", 302), lambda: patch.object(KubeletAcknowledgements, "fetch", _believe_kubelet)
    ),
    "what kubelet still offers does not count": Broken(
        ("shared", 301), lambda: patch.object(KubeletEvidence, "allocatable", _nothing)
    ),
    "a denial does not wait for the slices": Broken(
        ("shared", 400), lambda: patch.object(Leases, "__init__", _without_slices)
    ),
    "kubelet's loss of our registration is not noticed": Broken(
        ("lanes", 6), lambda: patch.object(CompetingPlugins, "_look_for_missing", lambda self, offered, now: None)
    ),
    "a claim's deallocation is never asked about": Broken(
        ("shared", 301), lambda: patch.object(Deallocations, "release_if_deallocated", _never)
    ),
}
