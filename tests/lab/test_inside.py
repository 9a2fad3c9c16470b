"""Run the files of ``inside`` in one guest: each is a test here, whose output has theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.guest import Guest

pytestmark = pytest.mark.lab

FILES = sorted(path.stem for path in (Path(__file__).parent / "inside").glob("test_*.py"))
SECONDS = 1800.0


def passes_in(guest: Guest, *tests: str) -> None:
    """Run tests of ``inside`` in a guest: all must pass, and none be skipped."""
    done = guest.run(
        ["python3", "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
        + [f"tests/lab/inside/{test}" for test in tests],
        seconds=SECONDS,
        env={"HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis"},
    )
    print(done.out)
    assert done.rc == 0, done.out
    assert " passed" in done.out
    assert " skipped" not in done.out, done.out


@pytest.mark.parametrize("name", FILES)
def test_in_the_guest(shared_guest: Guest, name: str) -> None:
    if name == "test_network_functions" and "nic" not in shared_guest.devices:
        pytest.skip("this QEMU has no network card with virtual functions: 8.0 has")
    passes_in(shared_guest, f"{name}.py")
