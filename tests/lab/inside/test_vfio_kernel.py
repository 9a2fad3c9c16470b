"""The binder alone on a real kernel: functions go to vfio-pci and back, whatever a crash left of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from drabridge.coexistence.host_use import IommuGroups
from drabridge.coexistence.vfio_binder import VfioBinder
from drabridge.inventory.devices import Device
from drabridge.ledger.entries import Entry, Ledger, LedgerDevice, NodeState, Owner
from drabridge.system.pci_driver import VFIO_PCI, Binding, PciDrivers, Step
from tests.lab.inside.nodes import address, group, run
from tests.support.hardware import config
from tests.support.waiting import until

VM = "example.com/vm"
ALLOW = ["1b36:0010", "1234:11e8", "8086:100e"]


class Dying(PciDrivers):
    """Fails before a write; ``left``: how many are made before."""

    left = 1000

    def do(self, address: str, step: Step, wanted: Binding) -> None:
        self.left -= 1
        if self.left < 0:
            raise SystemError
        super().do(address, step, wanted)


class Node:
    """A binder, and a ledger that says whether the device of a function is held."""

    def __init__(self, state: Path, function: str, allow: list[str]) -> None:
        self.state, self.function = state, function
        place = str(Path("/sys/bus/pci/devices", function).resolve())
        self.device = Device(f"vfio-{function}", "v", VM, place, also_at=(f"/dev/vfio/{group(function)}",))
        self.config = config({"name": VM, "match": [{"subsystem": "pci"}], "vfio": {"allow": allow}})
        self.hold(Owner.DRA_PREPARED)
        self.start()

    def start(self) -> None:
        """Another process."""
        groups = IommuGroups()
        groups.drivers = self.kernel = Dying()
        self.binder = VfioBinder(
            self.state,
            Path("/proc/sys/kernel/random/boot_id"),
            groups,
            lambda: self.config,
            cast("Any", self),  # it has the ledgers
            lambda: {self.device.name: self.device},
            lambda why: None,
        )

    def hold(self, owner: Owner) -> None:
        self.ledger = self.head = Ledger.of([Entry(LedgerDevice.of(self.device), owner)], NodeState(merged=True))

    def why_not(self) -> str:
        return self.binder.why_not([self.device], lambda name: False)[self.device.name]


def drivers(*functions: str) -> list[str]:
    links = [Path("/sys/bus/pci/devices", one, "driver") for one in functions]
    return [link.resolve().name if link.exists() else "" for link in links]


def reserved(*functions: str) -> list[str]:
    found = [Path("/sys/bus/pci/devices", one, "driver_override").read_text().strip() for one in functions]
    return [one for one in found if one != "(null)"]


@contextlib.asynccontextmanager
async def bound_later(state: Path, name: str, allow: list[str] | None = None) -> AsyncIterator[Node]:
    """A node for a device of the shelf, whose function has its driver again at the end."""
    subprocess.run(["modprobe", "vfio-pci"], check=True)  # noqa: ASYNC221
    node = Node(state, address(name), allow or ALLOW)
    try:
        yield node
    finally:
        node.hold(Owner.NONE)
        node.start()
        await node.binder.give_back()


async def test_a_disk_goes_there_and_back(tmp_path: Path) -> None:
    async with bound_later(tmp_path, "nvme2") as node:
        assert node.why_not() == ""
        await node.binder.bind(node.device)
        assert (drivers(node.function), reserved(node.function)) == ([VFIO_PCI], [VFIO_PCI])
        assert Path(f"/dev/vfio/{group(node.function)}").exists()
        node.hold(Owner.NONE)
        await node.binder.give_back()
        assert (drivers(node.function), reserved(node.function)) == (["nvme"], [])
        assert node.binder.notes == []


@pytest.mark.parametrize("again", ["held", "free"])
@pytest.mark.parametrize("steps", range(4))
async def test_a_crash_between_any_two_steps_is_healed(tmp_path: Path, steps: int, again: str) -> None:
    async with bound_later(tmp_path, "nvme2") as node:
        node.kernel.left = steps
        with contextlib.suppress(SystemError):
            await node.binder.bind(node.device)
        node.start()
        if again == "held":
            await node.binder.bind(node.device)
            assert drivers(node.function) == [VFIO_PCI]
        node.hold(Owner.NONE)
        await node.binder.give_back()
        assert (drivers(node.function), reserved(node.function)) == (["nvme"], [])


@pytest.mark.parametrize("steps", range(1, 5))
async def test_a_crash_in_a_group_of_two_is_healed(tmp_path: Path, steps: int) -> None:
    other = address("oldnet")
    async with bound_later(tmp_path, "edu3") as node:
        node.kernel.left = steps
        with contextlib.suppress(SystemError):
            await node.binder.bind(node.device)
        node.start()
        await node.binder.bind(node.device)
        assert drivers(node.function, other) == [VFIO_PCI, VFIO_PCI]
        os.close(os.open(f"/dev/vfio/{group(node.function)}", os.O_RDWR))
        node.hold(Owner.NONE)
        await node.binder.give_back()
        assert (drivers(node.function, other), reserved(node.function, other)) == (["", "e1000"], [])


async def test_what_is_open_stays_bound_until_it_is_closed(tmp_path: Path) -> None:
    async with bound_later(tmp_path, "nvme2") as node:
        await node.binder.bind(node.device)
        machine = os.open(f"/dev/vfio/{group(node.function)}", os.O_RDWR)
        node.hold(Owner.NONE)
        await node.binder.give_back()
        assert drivers(node.function) == [VFIO_PCI]
        (note,) = node.binder.notes
        assert f"is open in process {os.getpid()}" in note
        os.close(machine)
        await node.binder.give_back()
        assert drivers(node.function) == ["nvme"]


async def test_the_host_comes_first(tmp_path: Path) -> None:
    interface = Path("/sys/bus/pci/devices", address("oldnet"), "net")
    async with bound_later(tmp_path, "edu3") as node:
        name = next(interface.iterdir()).name
        await run("ip", "link", "set", name, "up")
        assert f"the network interface {name} is up" in node.why_not()
        await run("ip", "link", "set", name, "down")
        await run("ip", "address", "add", "192.0.2.1/24", "dev", name)
        assert "has an address" in node.why_not()
        await run("ip", "address", "flush", "dev", name)
        await run("ip", "netns", "add", "pod")
        await run("ip", "link", "set", name, "netns", "pod")
        assert "in the network namespace of a pod" in node.why_not()
        await run("ip", "netns", "delete", "pod")
        await until(lambda: interface.exists() and any(interface.iterdir()), 20)
        await until(lambda: not node.why_not(), 20, node.why_not)
    async with bound_later(tmp_path, "edu3", ["1234:11e8"]) as node:
        assert "(8086:100e, e1000) may not be bound" in node.why_not()


async def test_a_mounted_disk_stays_with_the_host(tmp_path: Path) -> None:
    root = Path("/sys/dev/block", f"{os.major(os.stat('/').st_dev)}:{os.minor(os.stat('/').st_dev)}").resolve()
    function = next(part for part in reversed(root.parts) if part.count(":") == 2)
    ids = Path("/sys/bus/pci/devices", function)
    allow = [":".join((ids / name).read_text().strip().removeprefix("0x") for name in ("vendor", "device"))]
    subprocess.run(["modprobe", "vfio-pci"], check=True)  # noqa: ASYNC221
    assert "is mounted" in Node(tmp_path, function, allow).why_not()
