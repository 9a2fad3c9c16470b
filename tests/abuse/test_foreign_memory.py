"""Objects that users write cost the agent little memory: 128 MiB is half of the chart's limit.

``python -m tests.bench foreign_objects`` does the same with 200 pods and 100 claims.
"""

from __future__ import annotations

import pytest

from tests.support import foreign_objects


@pytest.mark.slow
async def test_memory_stays_bounded_with_huge_pods_and_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await foreign_objects.peak_mib(monkeypatch, pods=30, claims=20) < 128
