"""A whole and its parts are called otherwise while a pod has one of them: nobody is given the other one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WRAPPER = shutil.which("umockdev-wrapper")
CASES = [
    ("parent", "whole", "reload"),
    ("parent", "part", "restart"),
    ("link:physfn", "whole", "restart"),
    ("link:physfn", "part", "reload"),
]


OVERLAPS = [
    *((case, how) for case in ("group-child", "child-group") for how in ("reload", "restart")),
    ("parent-child", "restart"),
    ("child-parent", "reload"),
    ("group-child", "restart, claims"),
    ("child-group", "reload, claims"),
    ("side-by-side", ""),
]
pytestmark = [
    pytest.mark.umockdev,
    pytest.mark.skipif(WRAPPER is None, reason="there is no umockdev-wrapper: apt-get install umockdev"),
]


@pytest.mark.parametrize(("by", "held", "how"), CASES)
def test_a_part_and_its_whole_are_never_held_at_once(by: str, held: str, how: str) -> None:
    run("tests.agent.umockdev_parts", by, held, how)


@pytest.mark.parametrize(("case", "how"), OVERLAPS)
def test_a_device_and_what_it_hands_out_are_never_held_at_once(case: str, how: str) -> None:
    run("tests.agent.umockdev_overlap", case, how)


def run(*arguments: str) -> None:
    """A module in a process of its own, which libumockdev needs."""
    assert WRAPPER is not None
    done = subprocess.run(
        [WRAPPER, sys.executable, "-W", "error", "-m", *arguments],
        cwd=Path(__file__).parents[2],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"it ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
