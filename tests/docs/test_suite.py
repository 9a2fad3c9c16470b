"""What ``tests/conftest.py`` demands and tells, in a distributed run as ``make test`` starts one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
MAKEFILE = CONFTEST.parents[1] / "Makefile"
SUITE = """
import pytest

def test_search(record_property):
    record_property("search", "a world: 7 states")

@pytest.mark.root
def test_root():
    pytest.skip("nobody is root here")

@pytest.mark.podman
def test_podman():
    pass
"""

LONG = """
import pytest

pytestmark = pytest.mark.long

def test_long():
    pass
"""


def run(tmp_path: Path, required: str, tests: str = SUITE) -> tuple[int, str]:
    """Exit status and output of a small suite of its own with our conftest."""
    area = tmp_path / "tests/area"
    area.mkdir(parents=True)
    shutil.copy(CONFTEST, tmp_path / "tests")
    (area / "test_it.py").write_text(tests)
    (area / "test_long.py").write_text(LONG)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\ntestpaths = tests\nmarkers =\n  root: uid 0\n  podman: containers\n  long: first\n"
    )
    workers = re.findall(r"^WORKERS := (.*?) *#", MAKEFILE.read_text(), re.MULTILINE)[0].split()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *workers, "-n", "1", "-v", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "DRABRIDGE_REQUIRE_MARKERS": required},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_search_tells_what_it_explored_and_tests_marked_long_begin_first(tmp_path: Path) -> None:
    status, output = run(tmp_path, "")
    assert status == 0, output
    assert re.findall(r"PASSED tests/area/(test_\w+)", output) == ["test_long", "test_it", "test_it"]
    assert "ledger: search of small worlds" in output
    assert "a world: 7 states" in output


def test_what_is_required_may_not_be_skipped(tmp_path: Path) -> None:
    status, output = run(tmp_path, "root podman")
    assert status == pytest.ExitCode.TESTS_FAILED, output
    assert "REQUIRED HERE, BUT SKIPPED: tests/area/test_it.py::test_root [root]" in output
    assert "nobody is root here" in output
    assert "tests that ran on the real thing: podman 1, root 0" in output


def test_what_is_required_has_to_have_a_test(tmp_path: Path) -> None:
    status, output = run(tmp_path, "root", "def test_plain(): pass")
    assert status == pytest.ExitCode.TESTS_FAILED, output
    assert "tests that ran on the real thing: root 0" in output


def test_what_is_required_and_ran_is_counted(tmp_path: Path) -> None:
    status, output = run(tmp_path, "podman")
    assert status == 0, output
    assert "tests that ran on the real thing: podman 1" in output
