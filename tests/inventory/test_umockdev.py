"""Simulated machines: each case of umockdev_cases.py runs in a process of its own under umockdev."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.inventory import umockdev_cases
from tests.support.umockdev import needs_umockdev, run_under_umockdev

TWO_STEPS = "a_record_can_be_plugged_in_elsewhere"

pytestmark = needs_umockdev
CASES = "tests.inventory.umockdev_cases"


@pytest.mark.parametrize("case", sorted(umockdev_cases.CASES.keys() - {TWO_STEPS}))
def test_machine(case: str) -> None:
    run_under_umockdev(CASES, case)


def test_a_record_can_be_plugged_in_elsewhere(tmp_path: Path) -> None:
    text = run_under_umockdev(CASES, TWO_STEPS)
    file = tmp_path / "machine.umockdev"
    file.write_text(text)
    run_under_umockdev(CASES, TWO_STEPS, DRABRIDGE_DUMP=str(file))
    listed = subprocess.run(
        ["umockdev-run", "--device", str(file), "--", "udevadm", "info", "/sys/bus/usb/devices/1-1"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert "ID_SERIAL_SHORT=ANON" in listed.stdout, listed.stderr
