"""What was published of a device stays while it is there, though its source says nothing: also after a restart."""

from __future__ import annotations

from pathlib import Path

from drabridge.config import load
from drabridge.inventory.attribute_values import LastKnown
from drabridge.inventory.builder import DeviceBuilder
from drabridge.inventory.devices import Device, Semver
from drabridge.inventory.identity import Key, KnownIdentities
from drabridge.inventory.identity_store import IdentityStore
from drabridge.inventory.nvidia import NOTHING
from tests.support.hardware import MemoryHost, record
from tests.support.waiting import PATIENCE

HEAD = "apiVersion: drabridge/v1alpha1\nkind: AgentConfig\ndriver: example.com\nresources:\n"
ATTRIBUTES = """\
  attributes:
    model: {from: "attr:model"}
    lanes: {from: "attr:lanes", type: int}
    ready: {from: "attr:ready", type: bool}
    firmware: {from: "attr:firmware", type: version}
    kind: {from: "attr:model", map: {small: X, large: Y}}
  capacity:
    memory: {from: "attr:memory", unit: MiB}
"""
CONFIG = f"""{HEAD}- name: example.com/card
  match: [{{subsystem: usb}}]
  id: ["{{attr:serial}}"]
{ATTRIBUTES}"""
PATH = "/sys/devices/card"
KEY: Key = ("example.com/card", PATH)
WELL = {"model": "X", "lanes": "16", "ready": "yes", "firmware": "1.2", "memory": "512"}
PUBLISHED = {"model": "X", "lanes": 16, "ready": True, "firmware": Semver("1.2.0"), "kind": "small"}


def device(builder: DeviceBuilder, **attributes: str) -> Device:
    udev = record(PATH, "usb", attributes={"serial": "A", **attributes})
    built = builder.build({PATH: udev}, NOTHING, known_ids={}, held=lambda name: False)
    return built.devices[0]


def test_no_attribute_disappears_and_a_new_value_counts() -> None:
    builder = DeviceBuilder(load(CONFIG), MemoryHost({}))
    steps: list[tuple[dict[str, str], dict[str, int]]] = [
        (WELL, {}),
        ({}, {}),
        ({"lanes": "8", "memory": "junk"}, {"lanes": 8}),
        ({"lanes": ""}, {"lanes": 8}),
    ]
    for values, changes in steps:
        found = device(builder, **values)
        assert dict(found.attributes) == PUBLISHED | changes
        assert dict(found.capacity) == {"memory": 512 << 20}


def test_it_survives_a_restart_but_not_a_change_of_what_is_to_be_published(tmp_path: Path) -> None:
    config = load(CONFIG)
    builder = DeviceBuilder(config, MemoryHost({}))
    device(builder, **WELL)
    store = IdentityStore(tmp_path)
    store.save(KnownIdentities({KEY: "A"}, builder.named_by, builder.last.values))
    assert store._files.submit(lambda: None).over(PATIENCE)
    known = IdentityStore(tmp_path).load(config)
    again = device(DeviceBuilder(config, MemoryHost({}), last=LastKnown(known.values)))
    assert (dict(again.attributes), dict(again.capacity)) == (PUBLISHED, {"memory": 512 << 20})
    changed = load(CONFIG.replace("small: X", "tiny: X"))
    anew = device(DeviceBuilder(changed, MemoryHost({}), last=LastKnown(known.values)), lanes="4")
    assert (dict(anew.attributes), dict(anew.capacity)) == ({"lanes": 4}, {})


def test_another_device_has_nothing_of_it_and_one_that_is_forgotten_leaves_nothing() -> None:
    builder = DeviceBuilder(load(CONFIG), MemoryHost({}))
    device(builder, **WELL)
    other = device(builder, serial="B")
    assert dict(other.attributes) == {}
    builder.build({}, NOTHING, known_ids={KEY: "B"}, held=lambda name: False)
    assert list(builder.last.values) == ["B"], "unplugged, but not forgotten"
    builder.build({}, NOTHING, known_ids={}, held=lambda name: False)
    assert builder.last.values == {}
