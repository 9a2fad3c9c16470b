"""Devices with one device node in common are one piece of hardware: at most one of them is held."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.config.loader import load
from drabridge.config.problems import Problems
from drabridge.inventory.devices import Device, Presence
from drabridge.inventory.udev_device import UdevDevice
from drabridge.ledger.entries import ClaimRef
from drabridge.ledger.events import (
    ClaimAllocated,
    DeviceUse,
)
from tests.support.hardware import config, record
from tests.support.inventory_and_ledger import Machine

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "examples"
CLAIM, OTHER = ClaimRef("u1", "ns", "c"), ClaimRef("u2", "ns", "d")


# --- one IOMMU group ---


def function(slot: str, group: int) -> UdevDevice:
    links = {"physfn": "/sys/devices/pci0000:3a/0000:3b:00.0", "iommu_group": f"/sys/kernel/iommu_groups/{group}"}
    attributes = {"vendor": "0x15b3", "class": "0x020000"}
    place = f"/sys/devices/pci0000:3a/{slot}"
    return record(place, "pci", driver="vfio-pci", attributes=attributes, links=links)


VFIO = {"/dev/vfio/12": (511, 0), "/dev/vfio/13": (511, 1), "/dev/vfio/vfio": (10, 196)}
ONE, BESIDE, APART = (function(f"0000:3b:02.{n}", group) for n, group in enumerate((12, 12, 13)))


@pytest.fixture
def functions() -> tuple[Machine, str, str, str]:
    machine = Machine(load(EXAMPLES / "sriov-vf.yaml"), dict(VFIO))
    one, beside, apart = machine.see(ONE, BESIDE, APART)
    return machine, one, beside, apart


@pytest.mark.parametrize("first", ["pod", "claim"])
def test_functions_of_one_iommu_group_have_one_holder(functions: tuple[Machine, str, str, str], first: str) -> None:
    machine, one, beside, apart = functions
    assert all(map(machine.offered, functions[1:])), "a path that every device has is nobody's own"
    for name in (beside, apart) if first == "pod" else functions[1:]:
        machine.to_claims(name)
    assert machine.allocate(one) if first == "pod" else machine.prepare(OTHER, one)
    assert (machine.offered(beside), machine.offered(apart)) == (False, True)
    assert not machine.prepare(CLAIM, beside)
    assert f"{beside} shares its hardware with {one}" in machine.said
    assert machine.prepare(CLAIM, apart)
    if first == "pod":
        machine.let_go()
        assert machine.prepare(CLAIM, beside)


def test_one_claim_or_one_container_may_have_several_functions_of_a_group(
    functions: tuple[Machine, str, str, str],
) -> None:
    """A card's GPU and its sound, say."""
    machine, one, beside, apart = functions
    assert machine.allocate(one, beside)
    machine.let_go()
    for name in (one, beside, apart):
        machine.to_claims(name)
    assert machine.do(ClaimAllocated(CLAIM, (DeviceUse(one), DeviceUse(beside)), machine.now))
    assert machine.prepare(CLAIM, one, beside)
    assert not machine.prepare(OTHER, one)


def test_parts_that_go_by_their_wholes_node_have_holders_side_by_side_unless_it_is_a_groups() -> None:
    """A driver keeps parts apart behind one node, as NVIDIA's does with MIG; vfio does not."""
    for directory, apart in (("/dev", True), ("/dev/vfio", False)):
        nodes = [{"path": f"{directory}/{{attr:group}}"}]
        whole = {"name": "example.com/whole", "match": [{"subsystem": "whole"}], "id": ["{sysname}"], "nodes": nodes}
        partition = {"of": "example.com/whole", "by": "link:physfn"}
        part = whole | {"name": "example.com/part", "match": [{"subsystem": "part"}], "partition": partition}
        like: dict[str, Any] = {"links": {"physfn": "/sys/devices/w"}, "attributes": {"group": "12"}}
        parts = [record(f"/sys/devices/p{n}", "part", **like) for n in range(2)]
        machine = Machine(config(whole, part), {f"{directory}/12": (195, 0)})
        machine.see(record("/sys/devices/w", "whole", attributes={"group": "12"}), *parts)
        assert machine.allocate("p0")
        assert machine.allocate("p1") is apart
        assert not machine.allocate("w")


# --- a number that is used again ---

HUB = record("/sys/devices/pci0000:00/0000:00:14.0/usb1", "usb")


def stick(port: int, serial: str, number: int) -> UdevDevice:
    attributes = {"idVendor": "0403", "idProduct": "6001"}
    usb = record(f"{HUB.syspath}/1-{port}", "usb", HUB, devtype="usb_device", attributes=attributes)
    interface = record(f"{usb.syspath}/1-{port}:1.0", "usb", usb, devtype="usb_interface")
    return record(
        f"{interface.syspath}/tty/ttyUSB{number}",
        "tty",
        interface,
        devnode=f"/dev/ttyUSB{number}",
        devnum=(188, number),
        properties={"ID_SERIAL_SHORT": serial, "ID_PATH": f"pci-usb-0:{port}:1.0"},
    )


@pytest.fixture
def sticks() -> tuple[Machine, str]:
    """A machine whose only stick, 188:0, a pod has."""
    nodes = {f"/dev/ttyUSB{number}": (188, number) for number in range(3)}
    machine = Machine(load(EXAMPLES / "usb-serial.yaml"), nodes)
    (name,) = machine.see(stick(1, "A1", 0))
    assert machine.allocate(name)
    return machine, name


def other_than(devices: Mapping[str, Device], name: str) -> str:
    (found,) = (n for n, d in devices.items() if n != name and d.presence is Presence.PRESENT)
    return found


@pytest.mark.parametrize("restarted", [False, True])
def test_a_number_that_a_running_container_has_is_given_to_nobody_else(
    sticks: tuple[Machine, str], restarted: bool
) -> None:
    machine, held = sticks
    machine.see()  # it is pulled out
    if restarted:
        machine.start()
    new = other_than(machine.see(stick(2, "B2", 0)), held)
    assert not machine.offered(new)
    assert not machine.allocate(new)
    machine.let_go()
    assert machine.offered(new)
    assert machine.allocate(new)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_number_that_a_held_device_had_before_it_was_plugged_in_again_is_given_to_nobody_else(
    sticks: tuple[Machine, str], restarted: bool
) -> None:
    machine, held = sticks
    machine.see()
    machine.see(again := stick(1, "A1", 1))  # something else had 188:0 in between
    if restarted:
        machine.start()
    new = other_than(machine.see(again, stick(2, "B2", 0)), held)
    assert not machine.offered(new)
    assert not machine.allocate(new)
    third = stick(3, "C3", 2)
    (free,) = machine.see(again, stick(2, "B2", 0), third).keys() - {held, new}
    assert machine.offered(free)
    machine.let_go()
    assert machine.allocate(new)
    assert machine.allocate(held)


def test_what_is_gone_and_free_keeps_its_number_from_nobody(sticks: tuple[Machine, str]) -> None:
    machine, name = sticks
    machine.let_go()
    machine.see()
    new = other_than(machine.see(stick(2, "B2", 0)), name)
    machine.to_claims(new)
    assert machine.offered(new)
    assert machine.prepare(CLAIM, new)


def test_the_number_of_a_companion_is_given_to_nobody_else_either() -> None:
    resource = {
        "name": "example.com/stick",
        "match": [{"subsystem": "usb", "devtype": "usb_device"}],
        "id": ["{sysname}"],
        "nodes": [{"from": "group"}],
        "group": {"with": "children", "match": [{"subsystem": "tty"}]},
    }
    tty = {"name": "example.com/tty", "match": [{"subsystem": "tty", "sysname": "ttyACM*"}], "id": ["{sysname}"]}
    machine = Machine(config(resource, tty), {"/dev/ttyUSB0": (188, 0), "/dev/ttyACM0": (188, 0)})
    port = stick(1, "A1", 0)
    usb = port.above and port.above.above
    assert usb is not None
    (held,) = machine.see(usb, port)
    assert machine.allocate(held)
    machine.see()
    there = record("/sys/devices/x/ttyACM0", "tty", devnode="/dev/ttyACM0", devnum=(188, 0))
    new = other_than(machine.see(there), held)
    assert not machine.allocate(new)
    machine.let_go()
    assert machine.allocate(new)


# --- a function for containers, and bound to vfio-pci for virtual machines ---


MACHINES: dict[str, Any] = {
    "name": "example.com/vm",
    "match": [{"subsystem": "pci", "attr": {"vendor": "0x10de"}}],
    "vfio": {"allow": ["10de:*"]},
}


def gpu(driver: str, slot: str = "0000:3b:00.0") -> UdevDevice:
    links = {"iommu_group": "/sys/kernel/iommu_groups/7"}
    place = f"/sys/devices/pci0000:3a/{slot}"
    return record(place, "pci", driver=driver, attributes={"vendor": "0x10de"}, links=links)


def test_a_function_is_a_device_for_containers_and_one_for_machines_and_one_of_them_is_held() -> None:
    containers = {"name": "example.com/gpu", "match": [{"subsystem": "pci", "driver": "nvidia"}], "id": ["{pci}"]}
    machine = Machine(config(containers, MACHINES), {})
    free, bound = gpu("nvidia"), gpu("vfio-pci")
    found = machine.see(free)
    vm = next(name for name in found if name.startswith("vfio-"))
    assert set(found) == {"pci-0000-3b-00-0", vm}
    device = found[vm]
    assert [(node.path, node.major) for node in device.nodes] == [("/dev/vfio/vfio", 0), ("/dev/vfio/7", 0)]
    assert dict(device.env) == {"PCI_RESOURCE_EXAMPLE_COM_VM": "0000:3b:00.0"}
    assert (device.pci_bus_id, device.presence) == ("0000:3b:00.0", Presence.PRESENT)
    assert machine.allocate("pci-0000-3b-00-0")
    assert not machine.offered(vm)
    machine.let_go()
    assert machine.allocate(vm)
    assert not machine.offered("pci-0000-3b-00-0")
    assert machine.see(bound)[vm] == device, "its identity does not change with its driver, nor its health"
    machine.start()
    assert machine.see(bound)[vm] == device
    machine.let_go()
    assert set(machine.see(free)) == set(found)
    assert machine.allocate("pci-0000-3b-00-0")
    assert not machine.allocate(vm)


def test_what_is_below_a_function_or_beside_it_in_its_group_goes_with_it() -> None:
    below = {"name": "example.com/card", "match": [{"subsystem": "drm"}], "id": ["{sysname}"], "nodes": []}
    machine = Machine(config(below, MACHINES), {})
    function, beside = gpu("amdgpu"), gpu("snd", "0000:3b:00.1")
    card = record(f"{function.syspath}/drm/card0", "drm", above=function)
    one, other = (name for name in machine.see(function, beside, card) if name.startswith("vfio-"))
    assert machine.allocate("card0")
    assert not machine.offered(one)
    assert not machine.offered(other), "it would take the function with the card along"
    machine.let_go()
    assert machine.allocate(other)
    assert not any(map(machine.offered, (one, "card0")))


def test_a_function_whose_card_is_a_companion_of_what_somebody_has_goes_to_no_machine() -> None:
    group = {"with": "siblings", "match": [{"subsystem": "drm"}]}
    cards = {"name": "example.com/gpu", "match": [{"subsystem": "pci", "driver": "nvidia"}], "group": group}
    machine = Machine(config({**cards, "id": ["{pci}"], "nodes": [{"from": "group"}]}, MACHINES), {"/dev/c": (226, 0)})
    port = record("/sys/devices/pci0000:3a", "pci_bus")
    function = replace(gpu("nvidia"), above=port)
    links = {"iommu_group": "/sys/kernel/iommu_groups/8"}
    beside = replace(gpu("nouveau", "0000:3b:00.1"), above=port, links=links)
    card = record(f"{beside.syspath}/drm/c", "drm", above=beside, devnode="/dev/c", devnum=(226, 0))
    found = machine.see(function, beside, card)
    assert [node.path for node in found["pci-0000-3b-00-0"].nodes] == ["/dev/c"]
    _, other = (name for name in found if name.startswith("vfio-"))
    assert machine.allocate("pci-0000-3b-00-0")
    assert not machine.allocate(other)
    machine.let_go()
    assert machine.allocate(other)
    assert not machine.allocate("pci-0000-3b-00-0")


def test_the_node_of_a_bound_function_comes_with_iommufd() -> None:
    machine = Machine(config(MACHINES), {"/dev/vfio/devices/vfio3": (511, 3)})
    function = gpu("vfio-pci")
    node = record(
        f"{function.syspath}/vfio-dev/vfio3",
        "vfio-dev",
        above=function,
        devnode="/dev/vfio/devices/vfio3",
        devnum=(511, 3),
    )
    (device,) = machine.see(function, node).values()
    assert {one.path for one in device.nodes} == {
        *("/dev/vfio/vfio", "/dev/vfio/7", "/dev/vfio/devices/vfio3", "/dev/iommu")
    }


def test_a_function_in_no_iommu_group_is_said_to_be_in_none() -> None:
    (device,) = Machine(config(MACHINES), {}).see(record("/sys/devices/pci0000:3a/0000:3b:00.0", "pci", attributes={
        "vendor": "0x10de"
    })).values()  # fmt: skip
    assert device.presence is Presence.FAULTY
    assert "switch the IOMMU on" in device.reason


@pytest.mark.parametrize(
    "more",
    [
        {"match": [{"subsystem": "pci", "driver": "nvidia"}]},
        {"replicas": {"count": 2}},
        {"sharing": {"allowMultipleAllocations": True}},
        {"vfio": {"allow": []}},
        {"vfio": {"allow": ["nvidia"]}},
    ],
)
def test_what_makes_no_sense_beside_vfio_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(Problems):
        config({**MACHINES, **more})
