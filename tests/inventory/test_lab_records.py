"""Devices recorded in the lab's guest: what ``suggest`` writes for each matches it alone."""

from __future__ import annotations

import pytest

from tests.lab.records import RECORDS
from tests.support.umockdev import needs_umockdev, run_under_umockdev

pytestmark = needs_umockdev


@pytest.mark.parametrize("name", RECORDS)
def test_suggested_entries_match_one_device(name: str) -> None:
    run_under_umockdev("tests.inventory.umockdev_lab", name)
