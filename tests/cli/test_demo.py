"""The demo from beginning to end, as a newcomer runs it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from drabridge.cli import main


def loop_devices() -> set[str]:
    return {path.name for path in Path("/sys/block").glob("loop*")}


def test_the_demo_tells_its_story_and_leaves_nothing_behind() -> None:
    done = subprocess.run([sys.executable, "-m", "drabridge", "demo"], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Simulated: the API server, the scheduler, kubelet" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    for word in ("Allocate", "NodePrepareResources", "restart"):
        assert word in done.stdout, done.stdout
    made = set(re.findall(r"loop\d+", done.stdout))  # where it could make any
    assert not made & loop_devices()


@pytest.mark.parametrize("missing", ["celpy", "drabridge.sim"])
def test_without_the_extra_one_line_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr("drabridge.cli.demo.find_spec", lambda name: None if name == missing else find_spec(name))
    assert main(["demo"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert "pip install 'drabridge[demo]'" in line
