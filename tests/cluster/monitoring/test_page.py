"""The page for people, as ``kubectl port-forward`` brings it with the chart's defaults."""

from __future__ import annotations

import pytest

from tests.cluster.bed import NAMESPACE, Bed
from tests.cluster.steps import legacy_pod, running

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_forwarded_port_shows_who_holds_what_and_changes_nothing(bed: Bed) -> None:
    await legacy_pod(bed, "l1")
    await running(bed, "l1")
    status, body = await bed.page()
    assert (status, "<html" in body) == (200, True)
    assert bed.node in body
    assert f"{NAMESPACE}/l1/main" in body or "a pod, not yet seen" in body
    assert (await bed.page(host="evil.example"))[0] == 421
    for path in ("/status", "/lanes", "/release", "/drain"):
        assert (await bed.page(path))[0] == 404, path
