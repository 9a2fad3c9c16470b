"""Functions go to vfio-pci and back: what is in the way, what a crash leaves, who gets what meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drabridge.coexistence import vfio_binder
from drabridge.coexistence.host_mounts import HostMounts
from drabridge.coexistence.host_use import Function, IommuGroups
from drabridge.coexistence.other_agents import OtherAgents
from drabridge.coexistence.vfio_binder import VfioBinder
from drabridge.coexistence.withheld import WithheldDevices
from drabridge.config.vfio import Vfio
from drabridge.errors import HostError
from drabridge.inventory.devices import Device, DeviceNode, Presence, Snapshot
from drabridge.ledger.entries import Entry, Ledger, LedgerDevice, NodeState, Owner
from drabridge.system.paths import Paths
from drabridge.system.pci_driver import VFIO_PCI, Binding, PciDrivers, Step, binding_before, next_step
from tests.support.hardware import config, loop_devices
from tests.support.waiting import until

GPU, AUDIO, PORT = "0000:3b:00.0", "0000:3b:00.1", "0000:3a:00.0"
VM, DISK = "example.com/vm", "example.com/gpu"


class Kernel(PciDrivers):
    """A tree of sysfs in which writes do what the kernel does. ``fails``: called before each write."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "sys")
        self.root = root
        self.steps: list[tuple[str, Step]] = []
        self.native: dict[str, str] = {}
        self.fails: Callable[[], None] = lambda: None
        (root / "sys/bus/pci/drivers" / VFIO_PCI).mkdir(parents=True)
        (root / "udev").mkdir()
        (root / "sys/bus/pci/drivers_probe").touch()
        (root / "proc/2").mkdir(parents=True)
        (root / "proc/2/comm").write_text("kthreadd\n")
        (root / "dev/vfio").mkdir(parents=True)

    def add(self, address: str, driver: str, ids: str, group: str = "7", **attributes: str) -> Path:
        """A function; returns its folder."""
        place = self.root / "sys/devices/pci0000:3a" / address
        place.mkdir(parents=True)
        vendor, device = ids.split(":")
        for name, value in {"vendor": f"0x{vendor}", "device": f"0x{device}", **attributes}.items():
            (place / name).write_text(f"{value}\n")
        (place / "driver_override").write_text("(null)\n")
        members = self.root / "sys/kernel/iommu_groups" / group / "devices"
        members.mkdir(parents=True, exist_ok=True)
        (members / address).symlink_to(place)
        (place / "iommu_group").symlink_to(members.parent)
        devices = self.root / "sys/bus/pci/devices"
        devices.mkdir(parents=True, exist_ok=True)
        (devices / address).symlink_to(place)
        self.native[address] = driver
        self.attach(place, driver)
        return place

    def attach(self, place: Path, driver: str) -> None:
        """Give a function a driver, or take its own."""
        (place / "driver").unlink(missing_ok=True)
        if driver:
            (place / "driver").symlink_to(f"/sys/bus/pci/drivers/{driver}")

    def do(self, address: str, step: Step, wanted: Binding) -> None:
        self.fails()
        self.steps.append((address, step))
        place = self.root / "sys/devices/pci0000:3a" / address
        match step:
            case Step.RESERVE:
                (place / "driver_override").write_text(f"{wanted.override or '(null)'}\n")
            case Step.UNBIND:
                self.attach(place, "")
            case Step.PROBE:
                override = self.read(address, "driver_override")
                self.attach(place, self.native[address] if override == "(null)" else override)

    def drivers(self) -> dict[str, tuple[str, str]]:
        """Driver and reservation of each function."""
        found = {one: self.binding(one) for one in self.native}
        return {one: (binding.driver, binding.override) for one, binding in found.items() if binding}


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    made = Kernel(tmp_path)
    made.add(GPU, "nvidia", "10de:2330")
    made.add(AUDIO, "snd_hda_intel", "10de:22a3")
    made.add(PORT, "pcieport", "8086:352a")
    return made


BEFORE = {GPU: ("nvidia", ""), AUDIO: ("snd_hda_intel", ""), PORT: ("pcieport", "")}
BOUND = {GPU: (VFIO_PCI, VFIO_PCI), AUDIO: (VFIO_PCI, VFIO_PCI), PORT: ("pcieport", "")}
RULE = {"allow": ["10de:*"]}


class Node:
    """A binder over a kernel, with a ledger that says whether the virtual machine's device is held."""

    def __init__(self, kernel: Kernel, rule: Mapping[str, Any] = RULE) -> None:
        self.kernel = kernel
        place = str((kernel.root / "sys/bus/pci/devices" / GPU).resolve())
        self.vm = Device(f"vfio-{GPU}", "v", VM, place, also_at=("/dev/vfio/7",))
        self.gpu, self.part = Device("gpu", "g", DISK, place), Device("p", "p", DISK, f"{place}/nvidia-mig/gi1-ci0")
        disk = Device("disk", "d", DISK, "/sys/virtual/disk", also_at=("b259:0", place))
        several = (self.vm, self.gpu, self.part, disk, Device("else", "e", DISK, "/sys/x"))
        self.devices = {one.name: one for one in several}
        match = [{"subsystem": "pci"}]
        self.config = config(
            {"name": VM, "match": match, "vfio": dict(rule)}, {"name": DISK, "match": match, "id": ["{nvidia.uuid}"]}
        )
        self.said: list[str] = []
        self.boot_id = self.kernel.root / "boot_id"
        self.boot_id.write_text("this\n")
        self.service: Any = SimpleNamespace()  # the ledger that is on disk, and the one that is about to be
        self.hold(Owner.DRA_PREPARED)
        self.start()

    def start(self) -> None:
        """Another process."""
        groups = IommuGroups(self.kernel.root / "sys", self.kernel.root / "proc", self.kernel.root / "udev")
        groups.drivers = self.kernel
        state = self.kernel.root
        self.binder = VfioBinder(
            state,
            self.boot_id,
            groups,
            lambda: self.config,
            self.service,
            lambda: self.devices,
            self.said.append,
        )

    def hold(self, owner: Owner) -> None:
        entry = Entry(LedgerDevice.of(self.vm), owner)
        self.service.ledger = self.service.head = Ledger.of([entry], NodeState(merged=True))

    @property
    def record(self) -> dict[str, Any]:
        return dict(json.loads((self.kernel.root / "vfio.json").read_text())["functions"])


# --- the table


DRIVERS, OVERRIDES = ("", VFIO_PCI, "nvidia", "nouveau"), ("", VFIO_PCI, "other")


@pytest.mark.parametrize("wanted", [Binding(VFIO_PCI, VFIO_PCI), Binding("nvidia"), Binding("", "other"), Binding()])
def test_from_whatever_a_crash_left_a_function_gets_where_it_belongs(wanted: Binding) -> None:
    for driver, override in itertools.product(DRIVERS, OVERRIDES):
        now, steps = Binding(driver, override), []
        while (step := next_step(now, wanted)) is not None:
            assert step not in steps, "no step is made twice"
            steps.append(step)
            match step:
                case Step.RESERVE:
                    now = Binding(now.driver, wanted.override)
                case Step.UNBIND:
                    assert now.override == wanted.override, "else another driver could take it for a moment"
                    now = Binding("", now.override)
                case Step.PROBE:
                    now = Binding(wanted.driver, now.override)
        assert now == wanted


def test_what_somebody_else_bound_meanwhile_is_left_to_them() -> None:
    taken = Binding("nvidia", "")
    assert binding_before(Binding("nouveau", VFIO_PCI), taken) == Binding("nouveau", "")
    assert binding_before(Binding("nouveau", "nouveau"), taken) == Binding("nouveau", "nouveau")
    assert binding_before(Binding(VFIO_PCI, VFIO_PCI), taken) == taken
    assert binding_before(Binding("", ""), taken) == taken


# --- what is in the way


def why_not(kernel: Kernel, **rule: Any) -> str:
    groups = IommuGroups(kernel.root / "sys", kernel.root / "proc", kernel.root / "udev")
    groups.drivers = kernel
    return groups.why_not(GPU, Vfio(allow=tuple(rule.get("allow", ["10de:*"])), deny=tuple(rule.get("deny", ()))))


def test_a_free_and_allowed_group_may_go(kernel: Kernel) -> None:
    assert why_not(kernel) == ""
    assert why_not(kernel, allow=["10de:2330", AUDIO]) == ""


@pytest.mark.parametrize(
    "rule",
    [{"allow": ["10de:2330"]}, {"allow": ["10de:*"], "deny": [AUDIO]}, {"allow": ["10de:*"], "deny": ["*:22a3"]}],
)
def test_a_neighbour_that_is_not_allowed_keeps_its_driver(kernel: Kernel, rule: dict[str, Any]) -> None:
    assert why_not(kernel, **rule).startswith(f"{AUDIO} (10de:22a3, snd_hda_intel) may not be bound to vfio-pci")


def test_without_the_module_it_is_said_how_to_load_it(kernel: Kernel) -> None:
    (kernel.root / "sys/bus/pci/drivers" / VFIO_PCI).rmdir()
    assert "modprobe vfio-pci" in why_not(kernel)


def test_an_agent_that_does_not_see_the_nodes_processes_or_may_not_write_says_so(kernel: Kernel) -> None:
    (kernel.root / "proc/2/comm").write_text("pause\n")
    assert "hostPID" in why_not(kernel)
    (kernel.root / "sys/bus/pci/drivers_probe").unlink()
    assert "may not write to /sys" in why_not(kernel)


def interface(kernel: Kernel, flags: str, *above: str) -> None:
    place = kernel.add("0000:3b:00.2", "mlx5_core", "10de:1017", **{"class": "0x020000"})
    (place / "net/drabridge-x").mkdir(parents=True)
    net = kernel.root / "sys/class/net/drabridge-x"
    net.mkdir(parents=True)
    (net / "flags").write_text(flags)
    for name in above:
        (net / name).mkdir()


def disk(kernel: Kernel, name: str = "sda") -> Path:
    place = kernel.add("0000:3b:00.3", "ahci", "10de:1111") / f"block/{name}"
    place.mkdir(parents=True)
    (place / "dev").write_text("8:0\n")
    (place / "subsystem").symlink_to("/sys/class/block")
    (kernel.root / "sys/dev/block").mkdir(parents=True)
    (kernel.root / "sys/dev/block/8:0").symlink_to(place)
    (kernel.root / "sys/class/block").mkdir(parents=True)
    (kernel.root / "sys/class/block" / name).symlink_to(place)
    return place


def mounted(kernel: Kernel) -> None:
    disk(kernel)
    (kernel.root / "proc/1").mkdir()
    (kernel.root / "proc/1/mountinfo").write_text("36 22 8:0 / / rw - ext4 /dev/sda rw\n")


def swap(kernel: Kernel) -> None:
    disk(kernel)
    (kernel.root / "proc/swaps").write_text("Filename\n/dev/sda partition 1 0 -2\n")


def held(kernel: Kernel) -> None:
    (disk(kernel) / "holders/dm-0").mkdir(parents=True)


def signature(kind: str) -> Callable[[Kernel], None]:
    def make(kernel: Kernel) -> None:
        disk(kernel)
        (kernel.root / "udev/b8:0").write_text(f"E:ID_FS_TYPE={kind}\n")

    return make


def no_database(kernel: Kernel) -> None:
    disk(kernel)
    (kernel.root / "udev").rmdir()


def behind_several_controllers(kernel: Kernel) -> None:
    (kernel.add("0000:3b:00.4", "nvme", "10de:2222") / "nvme/nvme0").mkdir(parents=True)
    head = kernel.root / "sys/class/nvme-subsystem/nvme-subsys0"
    (head / "nvme0n1").mkdir(parents=True)
    (head / "nvme0").mkdir()
    (head / "nvme0n1/dev").write_text("259:0\n")
    (head / "nvme0n1/subsystem").symlink_to("/sys/class/block")
    (kernel.root / "sys/dev/block").mkdir(parents=True)
    (kernel.root / "sys/dev/block/259:0").symlink_to(head / "nvme0n1")
    (head / "nvme0n1/holders/md0").mkdir(parents=True)


def serial(kernel: Kernel) -> None:
    (kernel.add("0000:3b:00.2", "serial", "10de:1") / "tty/ttyS4").mkdir(parents=True)
    (kernel.root / "sys/class/tty/console").mkdir(parents=True)
    (kernel.root / "sys/class/tty/console/active").write_text("tty0 ttyS4\n")


IN_THE_WAY: dict[str, tuple[Callable[[Kernel], object], str]] = {
    "a console, with no driver": (lambda k: k.add("0000:3b:00.2", "efifb", "10de:1", boot_vga="1"), "the console"),
    "virtual functions": (
        lambda k: k.add("0000:3b:00.2", "x", "10de:1", virtfn0="", virtfn1=""),
        "2 virtual functions",
    ),
    "mediated devices": (
        lambda k: (k.add("0000:3b:00.2", "x", "10de:1") / "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001/mdev_type").mkdir(
            parents=True
        ),
        "1 mediated devices",
    ),
    "a bridge": (lambda k: k.add("0000:3b:00.2", "x", "10de:1", **{"class": "0x060400"}), "it is a bridge"),
    "a serial console": (serial, "ttyS4 is a console of the kernel"),
    "an interface on USB in a pod": (
        lambda k: (k.add("0000:3b:00.2", "xhci_hcd", "10de:1") / "usb1/1-1/net").mkdir(parents=True),
        "in the network namespace of a pod",
    ),
    "a link that is up": (lambda k: interface(k, "0x1003"), "drabridge-x is up"),
    "a bond": (lambda k: interface(k, "0x1002", "upper_bond0"), "is a part of bond0"),
    "an interface that nothing is known of": (lambda k: interface(k, "?"), "cannot be asked"),
    "an interface in a pod": (
        lambda k: k.add("0000:3b:00.2", "mlx5_core", "10de:1017", **{"class": "0x020000"}),
        "in the network namespace of a pod",
    ),
    "a mount": (mounted, "sda is mounted"),
    "swap": (swap, "sda is swap"),
    "a volume": (held, "sda is held by dm-0"),
    "a volume group that is not active": (signature("LVM2_member"), "sda is in a volume group"),
    "a RAID that is not assembled": (signature("linux_raid_member"), "sda is in a RAID"),
    "a disk of which nothing is known": (no_database, "udev's database is not at"),
    "a disk behind several controllers": (behind_several_controllers, "nvme0n1 is held by md0"),
}


@pytest.mark.parametrize("name", IN_THE_WAY)
def test_what_the_host_uses_stays_with_it(kernel: Kernel, name: str) -> None:
    make, said = IN_THE_WAY[name]
    make(kernel)
    assert said in why_not(kernel)


def test_a_bound_function_has_a_node_of_its_own_only_where_the_kernel_makes_one(kernel: Kernel) -> None:
    """Linux 6.1 shows the vfio device without a node: a holder would wait for one that never comes."""
    made = kernel.add("0000:3b:00.2", VFIO_PCI, "10de:1") / "vfio-dev/vfio0"
    made.mkdir(parents=True)
    groups = IommuGroups(kernel.root / "sys")
    assert groups.own_nodes("0000:3b:00.2") == set()
    (made / "dev").write_text("510:0\n")
    assert groups.own_nodes("0000:3b:00.2") == {"/dev/vfio/devices/vfio0"}


def test_a_link_that_is_down_and_a_disk_with_nothing_on_it_may_go(kernel: Kernel) -> None:
    interface(kernel, "0x1002")
    disk(kernel)
    assert why_not(kernel) == ""


def test_the_console_stays_without_a_driver_too(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.add(GPU, "", "10de:2330", boot_vga="1")
    assert "it shows the console" in why_not(kernel)


def test_a_bridge_is_handed_out_to_nobody(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.add(GPU, "pcieport", "10de:352a", **{"class": "0x060400"})
    assert "it is a bridge" in why_not(kernel)


@pytest.mark.parametrize("name", ["driver_override", "sriov_numvfs"])
def test_a_function_that_its_driver_does_not_let_go_stops_no_look(kernel: Kernel, name: str) -> None:
    file = kernel.root / "sys/devices/pci0000:3a" / GPU / name
    file.unlink(missing_ok=True)
    os.mkfifo(file)  # as the kernel's: who reads it waits for the device's lock
    look = threading.Thread(target=lambda: why_not(kernel), daemon=True)
    look.start()
    look.join(5)
    assert not look.is_alive()


# --- there and back


async def test_a_group_goes_there_and_back_and_nobody_has_its_gpu_meanwhile(kernel: Kernel) -> None:
    node = Node(kernel)
    assert node.binder.paused(node.devices) == {}
    await node.binder.bind(node.vm)
    assert kernel.drivers() == BOUND
    assert set(node.record) == {GPU, AUDIO}
    assert set(node.binder.paused(node.devices)) == {"gpu", "p", "disk"}
    assert node.said[0].endswith("goes to a virtual machine")
    assert node.said[-1] == "", "NVML goes on"
    steps = list(kernel.steps)
    await node.binder.bind(node.vm)
    await node.binder.give_back()
    assert kernel.steps == steps, "a container that starts again finds all done; what is held stays"
    node.hold(Owner.NONE)
    await node.binder.give_back()
    assert kernel.drivers() == BEFORE
    assert (node.record, node.binder.paused(node.devices)) == ({}, {})


@pytest.mark.parametrize("rebooted", [False, True])
@pytest.mark.parametrize("again", ["held", "free"])
@pytest.mark.parametrize("steps", range(7))
async def test_a_crash_between_any_two_steps_is_healed(kernel: Kernel, steps: int, again: str, rebooted: bool) -> None:
    node = Node(kernel)

    def crash() -> None:
        if len(kernel.steps) == steps:
            raise SystemError

    kernel.fails = crash
    if steps < 6:
        with pytest.raises(SystemError):
            await node.binder.bind(node.vm)
    else:
        await node.binder.bind(node.vm)
    kernel.fails = lambda: None
    if rebooted:
        for address, driver in kernel.native.items():
            place = kernel.root / "sys/devices/pci0000:3a" / address
            kernel.attach(place, driver)
            (place / "driver_override").write_text("(null)\n")
        node.boot_id.write_text("the next\n")
    node.start()
    if again == "held":
        await node.binder.bind(node.vm)
        assert kernel.drivers() == BOUND
    node.hold(Owner.NONE)
    await node.binder.give_back()
    assert kernel.drivers() == BEFORE
    if not rebooted:
        assert node.record == {}
    node.start()
    assert node.binder.paused(node.devices) == {}


async def test_what_the_node_binds_to_vfio_pci_at_boot_is_left_to_it(kernel: Kernel) -> None:
    node = Node(kernel)
    await node.binder.bind(node.vm)
    node.boot_id.write_text("the next\n")  # in which the functions have what a boot parameter or driverctl says
    node.start()
    node.hold(Owner.NONE)
    await node.binder.give_back()
    assert kernel.drivers() == BOUND


async def test_what_is_plugged_in_at_the_address_of_what_was_bound_is_left_alone(kernel: Kernel) -> None:
    node = Node(kernel)
    await node.binder.bind(node.vm)
    shutil.rmtree(kernel.root / "sys/devices/pci0000:3a" / GPU)
    (kernel.root / "sys/bus/pci/devices" / GPU).unlink()
    kernel.add(GPU, VFIO_PCI, "10de:2330", group="9")
    node.hold(Owner.NONE)
    await node.binder.give_back()
    assert kernel.drivers() == {**BEFORE, GPU: (VFIO_PCI, "")}
    assert node.record == {}


async def test_nothing_is_touched_for_who_does_not_hold_the_device(kernel: Kernel) -> None:
    node = Node(kernel)
    node.hold(Owner.NONE)
    with pytest.raises(HostError, match="not held any more"):
        await node.binder.bind(node.vm)
    assert kernel.steps == []
    await node.binder.give_back()
    assert node.binder.paused(node.devices) == {}


@pytest.mark.parametrize("released", ["on disk", "not on disk yet"])
async def test_nothing_is_touched_once_the_device_is_about_to_be_anothers(kernel: Kernel, released: str) -> None:
    """A release, and a grant of the GPU for containers after it, may wait for the disk meanwhile."""
    node = Node(kernel)
    free, held = Ledger.of([], NodeState(merged=True)), node.service.ledger
    ledgers = (held, free) if released == "not on disk yet" else (free, held)
    node.service.ledger, node.service.head = ledgers
    with pytest.raises(HostError, match="not held any more"):
        await node.binder.bind(node.vm)
    assert kernel.steps == []
    await node.binder.give_back()
    assert node.binder.paused(node.devices), "it may be taken: who may have it is not sure"


async def test_nothing_is_touched_while_the_record_cannot_be_written(kernel: Kernel) -> None:
    node = Node(kernel)
    (kernel.root / "vfio.json").mkdir()
    with pytest.raises(HostError, match="cannot be written"):
        await node.binder.bind(node.vm)
    assert kernel.steps == []


@pytest.mark.parametrize(
    "text", ["{", '{"version": 1, "functions": {"0000:3b:00.0": 3}}', '{"version": 2, "boot_id": "", "functions": {}}']
)
async def test_nothing_is_bound_after_a_record_that_cannot_be_read(kernel: Kernel, text: str) -> None:
    (kernel.root / "vfio.json").write_text(text)
    node = Node(kernel)
    with pytest.raises(HostError, match="not readable"):
        await node.binder.bind(node.vm)
    assert kernel.steps == []
    assert len(node.binder.notes) == 1
    assert "not readable" in node.binder.why_not(node.devices.values(), lambda name: False)[node.vm.name]


async def test_a_driver_that_does_not_let_go_ends_the_call_and_nobody_gets_the_gpu(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vfio_binder, "BIND_SECONDS", 0.2)
    node, lets_go = Node(kernel), threading.Event()

    def hang() -> None:
        if len(kernel.steps) == 1:
            lets_go.wait(60)

    kernel.fails = hang
    with pytest.raises(HostError, match=f"{GPU}: unbinding the driver has not ended"):
        await node.binder.bind(node.vm)
    node.hold(Owner.NONE)
    await node.binder.give_back()
    assert set(node.binder.paused(node.devices)) == {"gpu", "p", "disk"}
    assert node.said[-1] != "", "NVML would open the GPU again"
    why = node.binder.why_not([node.vm], lambda name: False)[node.vm.name]
    assert "unbinding the driver has not ended" in why, "nobody new comes to wait for it"
    lets_go.set()

    async def back() -> bool:
        await node.binder.give_back()
        return kernel.drivers() == BEFORE

    await until(back, 20)
    await node.binder.give_back()
    assert node.binder.paused(node.devices) == {}
    assert node.said[-1] == ""


async def test_a_driver_that_does_not_come_back_keeps_the_gpu_from_everybody_and_is_said(kernel: Kernel) -> None:
    node = Node(kernel)
    await node.binder.bind(node.vm)
    node.hold(Owner.NONE)
    kernel.native[GPU] = ""
    await node.binder.give_back()
    (note,) = node.binder.notes
    assert "asking the kernel for a driver had no effect: it has no driver, not nvidia" in note
    assert set(node.binder.paused(node.devices)) == {"gpu", "p", "disk"}
    kernel.native[GPU] = "nvidia"
    await node.binder.give_back()
    assert kernel.drivers() == BEFORE
    await node.binder.give_back()
    assert node.binder.notes == []


async def test_what_a_process_has_open_is_not_unbound(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vfio_binder, "CLOSE_SECONDS", 0.1)
    (kernel.root / "sys/devices/pci0000:3a" / GPU / "drm/card0").mkdir(parents=True)
    (kernel.root / "sys/devices/pci0000:3a" / GPU / "drm/card0/dev").write_text("1:3\n")
    (kernel.root / "sys/devices/pci0000:3a" / GPU / "drm/card0/subsystem").symlink_to("/sys/class/drm")
    (kernel.root / "proc/42/fd").mkdir(parents=True)
    (kernel.root / "proc/42/comm").write_text("player\n")
    (kernel.root / "proc/42/fd/7").symlink_to("/dev/null")
    node = Node(kernel)
    with pytest.raises(HostError, match=r"is open in process 42 \(player\)"):
        await node.binder.bind(node.vm)
    assert kernel.steps == []
    (kernel.root / "proc/42/fd/7").unlink()
    await node.binder.bind(node.vm)
    assert kernel.drivers() == BOUND


async def test_nothing_goes_back_before_the_ledger_knows_who_holds_what(kernel: Kernel) -> None:
    node = Node(kernel)
    await node.binder.bind(node.vm)
    node.service.ledger = node.service.head = Ledger.of([], NodeState())
    await node.binder.give_back()
    assert kernel.drivers() == BOUND


async def test_a_node_that_goes_away_during_the_look_ends_no_other_upkeep(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(kernel)
    await node.binder.bind(node.vm)
    node.hold(Owner.NONE)

    def gone(self: IommuGroups, group: str) -> str:
        raise FileNotFoundError(2, "No such file or directory", f"/dev/vfio/{group}")

    monkeypatch.setattr(IommuGroups, "group_user", gone)
    await node.binder.give_back()
    assert len(node.binder.notes) == 1
    assert kernel.drivers() == BOUND


async def test_two_calls_at_once_bind_once(kernel: Kernel) -> None:
    node = Node(kernel)
    await asyncio.gather(*(node.binder.bind(node.vm) for _ in range(3)))
    assert len(kernel.steps) == 6


async def test_a_device_that_could_not_be_bound_is_offered_to_nobody_and_its_reason_is_shown(kernel: Kernel) -> None:
    node = Node(kernel, {"allow": ["10de:2330"]})
    node.hold(Owner.NONE)
    paths = Paths.of("d.io", kubelet=kernel.root)
    paths.state.mkdir(parents=True)
    withheld = WithheldDevices(OtherAgents(paths, "d.io", "n"), HostMounts(kernel.root / "sys", kernel.root / "proc"))

    async def look() -> Device:
        snapshot = Snapshot(1, (node.vm,))
        shown = await withheld.update(snapshot, node.service.ledger, not_for_vfio=node.binder.why_not)
        return shown.devices[0]

    device = await look()
    assert device.presence is Presence.FAULTY
    assert f"{AUDIO} (10de:22a3, snd_hda_intel) may not be bound" in device.reason
    node.hold(Owner.DRA_PREPARED)
    assert (await look()).presence is Presence.PRESENT, "who has it is in nobody's way"
    kernel.attach(kernel.root / "sys/devices/pci0000:3a" / AUDIO, "")
    node.hold(Owner.NONE)
    assert (await look()).presence is Presence.PRESENT
    assert withheld.again_seconds, "a mount sends no event"


@pytest.mark.root
@pytest.mark.loopdev
def test_a_disk_that_the_kernel_has_opened_itself_stays_with_its_driver(kernel: Kernel) -> None:
    """As a target or a replica does: no process has it open, by what the files of processes show."""
    dev = kernel.root / "dev"
    groups = IommuGroups(kernel.root / "sys", kernel.root / "proc", kernel.root / "udev", dev)
    with loop_devices() as loops:
        loops.add(0)
        path, major, minor = dev / f"block/7:{loops.number(0)}", 7, loops.number(0)
        path.parent.mkdir()
        os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(major, minor))
        disk = [Function(GPU, "1b36:0010", "nvme", nodes=(DeviceNode("", "", kind="b", major=major, minor=minor),))]
        assert groups.opened(disk) == ""
        kept = os.open(path, os.O_RDONLY | os.O_EXCL)
        try:
            assert "has a disk that the kernel uses" in groups.opened(disk)
        finally:
            os.close(kept)
