"""Real pods that end in every manner: a device whose holder has provably ended is free at once, all others wait.

A row of the table in docs/leases.md each; tests/agent/test_proven_ends.py has some on the simulated cluster. Not here:
a static pod, and an end that pod garbage collection wrote, which need a node that is given up
(tests/evidence/test_apiserver_pods.py has both as objects).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from kubernetes.client import ApiException

from tests.cluster import bed as b
from tests.cluster import workloads as w
from tests.cluster.bed import DEVICES, NAMESPACE, PODS, RESOURCE, SLICES, Bed, Json, at_the_beginning, wait_for
from tests.cluster.real_bed import real
from tests.cluster.releases.features import needs
from tests.cluster.steps import STUBBORN, deleted, force_deleted, has_phase, legacy_pod, running

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.cluster, needs("binding conditions")]

AT_ONCE_SECONDS = 5.0  # within a second on an idle machine; a doubt lasts for half a minute at least
DOUBT_SECONDS = 12.0
GRACE_SECONDS = 20
CONFIG: Json = {
    **b.CONFIG,
    "safety": {**b.CONFIG["safety"], "minHoldSeconds": 30, "unconfirmedSeconds": 30, "absentSeconds": 10},
    "resources": [{**b.CONFIG["resources"][0], "lanes": {"legacy": 0, "dra": 0, "shared": DEVICES}}],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Bed]:
    """One agent for all; each scenario leaves its devices free."""
    async with real(CONFIG) as bed:
        await bed.install()
        await at_the_beginning(bed)
        yield bed


async def devices(bed: Bed) -> list[Json]:
    status, text = await bed.drabridge("status", "-o", "json")
    assert status == 0, text
    rows: list[Json] = json.loads(text)["devices"]
    return rows


async def holders(bed: Bed) -> list[str]:
    """Names of the pods that the status shows; "" for one that is not known yet."""
    return sorted(one["pod"] for row in await devices(bed) for one in row["holders"])


async def all_free(bed: Bed) -> bool:
    """For both APIs, by the agent's own lists: the Node's numbers follow in 10 s."""
    rows = await devices(bed)
    listed = await bed.api.list(SLICES, field_selector=f"spec.driver={b.DRIVER},spec.nodeName={bed.node_object}")
    tainted = [one for each in listed.items for one in each["spec"].get("devices") or () if one.get("taints")]
    return not tainted and all(row["owner"] == "none" and row["offered"] == ["legacy", "dra"] for row in rows)


async def free_at_once(bed: Bed, what: str) -> None:
    began = time.monotonic()
    await wait_for(bed, f"devices to be free after {what}", lambda: all_free(bed))
    seconds = time.monotonic() - began
    print(f"{what}: free for both APIs after {seconds:.2f} s")
    assert seconds < AT_ONCE_SECONDS


async def held_in_doubt(bed: Bed) -> None:
    until = time.monotonic() + DOUBT_SECONDS
    while time.monotonic() < until:
        assert [row for row in await devices(bed) if row["owner"] == "legacy"]
        await asyncio.sleep(1.0)


async def ended(bed: Bed, name: str, phase: str) -> None:
    await wait_for(bed, f"pod {name} to have {phase}", lambda: has_phase(bed, name, phase))


@pytest.mark.parametrize("kubelet", ["runs on", "is restarted"])
async def test_a_pod_that_succeeds(node: Bed, kubelet: str) -> None:
    name = f"succeeds-{kubelet.replace(' ', '-')}"
    await legacy_pod(node, name, seconds=1 if kubelet == "runs on" else 20)
    if kubelet == "is restarted":
        await running(node, name)
        await node.restart_kubelet()
    await ended(node, name, "Succeeded")
    await free_at_once(node, name)
    await deleted(node, name)


@pytest.mark.parametrize("code", [0, 1])
async def test_a_pod_that_is_over_before_anybody_looks(node: Bed, code: int) -> None:
    name = f"short-{code}"
    await legacy_pod(node, name, then=f"exit {code}")
    await ended(node, name, "Failed" if code else "Succeeded")
    await free_at_once(node, name)
    assert f"pod {NAMESPACE}/{name} (container main)" in await node.agent_story()
    await deleted(node, name)


async def test_a_pod_that_is_deleted(node: Bed) -> None:
    await legacy_pod(node, "deleted")
    await running(node, "deleted")
    await deleted(node, "deleted")
    await free_at_once(node, "deleted")


async def test_a_pod_with_init_containers_that_have_the_device(node: Bed) -> None:
    """PodResources does not show it while its init container runs."""
    first = w.container(node.image, {"limits": {RESOURCE: "1"}}, name="first", seconds=5)
    spec = w.pod_spec(node.image, node.node, {}, then="exit 0", initContainers=[first])
    spec["containers"][0]["command"] = ["sh", "-c", "true"]
    await node.api.create(PODS, w.pod("init", spec), namespace=NAMESPACE)

    async def named() -> bool:
        return await holders(node) == ["init"]

    await wait_for(node, "the pod to be named while its init container runs", named, AT_ONCE_SECONDS + 10)
    await ended(node, "init", "Succeeded")
    await free_at_once(node, "init")
    await deleted(node, "init")


async def test_a_device_that_is_passed_from_pod_to_pod_shows_the_present_one(node: Bed) -> None:
    names = [f"turn-{turn}" for turn in range(3)]
    for turn, name in enumerate(names):
        await legacy_pod(node, name, seconds=6)
        await running(node, name)
        began = time.monotonic()
        while (shown := await holders(node)) != [name]:
            assert not set(shown) & set(names[:turn]), "an earlier holder"
            assert time.monotonic() - began < AT_ONCE_SECONDS, shown
            await asyncio.sleep(0.2)
        await ended(node, name, "Succeeded")
    await deleted(node, *names)


async def test_another_pod_of_the_name_is_another_holder(node: Bed) -> None:
    await legacy_pod(node, "again")
    await running(node, "again")
    before = [one["podUID"] for row in await devices(node) for one in row["holders"]]
    await deleted(node, "again")
    await legacy_pod(node, "again")
    await running(node, "again")

    async def another() -> bool:
        found = [one["podUID"] for row in await devices(node) for one in row["holders"]]
        return len(found) == 1 and bool(found[0]) and found != before

    await wait_for(node, "the new pod's UID", another, AT_ONCE_SECONDS)
    await deleted(node, "again")
    await free_at_once(node, "again")


async def test_a_force_deleted_pod_that_ignores_term_keeps_its_device(node: Bed) -> None:
    await legacy_pod(node, "zombie", terminationGracePeriodSeconds=GRACE_SECONDS, then=STUBBORN)
    await running(node, "zombie")
    await force_deleted(node, "zombie")
    await held_in_doubt(node)
    await wait_for(node, "the device to be free at last", lambda: all_free(node), 120.0)


async def test_a_pod_that_is_rejected_after_allocate_waits(node: Bed) -> None:
    """Its second container asks for more than there is; the scheduler, which would refuse it, is not asked."""
    more = w.container(node.image, {"limits": {RESOURCE: str(DEVICES)}}, name="more")
    spec: dict[str, Any] = w.pod_spec(node.image, node.node, {"limits": {RESOURCE: "1"}}, nodeName=node.node_object)
    spec["containers"].append(more)
    await node.api.create(PODS, w.pod("rejected", spec), namespace=NAMESPACE)
    await ended(node, "rejected", "Failed")

    async def named() -> bool:
        return await holders(node) == ["rejected"]

    await wait_for(node, "the rejected pod's name", named, AT_ONCE_SECONDS)
    await held_in_doubt(node)
    await wait_for(node, "the device to be free at last", lambda: all_free(node), 120.0)
    await deleted(node, "rejected")


async def test_an_end_while_the_api_server_is_away(node: Bed) -> None:
    """Its object is left, so the end is found when the pods are listed again."""
    await legacy_pod(node, "away", seconds=15)
    await running(node, "away")
    await node.fault("stop", "apiserver")
    await asyncio.sleep(25)
    await node.fault("start", "apiserver")
    await ended(node, "away", "Succeeded")
    await wait_for(node, "the device to be free", lambda: all_free(node), 30.0)
    await deleted(node, "away")


async def test_a_pod_of_a_kubelet_that_lost_its_checkpoint(node: Bed) -> None:
    """Neither of kubelet's answers names it any more. It was known by UID before, and ends as any other."""
    if node.kubelet_directory is None:
        pytest.skip("the node's files are out of reach")
    await legacy_pod(node, "forgotten")
    await running(node, "forgotten")

    async def named() -> bool:
        return await holders(node) == ["forgotten"]

    await wait_for(node, "the pod's name", named, AT_ONCE_SECONDS)
    await node.fault("stop", "kubelet")
    (node.kubelet_directory / "device-plugins" / "kubelet_internal_checkpoint").unlink()
    await node.fault("start", "kubelet")

    async def answers() -> bool:
        with contextlib.suppress(ApiException):
            return bool(await devices(node))
        return False

    await wait_for(node, "kubelet to answer", answers)
    await held_in_doubt(node)
    await deleted(node, "forgotten")
    await wait_for(node, "the device to be free", lambda: all_free(node), 30.0)
