"""From records to devices: nodes, companions, health, attributes, mounts; without a machine."""

from __future__ import annotations

from typing import Any

import pytest

from drabridge.inventory.builder import BuildResult, DeviceBuilder
from drabridge.inventory.devices import Device, DeviceNode, Mount, Presence, Semver
from drabridge.inventory.nvidia import NOTHING
from drabridge.inventory.udev_device import UdevDevice
from drabridge.inventory.udev_scope import scope_of
from drabridge.offers.attributes import describe
from tests.support.hardware import MemoryHost, config, record

BUS = record("/sys/devices/pci0000:00/0000:00:14.0", "pci", attributes={"numa_node": "0"})
CARD_PATH = "/sys/devices/pci0000:00/0000:00:14.0/1-4"


def card(**more: Any) -> UdevDevice:
    base: dict[str, Any] = {
        "devtype": "usb_device",
        "devnode": "/dev/bus/usb/001/004",
        "devnum": (189, 3),
        "attributes": {"serial": "A1", "speed": "480", "version": " 2.00", "memory": "512"},
        "driver": "usb",
    }
    return record(CARD_PATH, "usb", BUS, **base | more)


def child(name: str, minor: int | None, parent: UdevDevice, subsystem: str = "tty") -> UdevDevice:
    return record(
        f"{parent.syspath}/{name}",
        subsystem,
        parent,
        devnode=f"/dev/{name}" if minor is not None else "",
        devnum=(188, minor) if minor is not None else None,
    )


RESOURCE: dict[str, Any] = {
    "name": "example.com/card",
    "match": [{"subsystem": "usb", "devtype": "usb_device"}],
    "id": ["{attr:serial}"],
}


def build(records: list[UdevDevice], host: MemoryHost, **more: Any) -> BuildResult:
    builder = DeviceBuilder(config(RESOURCE | more), host)
    return builder.build({item.syspath: item for item in records}, NOTHING, known_ids={}, held=lambda name: False)


def one(records: list[UdevDevice], host: MemoryHost, **more: Any) -> Device:
    built = build(records, host, **more)
    assert not built.collisions
    (device,) = built.devices
    return device


HOST = {"/dev/bus/usb/001/004": (189, 3)}

ENV = {
    "SERIAL": "{attr:serial}",
    "NAME": "{name}",
    "NONE": "{attr:none}",
    "OF_{resource}": "{attr:serial}",
    "OF_{attr:none}": "{attr:serial}",
}


def test_the_whole_record_of_a_plain_device() -> None:
    device = one([card()], MemoryHost(HOST), env=ENV)
    assert device.presence is Presence.PRESENT
    assert (device.name, device.id, device.resource) == ("a1", "A1", "example.com/card")
    assert device.nodes == (DeviceNode("/dev/bus/usb/001/004", "/dev/bus/usb/001/004", "rw", "c", 189, 3),)
    assert (device.pci_bus_id, device.pcie_root, device.numa_nodes) == ("", "pci0000:00", (0,))  # a USB device
    assert device.env == {"SERIAL": "A1", "NAME": "a1", "OF_example_com_card": "A1"}
    assert device.units == ("A1",)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([{"from": "devnode"}], ""),
        ([{"path": "/dev/other"}], "/dev/other: no such file or directory"),
        ([{"path": "/dev/other", "optional": True}], ""),
        ([{"path": "/dev/x{attr:none}"}], "/dev/x{attr:none} cannot be filled in: {attr:none} has no value"),
        ([{"path": "/dev/x{attr:none}", "optional": True}], ""),
        ([{"from": "group"}], "no companion with a device node was found"),
        ([{"from": "devnode", "as": "/dev/{attr:none}"}], "the alias /dev/{attr:none} cannot be filled in"),
    ],
)
def test_a_required_node_that_is_missing_makes_the_device_faulty(nodes: list[dict[str, Any]], reason: str) -> None:
    more = {"group": {"with": "children"}} if nodes == [{"from": "group"}] else {}
    device = one([card()], MemoryHost(HOST), nodes=nodes, **more)
    assert (device.presence, device.reason) == (Presence.FAULTY if reason else Presence.PRESENT, reason)


def test_a_node_with_the_number_of_another_device_is_not_handed_out() -> None:
    device = one([card()], MemoryHost({"/dev/bus/usb/001/004": (189, 7)}), nodes=[{"from": "devnode"}])
    assert device.presence is Presence.FAULTY
    assert device.reason == "/dev/bus/usb/001/004 has the number 189:7, but the kernel says 189:3"
    assert device.nodes == ()


def test_a_device_without_a_node_is_faulty_only_when_it_needs_one() -> None:
    bare = card(devnode="", devnum=None)
    assert one([bare], MemoryHost()).presence is Presence.PRESENT  # the default node is optional
    assert one([bare], MemoryHost(), nodes=[{"from": "devnode"}]).reason == "it has no device node"
    unconcerned = one([bare], MemoryHost(), nodes=[{"from": "devnode"}], health=[{"nodeExists": False}])
    assert unconcerned.presence is Presence.PRESENT


def test_a_path_from_hardware_cannot_leave_its_directory() -> None:
    evil = card(attributes={"serial": "../sda"})
    host = MemoryHost(HOST | {"/dev/serial/../sda": (8, 0), "/dev/sda": (8, 0)})
    device = one([evil], host, nodes=[{"path": "/dev/serial/{attr:serial}"}])
    assert device.presence is Presence.FAULTY
    assert "leave the directory" in device.reason
    assert not any(".." in path for path in host.asked)


def test_companions_below_the_device_bring_their_nodes_under_aliases() -> None:
    top = card()
    interface = child("1-4:1.0", None, top, "usb")
    records = [top, interface, child("ttyUSB0", 0, interface), child("ttyUSB1", 1, interface)]
    stranger = record("/sys/devices/pci0000:00/0000:00:14.0/1-40", "tty", BUS, devnode="/dev/ttyX", devnum=(188, 9))
    host = MemoryHost({"/dev/ttyUSB0": (188, 0), "/dev/ttyUSB1": (188, 1), "/dev/ttyX": (188, 9)})
    device = one(
        [*records, stranger],
        host,
        group={"with": "children", "match": [{"subsystem": "tty"}]},
        nodes=[{"from": "group", "as": "/dev/card/{devname}", "permissions": "r"}],
    )
    assert [(node.path, node.container_path, node.permissions) for node in device.nodes] == [
        ("/dev/ttyUSB0", "/dev/card/ttyUSB0", "r"),
        ("/dev/ttyUSB1", "/dev/card/ttyUSB1", "r"),
    ]


def test_companions_beside_above_and_in_the_iommu_group() -> None:
    group = {"iommu_group": "/sys/kernel/iommu_groups/9"}
    bridge = record("/sys/devices/pci0000:00/0000:00:01.0", "pci")
    functions = [
        record(f"/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.{n}", "pci", bridge, links=group, devnode=f"/dev/f{n}")
        for n in range(2)
    ]
    lonely = record("/sys/devices/pci0000:00/0000:00:02.0", "pci", devnode="/dev/lonely")
    host = MemoryHost({"/dev/f0": (1, 0), "/dev/f1": (1, 1), "/dev/lonely": (1, 2)})
    found = {}
    for scope in ("siblings", "iommuGroup", "parent"):
        device = one(
            [bridge, *functions, lonely],
            host,
            match=[{"subsystem": "pci", "sysname": "0000:01:00.0"}],
            id=["{sysname}"],
            group={"with": scope},
            nodes=[{"from": "group", "optional": True}],
        )
        found[scope] = [node.path for node in device.nodes]
    assert found == {"siblings": ["/dev/f1"], "iommuGroup": ["/dev/f1"], "parent": []}


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"driverBound": "usb"}, ""),
        ({"driverBound": ["a", "b"]}, 'the driver usb is bound, expected "a" or "b"'),
        ({"attr": {"speed": "480|5000"}}, ""),
        ({"attr": {"speed": "5000"}}, 'the attribute speed is "480", expected "5000"'),
        ({"attr": {"none": "1"}}, 'the attribute none is nothing, expected "1"'),
        ({"file": {"/run/{attr:serial}/state": "ok"}}, ""),
        ({"file": {"/run/{attr:serial}/state": "good"}}, '/run/A1/state says "ok", expected "good"'),
        ({"file": {"/run/none": "*"}}, '/run/none says nothing, expected "*"'),
        ({"file": {"/run/none": ["", "ok"]}}, ""),  # only the empty pattern matches a file that is missing
        ({"file": {"/run/{attr:none}/state": ["", "ok"]}}, ""),
        ({"file": {"/run/{attr:serial}/state": ""}}, '/run/A1/state says "ok", expected ""'),
    ],
)
def test_health_rules_say_what_is_wrong(rule: dict[str, Any], reason: str) -> None:
    host = MemoryHost(HOST, {"/run/A1/state": "ok"})
    device = one([card()], host, health=[rule])
    assert (device.presence, device.reason) == (Presence.FAULTY if reason else Presence.PRESENT, reason)


def test_a_file_that_does_not_answer_is_not_a_missing_one() -> None:
    host = MemoryHost(HOST, silent={"/run/A1/state"})
    device = one([card()], host, health=[{"file": {"/run/{attr:serial}/state": ["", "ok"]}}])
    assert (device.presence, device.reason) == (Presence.FAULTY, "/run/A1/state does not answer")


def test_attributes_and_capacity_are_typed() -> None:
    device = one(
        [card()],
        MemoryHost(HOST),
        attributes={
            "speed": {"from": "attr:speed", "type": "int"},
            "usb": {"from": "attr:version", "type": "version"},
            "bad": {"from": "attr:serial", "type": "int"},
            "shared": {"value": False},
            "zero": {"value": 0},
            "model": {"value": "X"},
            "firmware": {"value": "1.2.3", "type": "version"},
        },
        capacity={
            "memory": {"from": "attr:memory", "unit": "MiB"},
            "slots": {"value": "4k"},
            "none": {"from": "attr:no"},
        },
    )
    assert device.attributes == {
        "speed": 480,
        "usb": Semver("2.0.0"),
        "shared": False,
        "zero": 0,
        "model": "X",
        "firmware": Semver("1.2.3"),
    }
    assert device.capacity == {"memory": 512 << 20, "slots": 4000}


def test_mounts_exist_or_are_optional_or_make_faulty() -> None:
    host = MemoryHost(HOST, {"/etc/card/A1": "x"})
    device = one(
        [card()],
        host,
        mounts=[
            {"hostPath": "/etc/card/{attr:serial}", "containerPath": "/etc/card"},
            {"hostPath": "/nowhere", "optional": True},
        ],
    )
    assert device.mounts == (Mount("/etc/card/A1", "/etc/card", True),)
    broken = one([card()], host, mounts=[{"hostPath": "/nowhere"}])
    assert broken.reason == "/nowhere cannot be mounted: it does not exist"


SIZES = (("80", 4), ("[18]0", 1))


def test_devices_of_one_name_may_have_different_numbers_of_replicas() -> None:
    replicas = {"count": 2, "otherCounts": [{"match": [{"attr": {"size": size}}], "count": n} for size, n in SIZES]}
    for size, count in (("80", 4), ("10", 1), ("24", 2)):
        record = card(attributes={"serial": "A1", "size": size})
        assert len(one([record], MemoryHost(HOST), replicas=replicas).units) == count
    resource = RESOURCE | {"replicas": replicas}
    assert "size" in scope_of(config(resource)).attributes
    assert not config(resource | {"replicas": replicas | {"count": 1}}).resources[0].claimable


def test_a_resource_may_say_that_its_numa_node_does_not_matter() -> None:
    assert one([card()], MemoryHost(HOST)).numa_nodes == (0,)
    device = one([card()], MemoryHost(HOST), numa=False)
    assert device.numa_nodes == ()
    assert "resource.kubernetes.io/numaNode" not in describe(device)[0]


def test_replicas_are_ids_of_one_device() -> None:
    device = one([card()], MemoryHost(HOST), replicas={"count": 3})
    assert device.units == ("A1::0", "A1::1", "A1::2")


def test_hardware_that_two_resources_match_belongs_to_the_first() -> None:
    host = MemoryHost(HOST)
    both = config(RESOURCE, RESOURCE | {"name": "example.com/again", "id": ["{sysname}"]})
    built = DeviceBuilder(both, host).build({CARD_PATH: card()}, NOTHING, known_ids={}, held=lambda name: False)
    assert [device.resource for device in built.devices] == ["example.com/card"]


def test_a_device_that_udevd_has_not_finished_waits_if_its_rules_read_the_database() -> None:
    unfinished = card(initialized=False)

    def waiting(*identities: str) -> tuple[str, ...]:
        builder = DeviceBuilder(config(RESOURCE | {"id": list(identities)}), MemoryHost(HOST))
        return builder.build(
            {CARD_PATH: unfinished},
            NOTHING,
            known_ids={},
            held=lambda name: False,
            ready=lambda record: record.initialized,
        ).waiting

    assert waiting("{property:ID_SERIAL_SHORT}", "{sysname}") == (CARD_PATH,)
    assert waiting("{attr:serial}") == ()
    assert waiting("{property:DEVNAME}") == ()  # the kernel's own


def test_unchanged_devices_are_not_looked_at_again_between_full_looks() -> None:
    host = MemoryHost(HOST)
    builder = DeviceBuilder(config(RESOURCE), host)
    world = {CARD_PATH: card()}
    first = builder.build(world, NOTHING, known_ids={}, held=lambda name: False, fresh=True)
    host.asked.clear()
    second = builder.build(world, NOTHING, known_ids={}, held=lambda name: False, fresh=False)
    assert second.devices[0] is first.devices[0]
    assert host.asked == []
    builder.build(world, NOTHING, known_ids={}, held=lambda name: False, fresh=True)
    assert host.asked == ["/dev/bus/usb/001/004"]
    changed = {CARD_PATH: card(attributes={"serial": "A1", "speed": "5000"})}
    builder.build(changed, NOTHING, known_ids={}, held=lambda name: False, fresh=False)
    assert host.asked == ["/dev/bus/usb/001/004"] * 2, "another record is another device to look at"


def test_a_faulty_device_is_always_looked_at_again() -> None:
    host = MemoryHost()
    builder = DeviceBuilder(config(RESOURCE | {"nodes": [{"from": "devnode"}]}), host)
    world = {CARD_PATH: card()}
    assert builder.build(world, NOTHING, known_ids={}, held=lambda name: False).devices[0].presence is Presence.FAULTY
    host.nodes = HOST
    again = builder.build(world, NOTHING, known_ids={}, held=lambda name: False, fresh=False)
    assert again.devices[0].presence is Presence.PRESENT
