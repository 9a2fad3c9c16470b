"""Leases where a coordinator names the claims, and another one when the first was killed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from drabridge.kube.api import NotFoundError
from drabridge.kube.claim_hints import CONFIG_MAPS, LEASES, hints_name, hints_object, lock_name
from tests.cluster import bed as b
from tests.cluster.bed import DEVICES, DRIVER, NAMESPACE, PODS, Bed, Json, at_the_beginning, wait_for
from tests.cluster.real_bed import COORDINATOR, is_ready, real
from tests.cluster.releases.features import needs
from tests.cluster.steps import claim_pod, legacy_pod, running

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.cluster, needs("binding conditions")]

CONFIG: Json = {
    **b.CONFIG,
    "resources": [{**b.CONFIG["resources"][0], "lanes": {"legacy": 0, "dra": 0, "shared": DEVICES}}],
}


@pytest_asyncio.fixture(loop_scope="module")
async def coordinated() -> AsyncIterator[Bed]:
    """A cluster with a ready agent and two coordinators."""
    async with real(CONFIG, {"coordinator": {"enabled": True}}) as bed:
        await bed.install()
        await at_the_beginning(bed)
        yield bed


async def leader(bed: Bed) -> str:
    """The name of the pod that leads; "" for none."""
    with contextlib.suppress(NotFoundError):
        lease = await bed.api.get(LEASES, lock_name(DRIVER), namespace=NAMESPACE)
        return str(lease["spec"].get("holderIdentity") or "")
    return ""


async def ready(bed: Bed) -> set[str]:
    """Pods of coordinators that kubelet's probes find ready: the one that leads, and one that waits."""
    found = await bed.api.list(PODS, namespace=NAMESPACE, label_selector=COORDINATOR)
    return {pod["metadata"]["name"] for pod in found.items if is_ready(pod)}


async def hints(bed: Bed) -> str:
    """Another text after each write of what the agent's node is told."""
    found = await bed.api.get(CONFIG_MAPS, hints_name(DRIVER, bed.node_object), namespace=NAMESPACE)
    return str(found["metadata"]["resourceVersion"])


async def said(bed: Bed, words: str) -> int:
    """How often the agent said it."""
    return (await bed.agent_story()).count(words)


async def test_another_coordinator_goes_on_when_the_leader_is_killed(coordinated: Bed) -> None:
    bed = coordinated
    first = await wait_for(bed, "a coordinator to lead", lambda: leader(bed))
    await wait_for(bed, "the agent to follow it", lambda: said(bed, "the coordinator names the claims"))

    async def both() -> bool:
        return len(await ready(bed)) == 2 and first in await ready(bed)

    await wait_for(bed, "both coordinators to be ready", both)
    alone = await said(bed, "nominated pods are watched")
    await claim_pod(bed, "claim-0")
    await legacy_pod(bed, "limits")
    await running(bed, "claim-0", "limits")
    written = await hints(bed)
    left = hints_object(DRIVER, bed.node_object, "[]")
    left["metadata"]["name"] = f"drabridge-claims.{DRIVER}.{bed.node_object}"  # 0.2.0's
    await bed.api.create(CONFIG_MAPS, left, namespace=NAMESPACE)

    await bed.force_delete(first)

    async def another() -> bool:
        return await leader(bed) not in ("", first)

    await wait_for(bed, "another one to lead", another)
    await claim_pod(bed, "claim-1")
    await running(bed, "claim-1")
    assert await hints(bed) != written
    assert await said(bed, "nominated pods are watched") == alone

    async def deleted() -> bool:
        found = await bed.api.list(CONFIG_MAPS, namespace=NAMESPACE)
        return left["metadata"]["name"] not in [one["metadata"]["name"] for one in found.items]

    await wait_for(bed, "what a coordinator of 0.2.0 left to be deleted", deleted)
    assert not await bed.conflicts()
