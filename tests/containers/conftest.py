"""The directory that CDI files are written to."""

from __future__ import annotations

from pathlib import Path

import pytest

from drabridge.containers.cdi_store import CdiStore


@pytest.fixture
def store(tmp_path: Path) -> CdiStore:
    return CdiStore(tmp_path / "cdi", "drabridge.example.com")
