"""What a configuration makes the inventory read of udev."""

from __future__ import annotations

from typing import Any

import pytest

from drabridge.inventory.named_resources import NamedResources
from drabridge.inventory.udev_scope import UdevScope, needs_nvidia, scope_of, scope_of_all
from tests.support import machines
from tests.support.hardware import config


@pytest.mark.parametrize(
    ("matchers", "subsystems"),
    [
        ([{"subsystem": "usb"}], {"usb"}),
        ([{"subsystem": "usb|tty"}], {"usb", "tty"}),
        ([{"subsystem": "usb"}, {"subsystem": ["pci", "tty"]}], {"usb", "pci", "tty"}),
        ([{"subsystem": "us*"}], set()),
        ([{"subsystem": {"regex": "usb"}}], set()),
        ([{"subsystem": "usb"}, {"sysname": "x"}], set()),
        ([{"sysname": "x", "parent": {"subsystem": "usb"}}], set()),
        ([{"sysname": "x", "not": {"subsystem": "usb"}}], set()),
        ([{"subsystem": "nvidia-mig"}], {"pci"}),  # which the kernel does not have: their GPUs are looked at
        ([{"rule": 'SUBSYSTEM=="tty", ATTRS{idVendor}=="0403"'}], {"tty"}),
    ],
)
def test_subsystems_that_must_be_enumerated(matchers: list[dict[str, Any]], subsystems: set[str]) -> None:
    """An empty set is everything: slower, never wrong."""
    assert scope_of(config({"name": "x.com/a", "match": matchers})).subsystems == subsystems


def test_a_resource_that_is_named_after_nothing_yet_makes_nothing_slower() -> None:
    file = config({"name": "x.com/{attr:kind}", "match": [{"subsystem": "tty"}], "id": ["{sysname}"]})
    scope = scope_of_all([file, NamedResources(file).config])
    assert scope == UdevScope(frozenset({"tty"}), frozenset({"kind"}))


def test_every_attribute_and_link_that_is_named_is_read() -> None:
    resource = {
        "name": "x.com/a",
        "match": [
            {"subsystem": "usb", "attr": {"a1": "x"}, "parent": {"attr": {"a2": "x"}}, "not": {"link": {"l1": "x"}}}
        ],
        "id": ["{parent.attr:a3}"],
        "nodes": [{"path": "/dev/{attr:a4}", "as": "/dev/{link:l2}"}],
        "env": {"A": "{attr:a5}"},
        "mounts": [{"hostPath": "/x/{attr:a6}"}],
        "attributes": {"x": {"from": "attr:a7"}},
        "capacity": {"y": {"from": "attr:a8"}},
        "health": [{"attr": {"a9": "1"}}, {"file": {"/x/{attr:a10}": "1"}}],
        "group": {"match": [{"subsystem": "tty", "attr": {"a11": "x"}}]},
    }
    found = scope_of(config(resource))
    assert found == UdevScope(
        frozenset({"usb", "tty"}), frozenset(f"a{n}" for n in range(1, 12)), frozenset({"l1", "l2"})
    )
    assert not needs_nvidia(config(resource))
    assert needs_nvidia(config(machines.GPU_RESOURCE))


def test_companions_of_any_kind_make_everything_wanted() -> None:
    resource = {"name": "x.com/a", "match": [{"subsystem": "usb"}], "group": {"with": "children"}}
    assert scope_of(config(resource)).subsystems == frozenset()
