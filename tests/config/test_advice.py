"""Advice on surprising configurations, and on no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from drabridge.config import load
from drabridge.config.advice import advice
from tests.support.configurations import document

HEAD = "driver: a.example.com\n"
HOOKS = "{plain: {}, before: {prepare: {command: [/bin/x]}}, after: {unprepare: {command: [/bin/x]}}}"


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("", []),
        ("preStart: {command: [/bin/x]}", ["preStart is skipped"]),
        ("preStart: {command: [/bin/x]}\nlanes: {dra: 1}", ["preStart with a dra lane", "preStart is skipped"]),
        ("id: ['{minor}']", ["follows the kernel's numbering"]),
        ("id: ['{sysname}']", []),
        ("nodes: [{from: devnode, as: /dev/radio}]", ["/dev/radio is one path for all these devices"]),
        ("nodes: [{from: devnode, as: '/dev/{devname}'}, {path: /dev/null, as: /dev/none}]", []),
        ("mounts: [{hostPath: '/sys/{name}', containerPath: /state}]", ["/state is one path for all"]),
        ("mounts: [{hostPath: /lib/fw, containerPath: /fw}]", []),
        (
            "cdiDevices: ['nvidia.com/gpu={sysname}', nvidia.com/gpu=all]",
            ["gpu=all: by that name vendors' files mean every"],
        ),
        ("lanes: {legacy: 6, dra: 2}", []),  # how many there are is known to the node alone, and said there
        ("lanes: {legacy: 6, dra: '*'}", []),
        (f"claimConfig: {{profiles: {HOOKS}}}", []),
        ("sharing: {allowMultipleAllocations: true}\nclaimConfig: {profiles: {plain: {}}}", []),
        (
            f"sharing: {{allowMultipleAllocations: true}}\nclaimConfig: {{profiles: {HOOKS}}}",
            ["hooks in after, before of a shared device run for each claim, while"],
        ),
    ],
)
def test_advice(resource: str, expected: list[str]) -> None:
    found = advice(load(document(f"match: [{{subsystem: usb}}]\n{resource}", head=HEAD)))
    assert len(found) == len(expected)
    for text, part in zip(found, expected, strict=True):
        assert text.startswith("resources[0] (example.com/thing): ")
        assert part in text


@pytest.mark.parametrize(
    ("match", "count"),
    [
        ("[{devnode: /dev/x}]", 1),
        ("[{subsystem: usb}, {devnode: /dev/x}]", 1),
        ("[{parent: {subsystem: usb}}]", 1),
        ("[{rule: 'SUBSYSTEM==\"tty\"'}]", 0),
        ("[{rule: 'SUBSYSTEM!=\"tty\"'}]", 1),
    ],
)
def test_subsystem(match: str, count: int) -> None:
    assert len(advice(load(document(f"match: {match}", head=HEAD)))) == count


@pytest.mark.parametrize(
    ("whole", "part", "surprise"),
    [
        ('legacy: "*", dra: 0', 'legacy: 0, dra: "*"', "parts go to dra, their wholes (example.com/thing) to legacy"),
        ("dra: 2", 'legacy: 0, dra: "*"', "parts go to dra, their wholes (example.com/thing) to legacy and dra"),
        ("legacy: 1", "dra: {match: [{subsystem: usb}]}", ""),
        ("dra: 0", "legacy: 100%", ""),
        ('dra: "100%"', "legacy: 0", ""),
    ],
)
def test_parts_and_wholes_in_different_lanes(whole: str, part: str, surprise: str) -> None:
    parts = f"""- name: example.com/part
  match: [{{subsystem: usb}}]
  partition: {{of: example.com/thing}}
  lanes: {{{part}}}
"""
    found = advice(load(document(f"match: [{{subsystem: usb}}]\nlanes: {{{whole}}}", head=HEAD) + parts))
    assert [text.partition(": ")[0] for text in found] == (["resources[1] (example.com/part)"] if surprise else [])
    assert surprise in "".join(found)


def test_the_placeholder_driver() -> None:
    assert "placeholder" in advice(load(document("match: [{subsystem: usb}]")))[0]


def test_examples_hold_no_surprise() -> None:
    for path in (Path(__file__).parents[2] / "deploy" / "examples").glob("*.yaml"):
        assert advice(load(path)) == (), path.stem
