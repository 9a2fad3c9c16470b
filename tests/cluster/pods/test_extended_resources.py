"""The end of a migration: unmodified pods, that the scheduler serves by claims (``extendedResourceName``)."""

from __future__ import annotations

import pytest

from tests.cluster import bed as b
from tests.cluster import workloads as w
from tests.cluster.bed import CLASS, NAMESPACE, PODS, RESOURCE, Bed, Json, failed
from tests.cluster.releases.features import needs
from tests.cluster.steps import deleted, legacy_pod, move, offered, running

pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs("extended resources")]

CONFIG: Json = {
    **b.CONFIG,
    "resources": [
        {**b.CONFIG["resources"][0], "deviceClass": {"name": CLASS, "extendedResourceName": RESOURCE}},
    ],
}


async def served_by_a_claim(bed: Bed, name: str) -> bool:
    return bool((await bed.api.get(PODS, name, namespace=NAMESPACE))["status"].get("extendedResourceClaimStatus"))


async def test_the_last_device_goes_to_claims_and_unmodified_pods_go_with_it(bed: Bed) -> None:
    await legacy_pod(bed, "l1")
    await running(bed, "l1")
    assert not await served_by_a_claim(bed, "l1"), "while the node has the resource the scheduler asks no slice"
    await move(bed, legacy=0, dra=4)
    await offered(bed, legacy=1, dra=3)
    await deleted(bed, "l1")
    await offered(bed, legacy=0, dra=4)

    spec = w.spec_of(
        bed.node,
        w.container(bed.image, {"limits": {RESOURCE: "2"}}, name="two"),
        w.container(bed.image, {"limits": {RESOURCE: "1"}}, name="one"),
    )
    await bed.api.create(PODS, w.pod("unmodified", spec), namespace=NAMESPACE)
    await legacy_pod(bed, "l2")
    await running(bed, "unmodified", "l2")
    for name in ("unmodified", "l2"):
        if not await served_by_a_claim(bed, name):
            raise await failed(bed, f"{name} is not served by a claim")
    devices = [*await bed.devices("unmodified"), *await bed.devices("l2")]
    assert sorted(devices) == ["full", "null", "random", "zero"]
    await deleted(bed, "unmodified")
    await legacy_pod(bed, "l3")
    await running(bed, "l2", "l3")
