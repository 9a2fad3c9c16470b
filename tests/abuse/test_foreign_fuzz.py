"""Whatever one of many objects is, the others are served: readers by themselves, and a whole agent."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.abuse import strange

ROUNDS = 60  # one strange thing for each reader a round; `python -m tests.bench fuzz` has many more


def test_no_reader_stumbles_over_a_strange_object(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    assert strange.run(20_261_122, ROUNDS, tmp_path) == ROUNDS * 10
