"""What several devices bring into one container: each variable once with all values, and no two things at one path."""

from __future__ import annotations

import pytest

from drabridge.config.template import parse
from drabridge.containers.cdi_spec import ContainerEdits
from drabridge.containers.together import joined_env, one_path_for_two, placed
from drabridge.inventory.container_edits import render_env
from drabridge.inventory.devices import DeviceNode, Mount


def test_values_are_joined_in_the_order_of_the_devices_and_equal_ones_are_said_once() -> None:
    env = joined_env([{"PCI": "b", "MODE": "x"}, {"PCI": "a", "MODE": "x"}, {"PCI": "b", "ONLY": "1"}])
    assert env == {"PCI": "b,a", "MODE": "x", "ONLY": "1"}


def node(path: str, inside: str = "") -> ContainerEdits:
    return ContainerEdits((DeviceNode(path, inside or path),))


def mount(path: str, inside: str) -> ContainerEdits:
    return ContainerEdits(mounts=(Mount(path, inside),))


@pytest.mark.parametrize(
    ("first", "second", "path"),
    [
        (node("/dev/a", "/dev/radio"), node("/dev/b", "/dev/radio"), "/dev/radio"),
        (node("/dev/a"), node("/dev/b", "/dev/a"), "/dev/a"),
        (mount("/sys/a", "/state"), mount("/sys/b", "/state"), "/state"),
        (node("/dev/a", "/state"), mount("/sys/b", "/state"), "/state"),
        (node("/dev/kfd"), node("/dev/kfd"), ""),
        (mount("/lib/fw", "/fw"), mount("/lib/fw", "/fw"), ""),
        (node("/dev/a", "/dev/r0"), node("/dev/b", "/dev/r1"), ""),
    ],
)
def test_two_things_at_one_path_are_told_and_one_thing_twice_is_not(
    first: ContainerEdits, second: ContainerEdits, path: str
) -> None:
    said = one_path_for_two([("one", first), ("two", second)])
    assert (f"one and two would both be at {path} in the container" in said) == bool(path)


def test_a_field_of_the_container_stays_in_a_name_whose_other_characters_do_not() -> None:
    env = {"VF_{index}_{attr:x}": parse("{request} {attr:x}")}
    values = {"index": "{index}", "request": "{request}", "attr": "a-b"}
    rendered = render_env(env, lambda field: values[field.source])
    assert rendered == {"VF_{index}_a_b": "{request} a-b"}
    assert placed(ContainerEdits(env=rendered), 3, "sdr-a").env == {"VF_3_a_b": "sdr-a a-b"}
