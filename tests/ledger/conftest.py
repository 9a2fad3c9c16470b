"""A directory for a ledger that does not exist yet."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state"
