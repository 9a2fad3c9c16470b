"""The demo from its beginning to its end, as a newcomer runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


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
