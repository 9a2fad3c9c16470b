"""From one snapshot to the next: devices that go are listed as gone for a while, held ones until they are free."""

from __future__ import annotations

from types import MappingProxyType

from msgspec.structs import replace

from drabridge.inventory.devices import Collision, Device, Presence, Snapshot
from drabridge.inventory.snapshots import DeviceTracker


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
