"""Devices recorded in the lab's guest: what ``suggest`` writes for each matches it alone."""

from __future__ import annotations

import pytest

from tests.lab.records import RECORDS
from tests.support.umockdev import TREES, needs_umockdev, run_under_umockdev

pytestmark = needs_umockdev


KEPT = [name for name in RECORDS if (TREES / f"{name}.umockdev").exists()]  # not every QEMU has all devices


@pytest.mark.parametrize("name", KEPT)
def test_suggested_entries_match_one_device(name: str) -> None:
    run_under_umockdev("tests.inventory.umockdev_lab", name)
