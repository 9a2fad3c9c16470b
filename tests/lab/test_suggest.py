"""``drabridge suggest`` for every device of the shelf: alone, under other numbers, and after a reboot."""

from __future__ import annotations

import json

import pytest

from tests.lab import shelf
from tests.lab.guest import Guest
from tests.lab.inside.found import WHERE

pytestmark = pytest.mark.lab

LATE = {"radio1", "radio2", "stick1", "nvme2", "scsi1", "tablet"}
"""Plugged in after the second boot, in this order: what stayed has taken their numbers by then."""
ALL = [device.name for device in shelf.AT_BOOT if device.name != "watchdog"]  # two watchdogs, and no way to tell them


def _checked(guest: Guest, entries: dict[str, str]) -> dict[str, dict[str, list[str]]]:
    done = guest.run(
        ["python3", "-m", "tests.lab.inside.suggestions", "check"], stdin=json.dumps(entries), seconds=600, check=True
    )
    answers: dict[str, dict[str, list[str]]] = json.loads(done.out)
    return answers


def _wrong(answers: dict[str, dict[str, list[str]]]) -> dict[str, dict[str, list[str]]]:
    return {name: answer for name, answer in answers.items() if not answer["is"] or answer["matched"] != answer["is"]}


def test_an_entry_matches_its_device_alone_also_after_a_reboot_under_other_numbers() -> None:
    assert set(ALL) <= set(WHERE)
    with Guest() as guest:
        names = [name for name in ALL if name in guest.devices]
        entries: dict[str, str] = json.loads(guest.python("tests.lab.inside.suggestions", "write", *names, seconds=900))
        before = _checked(guest, entries)
    assert _wrong(before) == {}

    first = [device for device in shelf.AT_BOOT if device.name not in LATE]
    late = [device for device in shelf.AT_BOOT if device.name in LATE]
    with Guest(devices=first, spare=late) as again:
        for device in reversed(late):
            again.plug(device.name)
        again.run(["udevadm", "settle"], check=True)
        after = _checked(again, entries)
    assert _wrong(after) == {}
    renumbered = {name for name in names if before[name]["is"] != after[name]["is"]}
    assert renumbered >= LATE - {"tablet", "scsi1"}, "else this test sees less than it says"
