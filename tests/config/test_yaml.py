"""YAML features that a configuration may not use: one clear fault each."""

from __future__ import annotations

import time

import pytest

from drabridge.config import load
from tests.support.configurations import HEAD, document, faults, only_fault
from tests.support.waiting import PATIENCE

GOOD = document("match: [{subsystem: usb}]")
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 10)}]\n" for n in range(8)
)


@pytest.mark.parametrize(
    ("text", "line", "found", "hint"),
    [
        ("", 0, "an empty file", "begin with apiVersion"),
        ("# only a comment\n", 0, "an empty file", "begin with apiVersion"),
        ("---\n", 0, "nothing", "begin with apiVersion"),
        ("[a]", 1, "a list", "begin with apiVersion"),
        ("hello", 1, "hello", "begin with apiVersion"),
        (GOOD + "---\n" + GOOD, 6, "a second", "remove what follows ---"),
        (HEAD + "resources:\n\t- name: x\n", 4, "cannot start any token", "YAML does not allow tabs"),
        (HEAD + "resources: [\n", 4, "flow", "indentation"),
        (HEAD + "resources: a: b\n", 3, "mapping values are not allowed", "quote values"),
        (HEAD + "x: 'a\n", 4, "quoted scalar", "quote values"),
        (HEAD + "x: \x00\n", 3, "", ""),
        (HEAD + "x: \x07\n", 3, "", ""),
        ("%YAML 9.9\n---\na: b\n", 1, "incompatible YAML document", ""),
        (GOOD + "deep: " + "[" * 60 + "]" * 60, 6, "a deeper one", ""),
        (GOOD + "deep: " + "{a: " * 60 + "}" * 60, 6, "a deeper one", ""),
        (GOOD + "deep: " + "[" * 20_000, 6, "a deeper one", ""),
        (GOOD + "deep: &a " + "[" * 40 + "]" * 40 + "\nmore: " + "[" * 40 + "*a" + "]" * 40, 7, "a deeper one", ""),
        (BOMB, 4, "more of them", ""),
        ("#" * (1 << 20) + "\n", 0, "more than 1048576 bytes", ""),
        ("a: \ud800", 0, "not UTF-8", "save the file as UTF-8"),
    ],
)
def test_unreadable(text: str, line: int, found: str, hint: str) -> None:
    started = time.process_time()
    fault = only_fault(text)
    assert time.process_time() - started < 2 * PATIENCE
    assert found in fault.found
    assert hint in fault.hint
    if line:
        assert fault.line == line


@pytest.mark.parametrize(
    ("resource", "line", "found", "expected"),
    [
        ("match: [{subsystem: usb}]\nenv: {A: x, A: y}", 6, "the same key again", "each key once"),
        ("match: [{subsystem: usb}]\nenv: {A: x}\nenv: {B: y}", 7, "the same key again", "each key once"),
        ("match: [{attr: {idVendor: 0403, idVendor: 0403}}]", 5, "the same key again", "each key once"),
        ("match: [{subsystem: !foo usb}]", 5, "!foo", "no tags"),
        ("match: [{attr: {idVendor: !!int 0403}}]", 5, "int", "no tags"),
        ("match: [{subsystem: usb}]\nenv: {? [a] : x}", 6, "a list or mapping", "a plain word as key"),
        ("match: [{subsystem: *nope}]", 5, "*nope", "an alias of something complete"),
    ],
)
def test_refused(resource: str, line: int, found: str, expected: str) -> None:
    fault = next(fault for fault in faults(document(resource)) if expected in fault.expected)
    assert fault.line == line
    assert found in fault.found


@pytest.mark.parametrize(
    "resource",
    [
        'match: [{subsystem: usb, link: {"a\\0b": x}}]',
        'match: [{subsystem: usb, exists: ["attr:a\\0b"]}]',
        'match: [{subsystem: usb}]\nenv: {A: "a\\0b"}',
        'match: [{subsystem: usb}]\nhealth: [{exec: {command: ["/bin/a\\0b"]}}]',
    ],
)
def test_no_text_has_a_nul_character(resource: str) -> None:
    fault = only_fault(document(resource))
    assert fault.expected == "text without NUL characters"
    assert "\\x00" in fault.found


@pytest.mark.parametrize("digits", ["0x" + "f" * 6000, "0o" + "7" * 6000, "0b" + "1" * 30_000, "9" * 6000])
def test_a_number_of_thousands_of_digits_is_a_fault(digits: str) -> None:
    fault = only_fault(document(f"match: [{{subsystem: usb}}]\nreplicas: {{count: {digits}}}"))
    assert fault.path == "resources[0].replicas.count"
    assert fault.expected == "a whole number"


def test_merge_keys_are_refused() -> None:
    text = "x: &x {A: b}\n" + document("match: [{subsystem: usb}]\nenv: {<<: *x}")
    assert any("merge keys" in fault.hint for fault in faults(text))


def test_an_anchor_inside_itself() -> None:
    assert any("cannot contain itself" in fault.hint for fault in faults("x: &x [*x]\n"))


def test_anchors_and_aliases_work() -> None:
    config = load(
        document("match: &usb [{subsystem: usb}]\nenv: {A: &text hello, B: *text}\nlanes: {dra: {match: *usb}}")
    )
    (resource,) = config.resources
    assert resource.env["B"] == resource.env["A"]
    assert resource.match == resource.lanes.dra.match  # type: ignore[union-attr]


def test_json_is_yaml() -> None:
    config = load('{"apiVersion": "drabridge/v1alpha1", "kind": "AgentConfig", "resources": [{"name": "a.com/b", '
                  '"match": [{"attr": {"idVendor": 1234}}]}]}')  # fmt: skip
    assert config.resources[0].match[0].attrs["idVendor"].matches("1234")


@pytest.mark.parametrize(
    "text", ["2838", "0x10de", "1e10", "on", "0123", "12:30", "~", "null", "1_0", ".5", "2026-01-31", "="]
)
def test_match_values_stay_text(text: str) -> None:
    config = load(document(f"match: [{{property: {{A: {text}}}}}]\nhealth: [{{attr: {{a: {text}}}}}]"))
    assert config.resources[0].match[0].properties["A"].matches(text)
    assert config.resources[0].health[0].attrs["a"].matches(text)


def test_block_scalars_and_quotes_are_text() -> None:
    config = load(
        document("match: [{subsystem: usb}]\nenv:\n  A: \"0403\"\n  B: 'on'\n  C: |-\n    5\n  D: plain 5 on")
    )
    env = {key: str(value) for key, value in config.resources[0].env.items()}
    assert env == {"A": "0403", "B": "on", "C": "5", "D": "plain 5 on"}
