"""A changed configuration renames hardware: what is held keeps its identity, wherever it is plugged in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.config.predicate import Predicate
from drabridge.config.schema import Config
from drabridge.inventory import builder, match
from drabridge.inventory.builder import BuildResult, DeviceBuilder
from drabridge.inventory.devices import Device, Presence
from drabridge.inventory.identity import Key
from drabridge.inventory.nvidia import NOTHING
from drabridge.inventory.snapshots import DeviceTracker
from drabridge.inventory.udev_device import UdevDevice
from drabridge.inventory.udev_scope import UdevScope, scope_of, union
from tests.support.hardware import MemoryHost, config, record, watching

STICK = "/sys/devices/pci0000:00/0000:00:14.0/1-4"
BY_SERIAL: dict[str, Any] = {
    "name": "example.com/stick",
    "match": [{"subsystem": "usb"}],
    "id": ["{attr:serial}", "{sysname}"],
    "env": {"CALLED": "{name}"},
    "replicas": {"count": 2},
}
OLD = config(BY_SERIAL)
CHANGES = {
    "id": config(BY_SERIAL | {"id": ["usb-{sysname}"], "env": {}, "replicas": {"count": 1}}),
    "name": config(BY_SERIAL | {"name": "example.com/other"}),
    "match": config(BY_SERIAL | {"name": "example.com/first", "env": {}}, BY_SERIAL),
    "match and id": config(BY_SERIAL | {"name": "example.com/first", "id": ["{sysname}"]}),
    "nothing matches": config(BY_SERIAL | {"match": [{"subsystem": "net"}]}),
}


class Bench:
    """Ports with sticks, and a configuration that changes. ``held`` are the names that somebody holds."""

    def __init__(self, first: Config = OLD, serial: str = "A1") -> None:
        self.held: set[str] = set()
        self.given: dict[Key, str] = {}
        self.builder = DeviceBuilder(first, MemoryHost())
        self.look(serial)

    def look(self, serial: str) -> BuildResult:
        return self.sees({"1-4": serial})

    def sees(self, serials: Mapping[str, str], unready: str = "") -> BuildResult:
        """``serials`` by port; udevd is not done with the port ``unready``."""
        sticks = [
            record(
                STICK.replace("1-4", port),
                "usb",
                attributes={"serial": serial} if serial else {},
                properties={} if port == unready else {"ID_SERIAL_SHORT": serial},
                initialized=port != unready,
            )
            for port, serial in serials.items()
        ]
        built = self.builder.build(
            {stick.syspath: stick for stick in sticks},
            NOTHING,
            known_ids=self.given,
            held=self.held.__contains__,
            ready=lambda stick: stick.initialized,
        )
        ids = {device.id for device in built.devices}
        self.given = {key: device_id for key, device_id in self.given.items() if device_id not in ids}
        self.given |= {
            (device.resource, device.syspath): device.id
            for device in built.devices
            if self.given.get((device.resource, device.syspath), "").lower() not in self.held
        }
        return built

    def change(self, new: Config) -> None:
        self.builder = DeviceBuilder(new, MemoryHost(), self.builder.named_by)


def called(built: BuildResult) -> list[tuple[str, str]]:
    return [(device.resource.rpartition("/")[2], device.id) for device in built.devices]


def at(built: BuildResult) -> dict[str, str]:
    """The ids by port; that of a device as an earlier configuration has it is in brackets."""
    return {
        device.syspath.rpartition("/")[2]: f"({device.id})" if device.former else device.id for device in built.devices
    }


def test_a_held_device_is_what_it_was_until_it_is_let_go() -> None:
    after = {
        "id": ("stick", "usb-1-4"),
        "name": ("other", "A1"),
        "match": ("first", "A1"),
        "match and id": ("first", "1-4"),
        "nothing matches": None,
    }
    for what, new in CHANGES.items():
        bench = Bench()
        before = replace(bench.look("A1").devices[0], former=True)
        bench.held = {"a1"}
        bench.change(new)
        for _ in range(2):
            assert bench.look("A1").devices == (before,), what
        assert bench.builder.former_names == {"a1"}
        bench.change(new)
        assert bench.look("A1").devices == (before,), "changed again"
        bench.held = set()
        assert called(bench.look("A1")) == ([after[what]] if after[what] else []), what
        assert not bench.builder.former_names
        assert OLD not in bench.builder.named_by.values()


def test_what_nobody_holds_is_renamed_at_once() -> None:
    bench = Bench()
    bench.change(CHANGES["id"])
    assert called(bench.look("A1")) == [("stick", "usb-1-4")]


def test_another_stick_in_the_port_of_a_held_one_is_not_taken_for_it() -> None:
    bench = Bench()
    bench.held = {"a1"}
    bench.change(CHANGES["name"])
    assert called(bench.look("B2")) == [("other", "B2")]
    assert called(bench.look("A1")) == [("stick", "A1")], "and the held one comes back as what it was"


def test_a_name_that_a_held_device_keeps_is_given_to_no_other() -> None:
    bench = Bench()
    bench.held = {"a1"}
    bench.change(config(BY_SERIAL | {"name": "example.com/other"}))
    sticks = {path: record(path, "usb", attributes={"serial": "A1"}) for path in (STICK, STICK.replace("1-4", "1-5"))}
    built = bench.builder.build(sticks, NOTHING, known_ids=bench.given, held=bench.held.__contains__)
    assert called(built)[0] == ("stick", "A1")
    assert len({device.name for device in built.devices}) == len(built.devices)


@pytest.mark.parametrize("what", CHANGES)
def test_a_held_device_that_comes_back_elsewhere_is_what_it_was(what: str) -> None:
    for meanwhile in ({}, {"1-4": "B2"}):
        bench = Bench()
        before = replace(bench.look("A1").devices[0], former=True, syspath=STICK.replace("1-4", "1-5"))
        bench.held = {"a1"}
        bench.change(CHANGES[what])
        bench.sees(meanwhile)
        bench.held |= {device.name for device in bench.sees(meanwhile).devices}
        bench.change(CHANGES[what])
        for _ in range(2):
            assert before in bench.sees(meanwhile | {"1-5": "A1"}).devices
        assert "A1" not in {device.id for device in bench.sees(meanwhile).devices}
        assert before.id in {device.id for device in bench.look("A1").devices}, "and in its own port again"
        bench.held = set()
        assert not any(device.former for device in bench.sees({"1-5": "A1"}).devices)


def test_a_quiet_round_looks_at_no_record_again_while_a_held_device_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.held.add("a1")
    bench.change(CHANGES["id"])
    sticks = [record(STICK.replace("1-4", f"2-{n}"), "usb", attributes={"serial": f"b{n}"}) for n in range(9)]
    records = {stick.syspath: stick for stick in sticks}
    looked: list[str] = []

    def holds(rule: Predicate, seen: UdevDevice) -> bool:
        looked.append(seen.syspath)
        return match.holds(rule, seen)

    monkeypatch.setattr(builder, "holds", holds)
    rounds = []
    for _ in range(2):
        looked.clear()
        bench.builder.build(records, NOTHING, known_ids=bench.given, held=bench.held.__contains__, fresh=False)
        rounds.append(sorted(looked))
    assert rounds == [sorted([*records, *records]), []], "by both configurations, then by none"


def test_held_devices_that_change_places_are_what_they_were() -> None:
    bench = Bench()
    bench.sees({"1-4": "A1", "1-5": "B2"})
    bench.held = {"a1", "b2"}
    bench.change(CHANGES["id"])
    for _ in range(2):
        assert at(bench.sees({"1-4": "B2", "1-5": "A1"})) == {"1-4": "(B2)", "1-5": "(A1)"}
    assert at(bench.sees({"1-4": "C3", "1-5": "A1", "1-6": "B2"})) == {"1-4": "usb-1-4", "1-5": "(A1)", "1-6": "(B2)"}


def test_of_twins_that_may_both_be_the_held_device_neither_is_offered() -> None:
    bench = Bench()
    bench.held = {"a1"}
    bench.change(CHANGES["id"])
    built = bench.sees({"1-5": "A1", "1-6": "A1", "1-7": "B2"})
    assert at(built) == {"1-7": "usb-1-7"}
    assert [collision.identity for collision in built.collisions] == ["A1"]
    assert at(bench.sees({"1-6": "A1"})) == {"1-6": "(A1)"}
    assert at(bench.sees({"1-6": "A1", "1-5": "A1"})) == {"1-6": "(A1)", "1-5": "usb-1-5"}, "it is there already"


def test_what_may_be_a_held_device_is_not_called_anything_before_udevd_is_done_with_it() -> None:
    bench = Bench(config(BY_SERIAL | {"id": ["{property:ID_SERIAL_SHORT}"]}))
    bench.held = {"a1"}
    bench.change(CHANGES["id"])
    built = bench.sees({"1-5": "A1", "1-6": "B2"}, unready="1-5")
    assert at(built) == {"1-6": "usb-1-6"}
    assert built.waiting == (STICK.replace("1-4", "1-5"),)
    assert at(bench.sees({"1-5": "A1", "1-6": "B2"})) == {"1-5": "(A1)", "1-6": "usb-1-6"}
    assert at(bench.sees({"1-5": "A1", "1-7": "C3"}, unready="1-7")) == {"1-5": "(A1)", "1-7": "usb-1-7"}


def test_a_held_device_that_is_called_the_same_is_the_new_configurations_wherever_it_is() -> None:
    bench = Bench()
    bench.held = {"a1"}
    bench.change(config(BY_SERIAL | {"id": ["{sysname}", "{attr:serial}"]}))
    for _ in range(2):
        assert at(bench.sees({"1-5": "A1", "1-6": "B2"})) == {"1-5": "A1", "1-6": "1-6"}
    assert OLD not in bench.builder.named_by.values()


def test_a_stranger_with_the_name_of_a_held_device_is_not_taken_for_it() -> None:
    bench = Bench(serial="a1")
    bench.held = {"a1"}
    bench.change(config(BY_SERIAL | {"id": ["{sysname}1"]}))
    assert at(bench.sees({"a": "X"})) == {"a": "a1"}, "nobody is given it: the name is held"
    built = bench.sees({"a": "X", "1-5": "a1"})
    assert [collision.identity for collision in built.collisions] == ["a1"]
    assert at(built) == {"a": "a1"}


async def test_who_is_given_a_device_after_a_reload_and_before_the_list_that_follows_keeps_it() -> None:
    memory = {"name": "example.com/mem", "match": [{"subsystem": "mem", "sysname": ["zero", "null"]}]}
    held: set[str] = set()
    async with watching(config(memory | {"id": ["{sysname}"]}), held=held.__contains__) as watched:
        zero = watched.inventory.current.by_name()["zero"]
        watched.inventory.reconfigure(config(memory | {"id": ["mem-{sysname}"]}))
        assert watched.inventory.resolve(zero).nodes
        held.add("zero")
        await watched.snapshot_with(lambda snapshot: "mem-null" in snapshot.by_name())
        here = {device.name for device in watched.inventory.current.devices if device.presence is Presence.PRESENT}
        assert here == {"zero", "mem-null"}


def test_of_two_names_in_one_place_the_held_one_is_remembered() -> None:
    tracker = DeviceTracker(lambda name: name == "held")
    old, new = (Device(name, name, "r/x", STICK) for name in ("held", "new"))
    for here in ([old], [new], [new]):
        tracker.update(here, (), ["r/x"], 1.0)
    assert {device.name: device.presence for device in tracker.current.devices} == {
        "held": Presence.GONE,
        "new": Presence.PRESENT,
    }
    assert tracker.known_ids() == {("r/x", STICK): "held"}


def test_what_two_configurations_look_at_is_everything_that_either_does() -> None:
    other = config(BY_SERIAL | {"match": [{"subsystem": "net"}], "id": ["{attr:address}"]})
    assert union([scope_of(OLD), scope_of(other)]) == UdevScope(
        frozenset({"usb", "net"}), frozenset({"serial", "address"}), frozenset()
    )
    assert not union([scope_of(OLD), UdevScope()]).subsystems, "none are all"
