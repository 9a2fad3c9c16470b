"""Consumable capacity: what a request policy makes of a request, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from drabridge.sim.scheduler.consumable import consumed, covers

RANGE = {"default": "20Gi", "validRange": {"min": "20Gi", "step": "5Gi", "max": "40Gi"}}
OPEN_RANGE = {"default": "4", "validRange": {"min": "4"}}
VALUES = {"default": "2", "validValues": ["1", "2", "8"]}


@pytest.mark.parametrize(
    ("value", "policy", "asked", "expected"),
    [
        ("64Gi", None, None, "64Gi"),
        ("64Gi", None, "3Gi", "3Gi"),
        ("64Gi", None, "65Gi", None),
        ("64Gi", {"default": "1Gi"}, None, "1Gi"),
        ("64Gi", {"default": "1Gi"}, "3Gi", "3Gi"),
        ("64Gi", RANGE, None, "20Gi"),
        ("64Gi", RANGE, "1Gi", "20Gi"),
        ("64Gi", RANGE, "20Gi", "20Gi"),
        ("64Gi", RANGE, "21Gi", "25Gi"),
        ("64Gi", RANGE, "36Gi", "40Gi"),
        ("64Gi", RANGE, "41Gi", None),
        ("64", OPEN_RANGE, "1", "4"),
        ("64", OPEN_RANGE, "5", "5"),
        ("8", VALUES, None, "2"),
        ("8", VALUES, "1", "1"),
        ("8", VALUES, "3", "8"),
        ("8", VALUES, "9", None),
    ],
)
def test_rounding(value: str, policy: Any, asked: str | None, expected: str | None) -> None:
    capacity: Any = {"value": value, **({"requestPolicy": policy} if policy else {})}
    found = consumed({"m": capacity}, {"m": asked} if asked else {})
    assert (str(found["m"]) if found else None) == expected


def test_a_capacity_that_the_device_lacks_is_not_served() -> None:
    assert consumed({"m": {"value": "1"}}, {"other": "1"}) is None
    assert not covers({"m": {"value": "1"}}, {"other": "1"})
    assert covers({"m": {"value": "2"}}, {"m": "2"})
    assert not covers({"m": {"value": "2"}}, {"m": "2001m"})
