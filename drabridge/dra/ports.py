"""Define what the DRA side asks of the rest of the agent, and what it tells the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from drabridge.dra.observer import Observer
from drabridge.dra.planning import LookupOf
from drabridge.inventory.devices import Device, Snapshot
from drabridge.ledger.entries import Entry

if TYPE_CHECKING:
    from drabridge.evidence.apiserver_pods import PodWatch


class DraPorts(Struct, frozen=True, kw_only=True):
    """The rest of the agent, one function for each thing that is asked or told."""

    inventory: Callable[[], Snapshot]  # the current snapshot
    observer: Observer
    lookup: LookupOf  # the value of template fields for a device
    # Device names -> those that a process has open -> the process in words. Only probed devices appear.
    in_use: Callable[[set[str]], Awaitable[Mapping[str, str]]]
    confirm_cdi: Callable[[Collection[str]], Awaitable[None]]  # raises HostError for a device in no file
    bind: Callable[[Device], Awaitable[None]]  # binds to vfio-pci if the resource asks for it; raises HostError
    pods: Callable[[], PodWatch | None]  # None: nobody follows pods
    unwell: Callable[[], str]  # why the node can grant no claim now; "" if it can
    on_synced: Callable[[], None]  # the API server has the slices that it should have
    kept: Callable[[Entry], bool]  # whether a device is kept from claims now, because it is the turn of pods
    paused: Callable[[], Mapping[str, str]]  # device that no new holder gets for now -> reason
    clock: Callable[[], float]
