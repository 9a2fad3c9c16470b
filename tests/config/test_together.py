"""Names that two resources bring into one container: variables are refused, paths are noted."""

from __future__ import annotations

import pytest

from drabridge.config import ConfigErrors, load
from drabridge.config.advice import advice

HEAD = "apiVersion: drabridge/v1alpha1\nkind: AgentConfig\ndriver: example.com\nresources:\n"


def two(first: str, second: str, name: str = "example.com/a") -> str:
    return HEAD + "".join(
        f"- {{name: '{one}', match: [{{subsystem: usb}}], {keys}}}\n"
        for one, keys in ((name, first), ("example.com/b", second))
    )


@pytest.mark.parametrize(
    ("first", "second", "path"),
    [
        ("env: {A: '{pci}'}", "env: {A: '{pci}'}", "env.A"),
        ("env: {A: x}", "env: {A: y}", "env.A"),
        ("env: {A: x}", "claimConfig: {profiles: {p: {env: {A: y}}}}", "claimConfig.profiles.p.env.A"),
        ("env: {'A_{index}': '{pci}'}", "env: {'A_{index}': '{pci}'}", 'env."A_{index}"'),
        ("env: {'A_{request}': '{pci}'}", "env: {'A_{request}': '{pci}'}", 'env."A_{request}"'),
        ("env: {A: x}", "cdiDevices: [v.com/c=d], cdiFallback: {env: {A: y}}", "cdiFallback.env.A"),
    ],
)
def test_two_values_of_one_variable(first: str, second: str, path: str) -> None:
    with pytest.raises(ConfigErrors) as refused:
        load(two(first, second))
    (fault,) = refused.value.faults
    assert fault.path == f"resources[1].{path}"
    assert "resources[0] has" in fault.hint


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("env: {A: same}", "env: {A: same}"),
        ("env: {'A_{name}': '{pci}'}", "env: {'A_{name}': '{pci}'}"),
        ("nodes: [{path: /dev/kfd}]", "nodes: [{path: /dev/kfd}]"),
        ("nodes: [{from: devnode, as: '/dev/{name}'}]", "nodes: [{from: devnode, as: '/dev/{name}'}]"),
        ("mounts: [{hostPath: /lib/fw}]", "mounts: [{hostPath: /lib/fw, containerPath: /lib/fw}]"),
        ("claimConfig: {profiles: {p: {env: {A: x}}, q: {env: {A: y}}}}", "env: {}"),
    ],
)
def test_one_thing_twice_and_names_with_fields(first: str, second: str) -> None:
    assert not [text for text in advice(load(two(first, second))) if "is also where" in text]


@pytest.mark.parametrize(
    ("first", "second", "path"),
    [
        ("nodes: [{from: devnode, as: /dev/r}]", "nodes: [{from: devnode, as: /dev/r}]", "/dev/r"),
        ("nodes: [{path: /dev/r}]", "nodes: [{path: /dev/null}, {path: /dev/q, as: /dev/r}]", "/dev/r"),
        ("nodes: [{from: devnode, as: '/d/{index}'}]", "nodes: [{from: devnode, as: '/d/{index}'}]", "/d/{index}"),
        ("mounts: [{hostPath: '/sys/{name}', containerPath: /s}]", "mounts: [{hostPath: /s}]", "/s"),
    ],
)
def test_two_things_at_one_path_are_noted(first: str, second: str, path: str) -> None:
    (said,) = [text for text in advice(load(two(first, second))) if "is also where" in text]
    assert said.startswith(
        f"resources[1] (example.com/b): {path} is also where a container has devices of example.com/a"
    )


def test_a_name_with_a_template_is_several_resources() -> None:
    with pytest.raises(ConfigErrors, match="it is several, with A"):
        load(two("env: {A: '{pci}'}", "env: {}", name="example.com/{attr:x}"))
    assert load(two("env: {A: x, 'B_{resource}': '{pci}'}", "env: {}", name="example.com/{attr:x}"))


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ("id: ['x{index}']", "id[0]"),
        ("nodes: [{path: '/dev/x{index}'}]", "nodes[0].path"),
        ("mounts: [{hostPath: '/x{request}', containerPath: '/x{request}'}]", "mounts[0].hostPath"),
        ("cdiDevices: ['v.com/c={index}']", "cdiDevices[0]"),
        ("attributes: {a: {from: index}}", "attributes.a.from"),
        ("health: [{file: {'/x/{index}': y}}]", 'health[0].file."/x/{index}"'),
        ("nodes: [{from: group, as: '/dev/x{index}'}], group: {with: children}", "nodes[0].as"),
    ],
)
def test_a_position_is_refused_where_no_container_is_known(keys: str, path: str) -> None:
    with pytest.raises(ConfigErrors) as refused:
        load(two(keys, "env: {}"))
    (fault,) = refused.value.faults
    assert fault.path == f"resources[0].{path}"
    assert "`as`, `containerPath` or `env`" in str(fault) or "{devname}" in str(fault)


def test_a_numbered_path_is_no_longer_one_path_for_all() -> None:
    def noted(alias: str) -> bool:
        return any(alias in text for text in advice(load(two(f"nodes: [{{from: devnode, as: '{alias}'}}]", "env: {}"))))

    assert noted("/dev/radio")
    assert noted("/dev/{request}/radio")
    assert not noted("/dev/radio{index}")
