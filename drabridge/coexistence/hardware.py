"""Describe devices so that an agent of another driver recognises the same hardware, and find what overlaps. Pure."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from typing import Annotated

from msgspec import Meta, Struct

from drabridge.inventory.devices import COMPANION, Device
from drabridge.ledger.entries import Entry, Ledger, Owner
from drabridge.ledger.refusals import holder

SYSFS = "/sys/"


class KnownDevice(Struct, frozen=True, omit_defaults=True):
    """One device as its agent describes it. ``places``: its syspath, then those of :attr:`Device.also_at`."""

    name: str
    id: str
    places: Annotated[tuple[str, ...], Meta(min_length=1)]
    holder: str = ""  # in words; set only in the file of an agent that has ended
    resources: tuple[str, ...] = ()  # kubelet may count a pod under any; empty if an older agent wrote it
    grace: float | None = None  # its holders' longest termination grace period, seconds; None: not known


def known_device(device: Device) -> KnownDevice:
    """Describe a device of the inventory."""
    places = (device.syspath, *(place.removeprefix(COMPANION) for place in device.also_at))
    return KnownDevice(device.name, device.id, places, resources=(device.resource,))


def all_devices(ledger: Ledger) -> Iterator[KnownDevice]:
    """Describe every device that a ledger knows, with its holder."""
    for entry in ledger.entries.values():
        places = (entry.device.syspath, *entry.device.also_at, *entry.was_at)
        plain = tuple(place.removeprefix(COMPANION) for place in places)
        yield KnownDevice(entry.name, entry.device.id, plain, holder(entry), entry.counted_as, _grace(entry))


def held_devices(ledger: Ledger) -> Iterator[KnownDevice]:
    """Describe the devices that have a holder or, in quarantine, may have one."""
    free = {entry.name for entry in ledger.entries.values() if entry.owner is Owner.NONE}
    return (device for device in all_devices(ledger) if device.name not in free)


def _grace(entry: Entry) -> float | None:
    """Return the longest grace period of the entry's holders; None if one is not known."""
    known = [hold.grace for hold in (entry.hold,) if hold] + [held.grace or None for held in entry.holders]
    return max((seconds for seconds in known if seconds is not None), default=None) if None not in known else None


class OverlapIndex:
    """Finds the device at, above or below a place in sysfs."""

    def __init__(self, devices: Iterable[KnownDevice]) -> None:
        self._at: dict[str, KnownDevice] = {}
        self._above: dict[str, KnownDevice] = {}
        for device in devices:
            for place in filter(None, device.places):
                self._at.setdefault(place, device)
            for ancestor in _ancestors(device.places[0]):
                self._above.setdefault(ancestor, device)

    def overlapping(self, device: KnownDevice) -> KnownDevice | None:
        """Return a device of the index that is the same hardware, a part of it, or its whole; None if there is none."""
        places: Collection[str] = device.places
        found = next((self._at[place] for place in places if place in self._at), None)
        found = found or self._above.get(device.places[0])
        return found or next((self._at[above] for above in _ancestors(device.places[0]) if above in self._at), None)


def _ancestors(syspath: str) -> Iterator[str]:
    """Yield the paths above a device in sysfs, nearest first."""
    while (syspath := os.path.dirname(syspath)).startswith(SYSFS):
        yield syspath
