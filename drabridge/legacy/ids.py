"""Keep the ids by which kubelet knows the devices of one resource: present ids, and former ones.

A device with replicas has an id for each. A reload with a smaller count takes ids away from a device that stays.
Kubelet 1.36.2 crashes when an id leaves the list during the id's Allocate (``allocateContainerResources``). If a pod's
id is no longer listed when kubelet admits the pod again, kubelet fails the pod. So a former id stays listed, Unhealthy,
until no pod has it and kubelet has had time to forget it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from drabridge.ledger.entries import Entry

_NONE: Mapping[str, float] = {}


class KubeletIds:
    """The ids of one resource. ``at`` is in wall seconds."""

    def __init__(self) -> None:
        self.owner: dict[str, str] = {}  # id -> device name, former ids included
        self._present: dict[str, tuple[str, ...]] = {}  # device name -> its ids
        self._former: dict[str, dict[str, float]] = {}  # device name -> id that it had -> when it last had it

    def follow(self, entries: Iterable[Entry], at: float) -> None:
        """Record the ids of the ledger's devices.

        This is cheap if nothing has changed, because it runs before every list.
        """
        for entry in entries:
            name, units = entry.device.name, entry.device.units
            before = self._present.get(name)
            if before is units or before == units:
                continue
            self._present[name] = units
            self._make_former(name, set(before or ()).difference(units), at)
            former = self._former.get(name, {})
            for unit in units:
                former.pop(unit, None)
                self.owner[unit] = name

    def forget(self, entries: Iterable[Entry], at: float, *, keep_seconds: float, recent: Collection[str]) -> None:
        """Drop former ids that no pod has had for ``keep_seconds``, except those in ``recent``.

        ``recent``: ids that kubelet has asked about lately. The ids of a hold also count as former ids of its device,
        because the hold may be older than this process.
        """
        known = {entry.name: entry for entry in entries}
        for name in self._present.keys() - known.keys():
            del self._present[name]
            self._former.pop(name, None)
        for entry in known.values():
            if entry.hold is not None:
                self._make_former(entry.name, set(entry.hold.units).difference(entry.device.units), at)
        for name, former in tuple(self._former.items()):
            left = {unit: since for unit, since in former.items() if at - since < keep_seconds or unit in recent}
            if left:
                self._former[name] = left
            else:
                del self._former[name]
        units = {unit: name for name, units in self._present.items() for unit in units}
        self.owner = {unit: name for name, former in self._former.items() for unit in former} | units

    def former(self) -> Mapping[str, Collection[str]]:
        """Return device name -> its former ids."""
        return self._former

    def is_former(self, unit: str) -> bool:
        """Tell whether the id is a former one of its device."""
        return bool(self._former) and unit in self._former.get(self.owner.get(unit, ""), _NONE)

    def _make_former(self, name: str, units: Collection[str], at: float) -> None:
        for unit in units:
            if self.owner.setdefault(unit, name) == name:
                self._former.setdefault(name, {})[unit] = at
