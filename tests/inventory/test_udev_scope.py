"""What a configuration makes the inventory read of udev."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drabridge.inventory.host import HostPaths
from drabridge.inventory.named_resources import NamedResources
from drabridge.inventory.udev_scope import UdevScope, needs_nvidia, scope_of, scope_of_all, why_database
from tests.support import machines
from tests.support.hardware import config, watching


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


@pytest.mark.parametrize(
    ("resource", "reads"),
    [
        ({"id": ["{property:ID_SERIAL_SHORT}", "{pci}"]}, "property:ID_SERIAL_SHORT"),
        ({"match": [{"subsystem": "tty", "property": {"ID_BUS": "usb"}}], "id": ["{pci}"]}, "property:ID_BUS"),
        ({"match": [{"devlink": "/dev/serial/by-id/*"}], "id": ["{pci}"]}, "devlink"),
        ({"match": [{"rule": 'SUBSYSTEM=="tty", TAGS=="x"'}], "id": ["{pci}"]}, "tag"),
        ({"attributes": {"port": {"from": "property:ID_PATH_TAG"}}}, "property:ID_PATH_TAG"),
        ({}, ""),  # the default identity goes on to what the kernel knows
        ({"id": ["{property:DEVNAME}"]}, ""),  # the kernel's own
        ({"id": ["{parent.attr:serial}"]}, ""),
    ],
)
def test_what_of_a_configuration_is_missing_without_udevs_database(resource: dict[str, Any], reads: str) -> None:
    found = list(why_database(config({"name": "x.com/a", "match": [{"subsystem": "tty"}], **resource})))
    assert len(found) == bool(reads)
    if reads:
        assert f"nothing has {reads}: where udevd runs" in found[0]


@pytest.mark.parametrize("there", [True, False])
async def test_a_missing_database_is_noted_of_the_configuration_that_reads_it(there: bool, tmp_path: Path) -> None:
    of_mem = {
        "name": "x.com/a",
        "match": [{"subsystem": "mem", "sysname": "null"}],
        "id": ["{property:X}", "{sysname}"],
    }
    paths = HostPaths(udev_database=tmp_path / ("" if there else "none"))
    async with watching(config(of_mem), paths=paths) as watched:
        assert bool(watched.inventory.notes) is not there
        assert all("x.com/a: there is no udev database here" in note for note in watched.inventory.notes)
