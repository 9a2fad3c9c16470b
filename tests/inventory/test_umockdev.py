"""Whole machines that are not there: every case of umockdev_cases.py, each in a process of its own under umockdev."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.inventory import umockdev_cases

WRAPPER = shutil.which("umockdev-wrapper")
ROOT = Path(__file__).parents[2]
TWO_STEPS = "a_record_can_be_plugged_in_elsewhere"

pytestmark = [
    pytest.mark.umockdev,
    pytest.mark.skipif(WRAPPER is None, reason="there is no umockdev-wrapper: apt-get install umockdev"),
]


def run(case: str, **environment: str) -> str:
    assert WRAPPER is not None
    done = subprocess.run(
        [WRAPPER, sys.executable, "-W", "error", "-m", "tests.inventory.umockdev_cases", case],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{case} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("case", sorted(umockdev_cases.CASES.keys() - {TWO_STEPS}))
def test_machine(case: str) -> None:
    run(case)


def test_a_record_can_be_plugged_in_elsewhere(tmp_path: Path) -> None:
    text = run(TWO_STEPS)
    file = tmp_path / "machine.umockdev"
    file.write_text(text)
    run(TWO_STEPS, DRABRIDGE_DUMP=str(file))
    listed = subprocess.run(
        ["umockdev-run", "--device", str(file), "--", "udevadm", "info", "/sys/bus/usb/devices/1-1"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert "ID_SERIAL_SHORT=ANON" in listed.stdout, listed.stderr
