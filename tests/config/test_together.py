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
