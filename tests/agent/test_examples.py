"""Every example of ``deploy/examples`` is run by a real agent on a machine made for it, each in a umockdev test bed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent import umockdev_examples

WRAPPER = shutil.which("umockdev-wrapper")
ROOT = Path(__file__).parents[2]


def test_every_example_has_its_machine() -> None:
    assert {path.stem for path in umockdev_examples.EXAMPLES.glob("*.yaml")} == set(umockdev_examples.CASES)


@pytest.mark.umockdev
@pytest.mark.skipif(WRAPPER is None, reason="there is no umockdev-wrapper: apt-get install umockdev")
@pytest.mark.parametrize("example", sorted(umockdev_examples.CASES))
def test_example(example: str) -> None:
    assert WRAPPER is not None
    done = subprocess.run(
        [WRAPPER, sys.executable, "-W", "error", "-m", "tests.agent.umockdev_examples", example],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{example} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
