"""Choose devices for the demo: loop devices, or what every machine has.

Root can plug loop devices in and out for real.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Protocol

LOOP_CONTROL = Path("/dev/loop-control")
LOOP_CTL_ADD, LOOP_CTL_REMOVE = 0x4C80, 0x4C81  # linux/loop.h
FIRST_NUMBER = 820  # far from what the system uses; the next free ones are taken

COUNT = 4
RESOURCE = "demo.example.com/disk"
DRIVER = "demo.example.com"


class Hardware(Protocol):
    """What the demo needs to know of its devices."""

    can_unplug: bool
    about: str
    config: str

    def plug_in(self) -> None: ...

    def unplug(self, name: str) -> None: ...

    def plug_again(self, name: str) -> None: ...

    def clean_up(self) -> None: ...


def choose() -> Hardware:
    """Loop devices if this user can make them, else memory devices."""
    if os.geteuid() == 0 and LOOP_CONTROL.exists():
        with suppress(OSError):
            devices = LoopDevices()
            devices.plug_in()
            return devices
    return MemoryDevices()


def _config(match: str) -> str:
    return f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
resources:
- name: {RESOURCE}
  match: [{match}]
  id: ["{{sysname}}"]
  nodes: [{{from: devnode, as: /dev/our-disk}}]     # the same name in every container
  env: {{DISK: "{{sysname}}"}}
  lanes: {{legacy: 3, dra: 1}}                      # how many each API may offer
"""


class LoopDevices:
    """Four loop devices of our own: real kernel devices, real uevents when they come and go."""

    can_unplug = True

    def __init__(self) -> None:
        free = [n for n in range(FIRST_NUMBER, FIRST_NUMBER + 100) if not Path(f"/sys/block/loop{n}").exists()]
        self._numbers = free[:COUNT]
        self._there: set[int] = set()
        names = ", ".join(f"loop{n}" for n in self._numbers)
        self.about = f"four loop devices of this machine's kernel, made for the demo ({names}): real udev devices"
        self.config = _config(f"{{subsystem: block, sysname: [{names}]}}")

    def plug_in(self) -> None:
        for number in self._numbers:
            self._control(LOOP_CTL_ADD, number)
            self._there.add(number)

    def unplug(self, name: str) -> None:
        number = int(name.removeprefix("loop"))
        self._control(LOOP_CTL_REMOVE, number)
        self._there.discard(number)

    def plug_again(self, name: str) -> None:
        number = int(name.removeprefix("loop"))
        self._control(LOOP_CTL_ADD, number)
        self._there.add(number)

    def clean_up(self) -> None:
        for number in sorted(self._there):
            with suppress(OSError):
                self._control(LOOP_CTL_REMOVE, number)
        self._there.clear()

    @staticmethod
    def _control(operation: int, number: int) -> None:
        descriptor = os.open(LOOP_CONTROL, os.O_RDWR)
        try:
            fcntl.ioctl(descriptor, operation, number)
        finally:
            os.close(descriptor)


class MemoryDevices:
    """/dev/null and its kin: udev devices that every machine has and nobody can unplug."""

    can_unplug = False

    def __init__(self) -> None:
        names = '"null", zero, full, random'
        self.about = "/dev/null, /dev/zero, /dev/full and /dev/random: udev devices that every Linux machine has"
        self.config = _config(f"{{subsystem: mem, sysname: [{names}]}}")

    def plug_in(self) -> None: ...

    def unplug(self, name: str) -> None:
        raise OSError("memory devices cannot be unplugged")

    def plug_again(self, name: str) -> None: ...

    def clean_up(self) -> None: ...
