"""The memory measurement itself: its slope is right, pods really come and go, samples are of the agent's process."""

from __future__ import annotations

import asyncio

import pytest

from tests.abuse.memory import Sample, curve, measure, slope
from tests.support import forks
from tests.support.waiting import PATIENCE


def test_slope_of_a_line_is_exact() -> None:
    assert slope([(0, 10.0), (3600, 12.0)]) == pytest.approx(2.0)
    assert slope([(seconds, 50.0 + seconds * 3 / 3600) for seconds in range(0, 900, 10)]) == pytest.approx(3.0)
    assert slope([(0, 1.0)]) == 0.0


def test_curve_is_thinned_out() -> None:
    assert len(curve([Sample(n, 50.0, 40.0, 30, n) for n in range(1000)]).splitlines()) <= 45


async def test_a_short_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(forks.SERVER, "off")
    async with asyncio.timeout(60 * PATIENCE):
        samples = await measure(minutes=0.06, every_seconds=1.0, least_pods=11)
    assert samples[-1].pods > 10
    assert 20 < samples[-1].anonymous_mib < samples[-1].rss_mib < 200
    assert samples[-1].file_descriptors < 60
