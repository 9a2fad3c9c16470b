"""Resource names with an attribute in them: what they stand for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drabridge.config import load
from drabridge.config.declaration import to_data
from drabridge.config.name_template import VALUES_MAX, expanded
from drabridge.config.problems import ConfigErrors
from drabridge.config.resource_names import name_for, stands_for
from drabridge.inventory.match import matches
from drabridge.inventory.named_resources import NamedResources
from drabridge.inventory.udev_device import UdevDevice
from tests.support.hardware import config, record

TEMPLATE = "example.com/port-{attr:kind}"
RESOURCE: dict[str, Any] = {"name": TEMPLATE, "match": [{"subsystem": "tty"}], "id": ["{sysname}"]}


def port(number: int, kind: str | None, subsystem: str = "tty") -> UdevDevice:
    attributes = {} if kind is None else {"kind": kind}
    return record(f"/sys/devices/virtual/{subsystem}/port{number}", subsystem, attributes=attributes)


def names(found: NamedResources) -> list[str]:
    return [resource.name for resource in found.config.resources]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("fast", "example.com/port-fast"),
        ("1g.10gb+me", "example.com/port-1g.10gb.me"),
        ("a b/c", "example.com/port-a.b.c"),
        ("\u00e4x", "example.com/port-.x"),
        ("", None),
        ("x" * 59, None),
        ("x.", None),
    ],
)
def test_what_cannot_be_in_a_name_becomes_a_dot(value: str, name: str | None) -> None:
    assert name_for(TEMPLATE, value) == name


def test_plain_names_stay_the_same_object() -> None:
    plain = config(RESOURCE | {"name": "example.com/port"})
    assert expanded(plain, {}) is plain
    assert not NamedResources(plain).update([port(0, "fast")])


def test_each_value_is_a_resource_that_matches_it_alone() -> None:
    """Values are text, whatever a pattern would make of them."""
    kinds = ("fast", "fa*t", "a|b", "[xy]z", "xz", "s\\low")
    found = NamedResources(config(RESOURCE))
    assert found.update([port(index, kind) for index, kind in enumerate(kinds)])
    by_kind = {resource.name: resource for resource in found.config.resources}
    assert len(by_kind) == len(kinds)
    for kind in kinds:
        resource = by_kind[name_for(TEMPLATE, kind) or ""]
        assert [other for other in kinds if matches(port(0, other), resource.match)] == [kind]
    again = load(json.dumps(to_data(found.config)))
    assert again == found.config, "it is kept on disk with the names that it gave"


def test_values_with_one_name_are_one_resource() -> None:
    found = NamedResources(config(RESOURCE))
    found.update([port(0, "a+b"), port(1, "a.b")])
    assert names(found) == ["example.com/port-a.b"]
    assert all(matches(port(0, kind), found.config.resources[0].match) for kind in ("a+b", "a.b"))


def test_rules_before_and_in_the_resource_still_count() -> None:
    other = {"name": "example.com/slow", "match": [{"subsystem": "tty", "attr": {"kind": "slow"}}], "id": ["{sysname}"]}
    narrow = RESOURCE | {"match": [{"subsystem": "tty", "attr": {"kind": "f*"}}, {"subsystem": "net"}]}
    found = NamedResources(config(other, narrow))
    found.update([port(0, "slow"), port(1, "fast"), port(2, "other"), port(3, "other", "net")])
    assert names(found) == ["example.com/slow", "example.com/port-fast", "example.com/port-other"]
    fast, late = found.config.resources[1:]
    assert [matches(port(0, "fast", subsystem), fast.match) for subsystem in ("tty", "net")] == [True, True]
    assert [matches(port(0, "other", subsystem), late.match) for subsystem in ("tty", "net")] == [False, True]


def test_a_resource_outlives_its_devices_and_a_reload() -> None:
    found = NamedResources(config(RESOURCE))
    found.update([port(0, "fast")])
    assert not found.update([])
    found = NamedResources(config(RESOURCE, resyncSeconds=30), found.values)
    assert names(found) == ["example.com/port-fast"]


def test_devices_without_a_resource_are_named_with_the_reason() -> None:
    taken = {"name": "example.com/port-b", "match": [{"subsystem": "net"}], "id": ["{sysname}"]}
    found = NamedResources(config(RESOURCE, taken))
    found.update([port(0, None), port(1, "x."), port(2, "b"), port(3, "a")])
    said = {collision.syspaths[0][-1]: collision.hint for collision in found.collisions}
    assert said["0"] == "It has no attribute kind, which its resource is named after"
    assert said["1"] == "Its attribute kind is 'x.', which gives no name of a resource"
    assert said["2"] == f"Its resource would be example.com/port-b, which is in the configuration beside {TEMPLATE}"
    assert set(said) == {"0", "1", "2"}
    assert sorted(names(found)) == ["example.com/port-a", "example.com/port-b"]


def test_hardware_cannot_make_resources_without_end() -> None:
    found = NamedResources(config(RESOURCE))
    found.update([port(index, f"k{index:04}") for index in range(VALUES_MAX + 5)])
    assert len(found.config.resources) == VALUES_MAX
    (collision,) = found.collisions
    assert len(collision.syspaths) == 5


@pytest.mark.parametrize(
    ("template", "name", "covers"),
    [
        (TEMPLATE, "example.com/port-fast", True),
        (TEMPLATE, "example.com/port-", False),
        (TEMPLATE, "example.com/other", False),
        ("example.com/port", "example.com/port", True),
        ("example.com/port", "example.com/ports", False),
    ],
)
def test_which_names_a_template_can_stand_for(template: str, name: str, covers: bool) -> None:
    assert stands_for(template, name) is covers


def test_a_class_for_several_resources_needs_a_selector() -> None:
    text = {"apiVersion": "drabridge/v1alpha1", "kind": "AgentConfig", "resources": [RESOURCE]}
    load(json.dumps(text))
    with pytest.raises(ConfigErrors, match="a selector"):
        load(json.dumps(text | {"resources": [RESOURCE | {"deviceClass": {"name": "ports"}}]}))
    load(json.dumps(text | {"resources": [RESOURCE | {"deviceClass": {"name": "ports", "selector": "true"}}]}))
