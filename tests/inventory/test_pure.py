"""Small pure parts: hostile values, topology, typed values, event order and pace, tombstones."""

from __future__ import annotations

from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from drabridge.inventory import attribute_values, topology
from drabridge.inventory.events import BURST, INTERVAL_SECONDS, Pacer, RecheckQueue, Uevent, latest_per_device
from drabridge.inventory.model import Collision, Device, Presence, Semver, Snapshot
from drabridge.inventory.tracker import DeviceTracker
from drabridge.inventory.udev_device import VALUE_LIMIT_CHARS, clean
from tests.support.hardware import record

# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"0403\n", "0403"),
        (b"\xff\xfeUSB", "\\xff\\xfeUSB"),
        (b"two\nlines", "two\\nlines"),
        (b"nul\x00byte\x1b[31m", "nul\\x00byte\\x1b[31m"),
        ("gr\u00fcn", "gr\u00fcn"),
        ("\u202eevil", "\\u202eevil"),
        (None, ""),
    ],
)
def test_hostile_values_become_one_printable_line(raw: bytes | None, text: str) -> None:
    assert clean(raw) == text


def test_a_mebibyte_is_cut_and_stays_distinguishable() -> None:
    one, other = clean(b"x" * (1 << 20)), clean(b"x" * (1 << 20) + b"y")
    assert len(one) <= VALUE_LIMIT_CHARS
    assert one != other
    assert clean(b"x" * (1 << 20)) == one


@given(st.binary(max_size=300))
def test_clean_never_raises_and_settles(raw: bytes) -> None:
    text = clean(raw)
    assert text.isprintable()
    assert clean(text) == text.strip()


# --- topology -------------------------------------------------------------------------------------------------------

ROOT = record("/sys/devices/pci0000:3a", "", attributes={"numa_node": "1"})
BRIDGE = record("/sys/devices/pci0000:3a/0000:3a:00.0", "pci", ROOT, attributes={"numa_node": "1"})


@pytest.mark.parametrize(
    ("own", "nodes"), [("0", (0,)), ("-1", (1,)), ("", (1,)), ("x", (1,)), ("64", (1,)), ("²", (1,))]
)
def test_numa_walks_up_past_minus_one(own: str, nodes: tuple[int, ...]) -> None:
    gpu = record("/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", "pci", BRIDGE, attributes={"numa_node": own})
    assert topology.numa_nodes(gpu) == nodes


def test_no_numa_node_is_empty_and_never_minus_one() -> None:
    assert topology.numa_nodes(record("/sys/devices/virtual/misc/kvm", "misc", attributes={"numa_node": "-1"})) == ()


@pytest.mark.parametrize(
    ("syspath", "subsystem", "address", "root"),
    [
        ("/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", "pci", "0000:3b:00.0", "pci0000:3a"),
        ("/sys/devices/pci10000:00/10000:01:00.0", "pci", "10000:01:00.0", "pci10000:00"),  # VMD: five digits
        ("/sys/devices/platform/40000000.pcie/pci0001:00/0001:01:00.0", "pci", "0001:01:00.0", "pci0001:00"),
        ("/sys/devices/pci0000:3a/0000:3a:00.0:pcie001", "pci_express", "", ""),
        ("/sys/devices/virtual/block/loop0", "block", "", ""),
    ],
)
def test_pci_address_and_root(syspath: str, subsystem: str, address: str, root: str) -> None:
    device = record(syspath, subsystem)
    assert topology.pci_bus_id(device) == address
    assert topology.pcie_root(device) == root


def test_a_device_below_a_pci_function_has_its_place() -> None:
    function = record(
        "/sys/devices/pci0000:3a/0000:3b:00.0", "pci", links={"iommu_group": "/sys/kernel/iommu_groups/42"}
    )
    tty = record("/sys/devices/pci0000:3a/0000:3b:00.0/tty/ttyS4", "tty", function)
    assert (topology.pci_bus_id(tty), topology.pcie_root(tty)) == ("0000:3b:00.0", "pci0000:3a")
    assert topology.iommu_group(tty) == "42"


# --- types ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("580.95", "580.95.0"),
        ("580.95.05", "580.95.5"),
        ("535.054.03", "535.54.3"),
        ("v1.2", "1.2.0"),
        ("7", "7.0.0"),
        ("1.2.3.4", "1.2.3+4"),
        ("1.2.3-rc1", "1.2.3-rc1"),
        ("6.1.0-18-amd64", "6.1.0-18-amd64"),
        ("1.2.3 beta", None),
        ("", None),
        ("latest", None),
        ("1." + "9" * 70, None),
    ],
)
def test_versions_are_made_semantic(text: str, version: str | None) -> None:
    assert attribute_values.as_semver(text) == (Semver(version) if version else None)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("0x10de", "int", 0x10DE),
        ("-3", "int", -3),
        ("9223372036854775808", "int", None),
        ("12 MB", "int", None),
        ("Y", "bool", True),
        ("0", "bool", False),
        ("maybe", "bool", None),
        ("é" * 40, "string", "é" * 32),
        ("", "string", None),
    ],
)
def test_attributes_are_typed_or_left_out(text: str, kind: str, value: object) -> None:
    assert attribute_values.attribute(text, kind) == value


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [("81559", "MiB", 81559 << 20), ("40Gi", "B", 40 << 30), ("7", "B", 7), ("x", "B", None), ("9" * 19, "GiB", None)],
)
def test_amounts_count_units(text: str, unit: str, value: int | None) -> None:
    assert attribute_values.amount(text, unit) == value


@given(st.text(max_size=80))
def test_types_never_raise(text: str) -> None:
    for kind in ("string", "int", "bool", "version"):
        attribute_values.attribute(text, kind)
    attribute_values.amount(text, "MiB")


# --- events ---------------------------------------------------------------------------------------------------------


def event(seqnum: int, action: str, syspath: str = "/a", group: str = "kernel") -> Uevent:
    return Uevent(seqnum, action, syspath, "usb", group)


@given(st.permutations([event(1, "add"), event(2, "remove"), event(3, "add"), event(4, "add", "/b")]))
def test_the_highest_seqnum_has_the_last_word(events: list[Uevent]) -> None:
    words = latest_per_device(events)
    assert [(word.syspath, word.seqnum) for word in words.values()] == [("/a", 3), ("/b", 4)]


def test_the_first_events_act_at_once_and_a_burst_is_paced() -> None:
    pacer = Pacer()
    for _ in range(BURST):
        assert pacer.delay(10.0) == 0
        pacer.spend(10.0)
    assert pacer.delay(10.0) == pytest.approx(INTERVAL_SECONDS)
    assert pacer.delay(10.0 + INTERVAL_SECONDS) == pytest.approx(0)
    assert pacer.delay(20.0) == 0


@pytest.mark.parametrize(("round_seconds", "rounds_per_second"), [(0.0, 50), (0.001, 50), (0.05, 4.5)])
def test_an_endless_burst_is_bounded_and_leaves_the_loop_free(round_seconds: float, rounds_per_second: float) -> None:
    pacer, now, rounds = Pacer(), 0.0, 0
    while now < 10:
        now += max(pacer.delay(now), 0.0001)
        if pacer.delay(now) <= 1e-9:
            pacer.spend(now, round_seconds)
            now += round_seconds
            rounds += 1
    assert 10 < rounds <= 10 * rounds_per_second + 2 * BURST


def test_udevd_answers_for_an_event_or_the_check_stays_owed() -> None:
    rechecks = RecheckQueue()
    rechecks.add("/a", 1.0, seqnum=5)
    rechecks.add("/b", 1.0, seqnum=6)
    rechecks.add("/a", 2.0)
    rechecks.answered("/a", 4)  # an older event
    rechecks.answered("/b", 6)
    assert rechecks.next_due() == 1.0
    assert {recheck.syspath for recheck in rechecks.take_due(1.5)} == {"/a"}
    assert rechecks.next_due() == 2.0
    rechecks.answered("/a", 9)  # says nothing about a check that no event caused
    assert {recheck.syspath for recheck in rechecks.take_due(3)} == {"/a"}
    assert rechecks.next_due() is None


# --- presence over time ---------------------------------------------------------------------------------------------


def device(name: str, **more: object) -> Device:
    return Device(name=name, id=name, resource="x/a", syspath=f"/sys/{name}", **more)  # type: ignore[arg-type]


def states(snapshot: Snapshot | None) -> dict[str, str]:
    assert snapshot is not None
    return {device.name: str(device.presence) for device in snapshot.devices}


def test_the_first_snapshot_is_complete_even_when_it_is_empty() -> None:
    tracker = DeviceTracker(lambda name: False)
    assert not tracker.current.complete
    assert tracker.update([], [], ["x/a"], 0) == Snapshot(1, (), ())
    assert tracker.update([], [], ["x/a"], 1) is None, "nothing changed"


def test_what_goes_is_listed_as_gone_for_a_minute() -> None:
    tracker = DeviceTracker(lambda name: False, tombstone_seconds=60)
    tracker.update([device("a"), device("b")], [], ["x/a"], 0)
    assert states(tracker.update([device("b")], [], ["x/a"], 10)) == {"a": "gone", "b": "present"}
    assert tracker.next_expiry(11) == 70
    assert tracker.update([device("b")], [], ["x/a"], 69) is None
    assert states(tracker.update([device("b")], [], ["x/a"], 71)) == {"b": "present"}
    assert tracker.next_expiry(71) is None


def test_what_is_held_stays_listed_until_it_is_freed() -> None:
    held = {"a"}
    tracker = DeviceTracker(held.__contains__, tombstone_seconds=60)
    tracker.update([device("a")], [], ["x/a"], 0)
    assert states(tracker.update([], [], ["x/a"], 1)) == {"a": "gone"}
    assert tracker.update([], [], ["x/a"], 10_000) is None
    assert tracker.next_expiry(10_000) is None, "a held device may not make the loop spin"
    assert tracker.known_ids() == {("x/a", "/sys/a"): "a"}
    held.clear()
    assert states(tracker.update([], [], ["x/a"], 10_001)) == {}


def test_back_again_is_present_and_the_next_tombstone_is_new() -> None:
    tracker = DeviceTracker(lambda name: False, tombstone_seconds=60)
    tracker.update([device("a")], [], ["x/a"], 0)
    tracker.update([], [], ["x/a"], 1)
    assert states(tracker.update([device("a")], [], ["x/a"], 50)) == {"a": "present"}
    assert states(tracker.update([], [], ["x/a"], 100)) == {"a": "gone"}
    assert tracker.update([], [], ["x/a"], 150) is None


def test_versions_grow_only_with_changes_and_the_order_is_the_configuration_s() -> None:
    tracker = DeviceTracker(lambda name: False)
    two = [device("a"), replace(device("z"), resource="x/first")]
    first = tracker.update(two, [], ["x/first", "x/a"], 0)
    assert first is not None
    assert [item.name for item in first.devices] == ["z", "a"]
    assert tracker.update(reversed(two), [], ["x/first", "x/a"], 1) is None
    faulty = replace(two[0], presence=Presence.FAULTY, reason="no node")
    second = tracker.update([faulty, two[1]], [], ["x/first", "x/a"], 2)
    assert second is not None
    assert second.version == first.version + 1


def test_a_gone_device_that_collides_says_so() -> None:
    tracker = DeviceTracker(lambda name: False)
    tracker.update([device("a", env=MappingProxyType({}))], [], ["x/a"], 0)
    collision = Collision("a", "x/a", ("/sys/a", "/sys/b"), "Unplug one")
    snapshot = tracker.update([], [collision], ["x/a"], 1)
    assert snapshot is not None
    assert snapshot.collisions == (collision,)
    assert "Unplug one" in snapshot.devices[0].reason
