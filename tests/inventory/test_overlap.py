"""Hardware that a changed configuration knows by its child, parent or companion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.config.schema import Config
from drabridge.inventory.builder import DeviceBuilder
from drabridge.inventory.devices import Device
from drabridge.inventory.identity import Key
from drabridge.inventory.nvidia import NOTHING
from drabridge.inventory.udev_device import UdevDevice
from drabridge.ledger.entries import LedgerDevice
from tests.support.hardware import MemoryHost, config, record

HUB = record("/sys/devices/pci0000:00/0000:00:14.0/1-1", "usb", devtype="usb_device", devnode="/dev/bus/usb/001/002")
RECORDS: dict[str, UdevDevice] = {}


def add(syspath: str, subsystem: str, above: UdevDevice, devnode: str = "", **more: Any) -> UdevDevice:
    found = record(syspath, subsystem, above, devnode=devnode, **more)
    RECORDS[syspath] = found
    return found


def stick(port: str, number: int) -> UdevDevice:
    return add(f"{HUB.syspath}/{port}", "usb", HUB, f"/dev/bus/usb/001/{number:03}", devtype="usb_device")


STICK, OTHER = stick("1-1.1", 3), stick("1-1.2", 4)
PART = add(f"{STICK.syspath}/1-1.1:1.0", "usb", STICK, devtype="usb_interface")
TTY = add(f"{PART.syspath}/ttyUSB0", "tty", PART, "/dev/ttyUSB0")
TTY2 = add(f"{PART.syspath}/ttyUSB1", "tty", PART, "/dev/ttyUSB1")
HID = add(f"{PART.syspath}/hidraw0", "hidraw", PART, "/dev/hidraw0")
LED = add(f"{PART.syspath}/led", "leds", PART)
NODES = {"/dev/ctl": (195, 255)} | {
    each.devnode: (180, number) for number, each in enumerate(RECORDS.values()) if each.devnode
}
USB: dict[str, Any] = {"subsystem": "usb", "devtype": "usb_device"}
GROUP: dict[str, Any] = {"nodes": [{"from": "devnode", "optional": True}, {"from": "group", "optional": True}]}


def resource(match: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": f"example.com/{match['subsystem']}", "match": [match], "id": ["{sysname}"]} | more


def with_(scope: str, **match: Any) -> dict[str, Any]:
    return GROUP | {"group": {"with": scope, "match": [match]}}


CONFIGS = {
    "stick": config(resource(USB | {"sysname": STICK.sysname})),
    "sticks": config(resource(USB)),
    "stick and all below": config(resource(USB, **with_("children", subsystem=["tty", "hidraw"]))),
    "part": config(resource({"subsystem": "usb", "devtype": "usb_interface"}, nodes=[])),
    "tty": config(resource({"subsystem": "tty"})),
    "tty and stick": config(resource({"subsystem": "tty"}, **with_("parent", sysname=STICK.sysname))),
    "tty and hid": config(resource({"subsystem": "tty"}, **with_("siblings", subsystem="hidraw"))),
    "hid": config(resource({"subsystem": "hidraw"})),
    "hid and stick": config(resource({"subsystem": "hidraw"}, **with_("parent", sysname=STICK.sysname))),
    "led": config(resource({"subsystem": "leds"}, nodes=[])),
    "side by side": config(resource(USB), resource({"subsystem": "tty"})),
}


class Bench:
    """The machine, and a configuration that changes. ``held`` are the names that somebody holds."""

    def __init__(self, first: Config, instead: Mapping[str, UdevDevice] | None = None) -> None:
        self.records = RECORDS | dict(instead or {})
        self.held: set[str] = set()
        self.given: dict[Key, str] = {}
        self.unready = ""
        self.builder = DeviceBuilder(first, MemoryHost(NODES))
        self.look()

    def look(self, fresh: bool = True) -> dict[str, Device]:
        built = self.builder.build(
            self.records,
            NOTHING,
            known_ids=self.given,
            held=self.held.__contains__,
            ready=lambda seen: seen.syspath != self.unready,
            fresh=fresh,
        )
        self.given |= {(device.resource, device.syspath): device.id for device in built.devices}
        return {device.id: device for device in built.devices}

    def hold(self, device_id: str) -> None:
        self.held = {self.look()[device_id].name}

    def change(self, new: Config) -> None:
        self.builder = DeviceBuilder(new, MemoryHost(NODES), self.builder.named_by)


def same(devices: dict[str, Device], one: str, other: str) -> bool:
    """Whether the ledger is told that the two overlap; it is asked from either side."""
    first, second = LedgerDevice.of(devices[one]), LedgerDevice.of(devices[other])
    assert first.same_place(second) is second.same_place(first)
    return first.same_place(second)


def places(device: Device) -> tuple[str, ...]:
    """The syspaths of what it hands out, or overlaps with, as well."""
    return tuple(place for place in device.also_at if place.startswith("/sys/"))


CHANGES = [
    ("stick", "tty", "1-1.1", "ttyUSB0"),  # its child's child
    ("tty", "stick", "ttyUSB0", "1-1.1"),
    ("stick and all below", "tty", "1-1.1", "ttyUSB0"),
    ("tty", "stick and all below", "ttyUSB0", "1-1.1"),
    ("part", "hid", "1-1.1:1.0", "hidraw0"),
    ("tty and hid", "hid", "ttyUSB0", "hidraw0"),  # beside it
    ("hid", "tty and hid", "hidraw0", "ttyUSB1"),
    ("tty and stick", "hid and stick", "ttyUSB1", "hidraw0"),  # both have the stick's node
    ("tty and stick", "hid", "ttyUSB0", "hidraw0"),  # below what the other hands out
    ("hid", "tty and stick", "hidraw0", "ttyUSB0"),
    ("stick", "led", "1-1.1", "led"),
]


@pytest.mark.parametrize(("before", "after", "old", "new"), CHANGES)
def test_held_hardware_overlaps_with_its_new_name_until_it_is_let_go(
    before: str, after: str, old: str, new: str
) -> None:
    bench = Bench(CONFIGS[before])
    bench.hold(old)
    bench.change(CONFIGS[after])
    for fresh in (True, False, True):
        devices = bench.look(fresh)
        assert devices[old].former
        assert same(devices, old, new)
        assert not any(same(devices, old, other) for other in devices if other == OTHER.sysname)
    bench.change(CONFIGS[after])
    assert same(bench.look(), old, new), "changed again"
    bench.held = set()
    assert bench.look(fresh=False) == Bench(CONFIGS[after]).look()


def test_a_held_device_that_udevd_is_not_done_with_overlaps_as_well() -> None:
    tagged = resource(USB | {"sysname": STICK.sysname, "property": {"ID_MODEL": "x"}}, id=["{sysname}"])
    bench = Bench(config(tagged), {STICK.syspath: replace(STICK, properties={"ID_MODEL": "x"})})
    bench.hold(STICK.sysname)
    bench.change(CONFIGS["tty"])
    bench.unready = STICK.syspath
    devices = bench.look()
    assert STICK.sysname not in devices
    assert places(devices["ttyUSB0"]) == (STICK.syspath,)


def test_what_the_configuration_of_the_held_one_had_side_by_side_does_not_overlap() -> None:
    renamed = config(resource(USB, id=["stick-{sysname}"]), resource({"subsystem": "tty"}, id=["tty-{sysname}"]))
    for held, other in ((STICK.sysname, "tty-ttyUSB0"), ("ttyUSB0", "stick-1-1.1")):
        bench = Bench(CONFIGS["side by side"])
        bench.hold(held)
        bench.change(renamed)
        devices = bench.look()
        assert devices[held].former
        assert not same(devices, held, other)
    devices = bench.look()
    assert not any(places(device) for device in devices.values() if not device.former)


def test_a_device_overlaps_with_the_devices_that_it_hands_out() -> None:
    below = with_("children", subsystem=["tty", "leds"])
    both = config(resource(USB, **below), resource({"subsystem": "tty"}), resource({"subsystem": "leds"}, nodes=[]))
    devices = Bench(both).look()
    assert places(devices[STICK.sysname]) == (TTY.syspath, TTY2.syspath)
    assert same(devices, STICK.sysname, "ttyUSB0")
    assert not same(devices, "ttyUSB0", "ttyUSB1")
    assert not same(devices, STICK.sysname, "led"), "it has no node"
    assert not same(devices, OTHER.sysname, "ttyUSB0")
    unused = Bench(config(resource(USB, **below | {"nodes": [{"from": "devnode"}]}), resource({"subsystem": "tty"})))
    assert not any(places(device) for device in unused.look().values()), "companions without a use for their nodes"


def test_devices_that_have_a_node_in_common_do_not_overlap_for_that() -> None:
    shared = [{"from": "devnode"}, {"path": "/dev/ctl"}, {"path": TTY.devnode}]
    devices = Bench(config(resource(USB, nodes=shared), resource({"subsystem": "tty"}))).look()
    assert len(devices[STICK.sysname].nodes) == 3
    assert not any(places(device) for device in devices.values()), "the operator lists them for every device"
    ports = Bench(CONFIGS["tty and stick"]).look()
    assert places(ports["ttyUSB0"]) == places(ports["ttyUSB1"]) == (STICK.syspath,)
    assert not same(ports, "ttyUSB0", "ttyUSB1"), "two ports of one adapter"
