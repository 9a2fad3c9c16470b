"""CEL selectors on devices: the language that users select with, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from drabridge.sim.scheduler.cel import device_value, matches
from tests.sim.scheduler.world import DRIVER, device

GPU: Any = device(
    "gpu-0",
    attributes={
        "model": "A100",
        "index": 2,
        "ecc": True,
        "driverVersion": "v:580.95.5",
        "other.example.com/rack": "r7",
    },
    capacity={"memory": "64Gi"},
)
D = f'device.attributes["{DRIVER}"]'
C = f'device.capacity["{DRIVER}"]'


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (f'device.driver == "{DRIVER}"', True),
        ('device.driver == "x"', False),
        (f'{D}.model == "A100"', True),
        (f'{D}.model in ["A100", "H100"]', True),
        (f'{D}.model.startsWith("H")', False),
        (f'{D}.model.matches("^A[0-9]+$")', True),
        (f'{D}.model.lowerAscii() == "a100"', True),
        (f"{D}.index > 1 && {D}.index < 3", True),
        (f"{D}.ecc", True),
        (f"!{D}.ecc", False),
        (f'"model" in {D}', True),
        (f'"nope" in {D}', False),
        (f"has({D}.model)", True),
        (f'has({D}.nope) && {D}.nope == "x"', False),
        ('device.attributes["other.example.com"].rack == "r7"', True),
        ('"rack" in device.attributes["unused.example.com"]', False),
        ('["A100", "B200"].exists(one, one == ' + f"{D}.model)", True),
        (f'{D}.driverVersion.isGreaterThan(semver("570.0.0"))', True),
        (f'{D}.driverVersion.isLessThan(semver("580.95.5"))', False),
        (f'{D}.driverVersion.compareTo(semver("580.95.5")) == 0', True),
        (f'{D}.driverVersion == semver("580.95.5")', True),
        (f"{D}.driverVersion.major() == 580 && {D}.driverVersion.patch() == 5", True),
        ('isSemver("1.2") || !isSemver("1.2.3")', False),
        (f'{C}.memory.compareTo(quantity("10Gi")) >= 0', True),
        (f'{C}.memory.isGreaterThan(quantity("64Gi"))', False),
        (f'{C}.memory.isLessThan(quantity("1Ti"))', True),
        (f'{C}.memory == quantity("65536Mi")', True),
        ("device.allowMultipleAllocations", False),
    ],
)
def test_table(expression: str, expected: bool) -> None:
    assert matches(expression, device_value(DRIVER, GPU)) is expected
