"""Name what the DRA side asks of the rest of the agent, and tells it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Protocol

from msgspec import Struct

from drabridge.dra.facts import Fact, Observer
from drabridge.dra.planning import LookupOf, device_lookup
from drabridge.inventory.model import Device, Snapshot
from drabridge.ledger.model import ClaimRef, Entry

InUse = Callable[[set[str]], Awaitable[Mapping[str, str]]]
"""Device names -> those that a process has open, each with that process in words. Only probed devices appear."""


class ClaimPods(Protocol):
    """What is known of the pods with a claim."""

    def grace(self, claim: ClaimRef) -> float:
        """Return the seconds that they have to end when they are deleted."""

    def lingers(self, claim: ClaimRef, grace: float) -> float:
        """Return for how many seconds processes of an unprepared claim may go on; 0: none does.

        ``grace``: the seconds that they had to end; 0: not known.
        """


def _no_fact(fact: Fact) -> None:
    pass


async def _none_open(devices: set[str]) -> Mapping[str, str]:
    return {}


async def _not_bound(device: Device) -> None:
    pass


async def _all_there(names: Collection[str]) -> None:
    pass


def _no_pods() -> ClaimPods | None:
    return None


class DraPorts(Struct, frozen=True, kw_only=True):
    """The rest of the agent, one function for each thing that is asked or told."""

    inventory: Callable[[], Snapshot]  # the current snapshot
    observer: Observer = _no_fact
    lookup: LookupOf = device_lookup  # the value of template fields for a device
    in_use: InUse = _none_open
    confirm_cdi: Callable[[Collection[str]], Awaitable[None]] = _all_there  # raises HostError for a device in no file
    bind: Callable[[Device], Awaitable[None]] = _not_bound  # to vfio-pci, where its resource asks; raises HostError
    pods: Callable[[], ClaimPods | None] = _no_pods  # None: nobody follows pods
    unwell: Callable[[], str] = str  # why no claim could be granted now; "" if one could
    on_synced: Callable[[], None] = lambda: None  # the API server has the slices that it should have
    kept: Callable[[Entry], bool] = lambda _: False  # whether a device is not for claims now, by its turn
    paused: Callable[[], Mapping[str, str]] = dict  # devices that nobody new gets for now, each with the reason
    clock: Callable[[], float] = time.time
