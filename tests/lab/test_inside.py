"""Run the files of ``inside`` in one guest: each is a test here, whose output has theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.guest import Guest

pytestmark = pytest.mark.lab

FILES = sorted(path.stem for path in (Path(__file__).parent / "inside").glob("test_*.py"))
SECONDS = 900.0


@pytest.mark.parametrize("name", FILES)
def test_in_the_guest(shared_guest: Guest, name: str) -> None:
    if name == "test_network_functions" and "nic" not in shared_guest.devices:
        pytest.skip("this QEMU has no network card with virtual functions: 8.0 has")
    done = shared_guest.run(
        ["python3", "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", f"tests/lab/inside/{name}.py"],
        seconds=SECONDS,
        env={"HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis"},
    )
    print(done.out)
    assert done.rc == 0, done.out
    assert " passed" in done.out
    assert " skipped" not in done.out, done.out
