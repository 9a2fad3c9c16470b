"""A failed scenario does not disturb the next one."""

from __future__ import annotations

import pytest

from tests.cluster.bed import NAMESPACE, PODS, lanes
from tests.cluster.beds import Beds
from tests.cluster.steps import claim_pod, legacy_pod, move, offered, running

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_after_a_failed_scenario_the_next_one_begins_as_the_first_did(beds: Beds) -> None:
    """It fails in the worst moment: pods have claims, lanes are moved, and the driver that would end them is away."""
    bed = await beds.begin()
    for name in ("l1", "c1"):
        await (legacy_pod if name == "l1" else claim_pod)(bed, name)
    await running(bed, "l1", "c1")
    await move(bed, legacy=1, dra=3)
    await offered(bed, legacy=1, dra=3)
    await bed.uninstall()
    await bed.api.delete(PODS, "c1", namespace=NAMESPACE)
    await beds.give_up()

    bed = await beds.begin()
    assert await bed.workload_pods() == []
    assert await lanes(bed) == (2, 2)
    for name in ("l1", "l2"):
        await legacy_pod(bed, name)
    for name in ("c1", "c2"):
        await claim_pod(bed, name)
    await running(bed, "l1", "l2", "c1", "c2")
    await beds.end()
