"""A part of the lab that continuous integration has time for: two of its tests, in a guest with few devices."""

from __future__ import annotations

import pytest

from tests.lab import shelf
from tests.lab.guest import Guest

pytestmark = pytest.mark.lab

DEVICES = {"edu3", "oldnet", "nvme2", "nvme3"}
TESTS = ("test_groups.py::test_two_functions_of_one_group_are_never_two_holders", "test_slots.py")


def test_a_group_and_a_slot() -> None:
    with Guest(devices=[device for device in shelf.AT_BOOT if device.name in DEVICES]) as guest:
        print(f"booted in {guest.boot_seconds:.0f} s, {guest.cpu_seconds():.0f} s of processor time")
        guest.passes(*TESTS)
        print(f"{guest.cpu_seconds():.0f} s of processor time in all")
