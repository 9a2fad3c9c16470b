"""Choose devices for the demo: loop devices, or what every machine has.

Root can plug loop devices in and out for real.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

LOOP_CONTROL = Path("/dev/loop-control")
LOOP_CTL_ADD, LOOP_CTL_REMOVE = 0x4C80, 0x4C81  # linux/loop.h
FIRST_NUMBER = 820  # far from what the system uses; the next free ones are taken

COUNT = 4
RESOURCE = "demo.example.com/disk"
DRIVER = "demo.example.com"


def choose() -> Hardware:
    """Return loop devices if this user can make them, else devices such as /dev/null, which cannot be unplugged."""
    if os.geteuid() == 0 and LOOP_CONTROL.exists():
        numbers = range(FIRST_NUMBER, FIRST_NUMBER + 100)
        free = [f"loop{n}" for n in numbers if not Path(f"/sys/block/loop{n}").exists()][:COUNT]
        made = f"four loop devices of this machine's kernel, made for the demo ({', '.join(free)}): real udev devices"
        loops = Hardware("block", free, made, can_unplug=True)
        try:
            for name in free:
                loops.plug_in(name)
            return loops
        except OSError:
            loops.clean_up()
    about = "/dev/null, /dev/zero, /dev/full and /dev/random: udev devices that every Linux machine has"
    return Hardware("mem", ('"null"', "zero", "full", "random"), about, can_unplug=False)


class Hardware:
    """The demo's devices. Those that can be unplugged are loop devices of our own, with real uevents."""

    def __init__(self, subsystem: str, names: Sequence[str], about: str, *, can_unplug: bool) -> None:
        self.about = about
        self.can_unplug = can_unplug
        self.config = f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
resources:
- name: {RESOURCE}
  match: [{{subsystem: {subsystem}, sysname: [{", ".join(names)}]}}]
  id: ["{{sysname}}"]
  nodes: [{{from: devnode, as: /dev/our-disk}}]     # the same name in every container
  env: {{DISK: "{{sysname}}"}}
  lanes: {{legacy: 3, dra: 1}}                      # how many each API may offer
"""
        self._there: set[str] = set()

    def plug_in(self, name: str) -> None:
        _control(LOOP_CTL_ADD, name)
        self._there.add(name)

    def unplug(self, name: str) -> None:
        _control(LOOP_CTL_REMOVE, name)
        self._there.discard(name)

    def clean_up(self) -> None:
        for name in sorted(self._there):
            with suppress(OSError):
                self.unplug(name)


def _control(operation: int, name: str) -> None:
    descriptor = os.open(LOOP_CONTROL, os.O_RDWR)
    try:
        fcntl.ioctl(descriptor, operation, int(name.removeprefix("loop")))
    finally:
        os.close(descriptor)
