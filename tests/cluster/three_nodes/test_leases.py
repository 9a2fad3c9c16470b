"""Devices of three nodes for both APIs, each for whoever comes first."""

from __future__ import annotations

import pytest

from tests.cluster.bed import CLAIMS, DEVICES, NAMESPACE
from tests.cluster.releases.features import needs
from tests.cluster.steps import claim_pod, deleted, event, legacy_pod, running
from tests.cluster.three_nodes.bed import NAMES, ThreeNodes, config

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.cluster, needs("binding conditions")]

CONFIG = config(legacy=0, dra=0, shared=DEVICES)
ALL = DEVICES * len(NAMES)


async def test_every_device_of_three_nodes_is_had_once_whoever_comes_first(three: ThreeNodes) -> None:
    """Half by limits and half by claims, anywhere; the next one waits, and gets what comes free on whichever node."""
    limits = [f"limits-{number}" for number in range(ALL // 2)]
    claims = [f"claim-{number}" for number in range(ALL // 2)]
    for one, other in zip(limits, claims, strict=True):
        await claim_pod(three, other)
        await legacy_pod(three, one)
        await running(three, one)  # the one of a moment ago may be refused where a claim was quicker
    await running(three, *claims)
    held = [device for name in (*limits, *claims) for device in (await three.has(name))[1]]
    assert sorted(held) == sorted(disk for one in three.cluster.spec.nodes for disk in one.disks)
    await claim_pod(three, "late")
    await event(three, "late", "FailedScheduling")
    node, freed = await three.has(limits[0])
    await deleted(three, limits[0])
    await running(three, "late")
    assert await three.has("late") == (node, freed)
    await deleted(three, "late", *limits[1:], *claims)
    for name in ("late", *claims):
        await three.api.delete(CLAIMS, name, namespace=NAMESPACE)
    await three.all_is_free()
