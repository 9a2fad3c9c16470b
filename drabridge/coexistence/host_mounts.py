"""Tell which block devices the host itself uses: for a mounted file system, or as swap.

A pod that got such a disk would write underneath a mounted file system. A pod may mount a disk that it holds; so ask
only for devices without a holder. For most file systems the kernel lists the mounted disks of all mount namespaces
(/sys/fs). For the others, only mounts of this namespace, and of PID 1's if that can be read, are known.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from drabridge.inventory.devices import Device
from drabridge.system.files import names_in

DEPTH = 8  # LUKS on a logical volume on a RAID on partitions needs 4

Number = str  # "8:1"


class HostMounts:
    """Reads the kernel's files below ``sys`` and ``proc``. No disk can block these reads."""

    def __init__(self, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> None:
        self._sys = sys
        self._proc = proc

    def used(self, devices: Iterable[Device]) -> Mapping[str, str]:
        """Return device name -> how the host uses it, for the devices that it uses."""
        return self.using({device.name: numbers for device in devices if (numbers := numbers_of(device))})

    def using(self, disks: Mapping[str, set[Number]]) -> Mapping[str, str]:
        """Do :meth:`used` for disks given as name -> numbers of their nodes."""
        if not disks:
            return {}
        busy = self._busy()
        found = {}
        for name, numbers in disks.items():
            if used := sorted(busy.keys() & {above for number in numbers for above in self._above(number, DEPTH)}):
                found[name] = f"the host uses it: {', '.join(busy[number] for number in used)}"
        return found

    def _busy(self) -> dict[Number, str]:
        """Return number -> words, for block devices that are mounted or are swap."""
        found: dict[Number, str] = {}
        for process in ("1", "self"):
            for line in _lines(self._proc / process / "mountinfo"):
                fields = line.split()
                if len(fields) > 4 and (name := self._name(fields[2])):
                    found[fields[2]] = f"{name} is mounted"
        for kind in names_in(self._sys / "fs"):
            folder = self._sys / "fs" / kind
            groups = [folder, *(folder / one / "devices" for one in names_in(folder) if kind == "btrfs")]
            for name in (name for group in groups for name in names_in(group)):
                if number := self._number(name):
                    found[number] = f"{name} is mounted"
        for line in _lines(self._proc / "swaps")[1:]:
            if line.startswith("/dev/") and (number := self._number(name := os.path.basename(line.split()[0]))):
                found[number] = f"{name} is swap"
        return found

    def _above(self, number: Number, depth: int) -> Iterator[Number]:
        """Yield the number, and the numbers of the volumes built on it: device-mapper, md."""
        yield number
        place = self._sys / "dev/block" / number
        for holder in names_in(place / "holders") if depth else ():
            if above := self._number(holder):
                yield from self._above(above, depth - 1)

    def _number(self, name: str) -> Number:
        """Return the number of a block device, ``8:1``; "" if there is no device of that name."""
        return "".join(_lines(self._sys / "class/block" / name / "dev")[:1]).strip()

    def _name(self, number: Number) -> str:
        place = self._sys / "dev/block" / number
        return place.resolve().name if place.exists() else ""


def numbers_of(device: Device) -> set[Number]:
    """Return the numbers of a device's block nodes, and of the partitions of those."""
    own = {f"{node.major}:{node.minor}" for node in device.nodes if node.kind == "b"}
    return own | {place[1:] for place in device.also_at if own and place.startswith("b") and place[1:2].isdecimal()}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
