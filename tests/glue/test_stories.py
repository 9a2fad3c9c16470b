"""No random story ends badly, and each piece of glue that is broken on purpose makes one that does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.glue.broken import BROKEN
from tests.glue.worlds import WORLDS

ROOT = Path(__file__).parents[2]


def stories(*words: str) -> tuple[int, str]:
    """Tell stories in a process of its own: with its order of sets each can be told again."""
    command = [sys.executable, "-m", "tests.glue", *words]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("world", [one.name for one in WORLDS])
def test_nobody_shares_a_device_or_waits_for_ever(world: str) -> None:
    """Two pods with one device, a pod that never starts, a device that never comes back: of all that none."""
    status, text = stories("--stories", "3", "--world", world)
    assert status == 0, text
    told = re.fullmatch(r"(\d+) stories, (\d+) containers.*", text.splitlines()[-1])
    assert told
    assert int(told[2]) > int(told[1]), "stories in which nothing runs find nothing"


@pytest.mark.parametrize("way", BROKEN)
def test_broken_glue_is_found(way: str) -> None:
    world, seed = BROKEN[way].found_in
    status, text = stories("--stories", "10", "--stop", "--seed", str(seed), "--world", world, "--broken", way)
    assert status == 1, text
