"""Change the driver of a PCI function: the only place that writes to sysfs.

Each write may take long or hang forever: a driver's ``remove`` waits until nobody has the device open. So call from
threads. The next write follows from what sysfs shows, never from what was written before, so a crash does no harm.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from drabridge.errors import HostError
from drabridge.system.files import link_name

VFIO_PCI = "vfio-pci"


class Binding(Struct, frozen=True):
    """The driver of a function, and the only driver that may take it (``driver_override``); "" for none."""

    driver: str = ""
    override: str = ""


class Step(StrEnum):
    """One write to sysfs. The values are for people."""

    RESERVE = "setting driver_override"
    UNBIND = "unbinding the driver"
    PROBE = "asking the kernel for a driver"


def next_step(now: Binding, wanted: Binding) -> Step | None:
    """Return the next write towards a binding; None if it is reached. Pure.

    ``driver_override`` is set first, so that no other driver takes the function in the moment without a driver.
    """
    if now.override != wanted.override:
        return Step.RESERVE
    if now.driver == wanted.driver:
        return None
    return Step.UNBIND if now.driver else Step.PROBE


def binding_before(now: Binding, taken: Binding) -> Binding:
    """Return the binding that a function gets back after vfio-pci. What others changed meanwhile stays. Pure."""
    driver = taken.driver if now.driver in ("", VFIO_PCI) else now.driver
    return Binding(driver, taken.override if now.override == VFIO_PCI else now.override)


class PciDrivers:
    """Reads and changes the drivers of PCI functions, in the sysfs at ``sys``."""

    def __init__(self, sys: Path = Path("/sys")) -> None:
        self._bus = sys / "bus/pci"

    def driver(self, address: str) -> str | None:
        """Return the driver of a function, "" for none; None if there is no such function. Never blocks."""
        folder = self._bus / "devices" / address
        return link_name(folder / "driver") if folder.exists() else None

    def binding(self, address: str) -> Binding | None:
        """Return a function's binding; None if there is no such function. Blocks while a write to it hangs."""
        driver = self.driver(address)
        if driver is None:
            return None
        override = self.read(address, "driver_override")
        return Binding(driver, "" if override == "(null)" else override)

    def has_driver(self, name: str) -> bool:
        """Whether the kernel has a driver: its module is loaded."""
        return (self._bus / "drivers" / name).is_dir()

    def may_write(self) -> bool:
        """Whether sysfs can be written: /sys may be mounted read-only."""
        return os.access(self._bus / "drivers_probe", os.W_OK)

    def read(self, address: str, name: str) -> str:
        """Return an attribute's whole text without surrounding whitespace; "" if it cannot be read."""
        try:
            return (self._bus / "devices" / address / name).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def do(self, address: str, step: Step, wanted: Binding) -> None:
        """Make one write. Raises HostError."""
        match step:
            case Step.RESERVE:
                self.write(self._bus / "devices" / address / "driver_override", f"{wanted.override}\n")
            case Step.UNBIND:
                self.write(self._bus / "devices" / address / "driver/unbind", address)
            case Step.PROBE:
                self.write(self._bus / "drivers_probe", address)

    def reset(self, address: str) -> bool:
        """Reset a function; return False if the kernel cannot. Raises HostError."""
        path = self._bus / "devices" / address / "reset"
        if not path.exists():
            return False
        self.write(path, "1")
        return True

    def write(self, path: Path, text: str) -> None:
        """Write to a file of sysfs. Raises HostError."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            hint = "the agent needs /sys writable, and no AppArmor profile that forbids it; see the kernel's log"
            raise HostError(f"{path} cannot be written: {error.strerror or error}", hint=hint) from error
