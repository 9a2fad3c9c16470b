"""The guest of the lab's tests, and which of them run where.

Files below ``inside`` run in the guest, by ``test_inside.py``. The others run here, and skip unless DRABRIDGE_LAB is
set: they boot virtual machines, which takes minutes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.guest import Guest, needs
from tests.lab.inside.server import PORT

HERE = Path(__file__).parent
collect_ignore_glob = [] if PORT.exists() else ["inside/*"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if PORT.exists():
        return
    missing = needs()
    reason = "" if os.environ.get("DRABRIDGE_LAB") else "boots virtual machines for minutes: make lab"
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("lab"):
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))
            elif missing:
                item.add_marker(pytest.mark.skip(reason=f"apt-get install {' '.join(missing)}"))


@pytest.fixture(scope="module")
def shared_guest() -> Iterator[Guest]:
    """One guest for all tests of a file, which leave it as they found it; the next file's starts when it has ended."""
    with Guest() as guest:
        yield guest
