"""Memory that a start needed is given back to the kernel."""

from __future__ import annotations

from pathlib import Path

from drabridge.system.memory import release_memory_of_start


def test_memory_is_given_back_and_the_program_goes_on() -> None:
    assert release_memory_of_start() > 0
    assert sorted([3, 1, 2]) == [1, 2, 3]
    assert release_memory_of_start(Path("/nonexistent")) == 0
