"""``make gpu`` with stand-ins: each step of a machine with a GPU, on the simulated node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gpu.__main__ import main
from tests.support.nvml import needs_compiler
from tests.support.umockdev import needs_umockdev, run_under_umockdev


@pytest.mark.umockdev
@needs_umockdev[1]
@needs_compiler
def test_every_step_sees_what_is_expected(tmp_path: Path) -> None:
    results = tmp_path / "gpu.json"
    said = run_under_umockdev("tests.gpu", "run", "--simulated", "--json", str(results))
    steps = json.loads(results.read_text())["steps"]
    assert [one["step"] for one in steps if one["outcome"] != "ok"] == [], said


def test_without_a_driver_nothing_is_started_and_the_error_says_what_can_be_tried(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tests.gpu.real.DRIVER_FILE", tmp_path / "version")
    assert main(["run"]) == 2
    assert "--stand-in" in capsys.readouterr().err
