"""Pods that move between nodes with their claims: the claim is allocated anew, and the old device comes free."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

from tests.cluster import workloads as w
from tests.cluster.bed import CLAIMS, DEVICES, NAMESPACE, NODES, PODS, TEMPLATES, wait_for
from tests.cluster.real_bed import STATEFUL_SETS
from tests.cluster.steps import STUBBORN, claim_pod, deleted, force_deleted, running, runs_at_last
from tests.cluster.three_nodes.bed import NAMES, ThreeNodes, config

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.cluster]

CONFIG = config(legacy=0, dra=DEVICES)


async def with_the_claim(three: ThreeNodes, name: str, claim: str, node: str, **more: Any) -> None:
    """A pod on a node with a claim that is there already."""
    spec = w.with_claim(three.image, node, {"resourceClaimName": claim}, **more)
    await three.api.create(PODS, w.pod(name, spec), namespace=NAMESPACE)


async def owners(three: ThreeNodes) -> dict[str, int]:
    """Return how many devices of each node have an owner."""
    return {one.node_object: len(await one.owners()) for one in three.each_node()}


async def test_a_claim_goes_from_node_to_node_with_its_pods(three: ThreeNodes) -> None:
    await three.api.create(CLAIMS, w.claim("goes"), namespace=NAMESPACE)
    for turn, node in enumerate((*NAMES, NAMES[0])):
        await with_the_claim(three, f"goes-{turn}", "goes", node)
        await running(three, f"goes-{turn}")
        assert (await three.has(f"goes-{turn}"))[0] == node

        async def one_owner(node: str = node) -> bool:
            return await owners(three) == {name: int(name == node) for name in NAMES}

        await wait_for(three, f"one device of {node} to have an owner, and no other", one_owner)
        await deleted(three, f"goes-{turn}")
    await three.api.delete(CLAIMS, "goes", namespace=NAMESPACE)
    await three.all_is_free()


async def test_a_claim_is_elsewhere_while_its_former_container_still_ends(three: ThreeNodes) -> None:
    """The API server forgets the first pod, whose container goes on: its device is for nobody until that has ended."""
    first, second, _ = NAMES
    await claim_pod(three.on(first), "goes", terminationGracePeriodSeconds=6, then=STUBBORN)
    await running(three, "goes")
    await force_deleted(three, "goes")
    others = [f"fills-{number}" for number in range(DEVICES)]
    for name in others:
        await claim_pod(three.on(first), name)
    await with_the_claim(three, "again", "goes", second)
    await running(three, "again")
    assert (await three.has("again"))[0] == second
    for name in others:
        await runs_at_last(three.on(first), name)
    held = [device for name in others for device in (await three.has(name))[1]]
    assert len({*held}) == DEVICES
    await deleted(three, "again")
    await deleted(three, *others)
    for name in ("goes", *others):
        await three.api.delete(CLAIMS, name, namespace=NAMESPACE)
    await three.all_is_free()


async def test_a_drained_node_s_pods_get_claims_on_the_others(three: ThreeNodes) -> None:
    """A StatefulSet's claims are made from a template with each pod; one node is cordoned and drained, then another."""
    replicas = DEVICES + 2
    await three.api.create(TEMPLATES, w.template("each"), namespace=NAMESPACE)
    spec = w.with_claim(three.image, "", {"resourceClaimTemplateName": "each"}, restartPolicy="Always", tolerations=[])
    labels = {"app": "store"}
    body = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": w.meta("store"),
        "spec": {
            "replicas": replicas,
            "serviceName": "store",
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    await three.api.create(STATEFUL_SETS, body, namespace=NAMESPACE)
    pods = [f"store-{number}" for number in range(replicas)]
    try:
        for drained in (NAMES[0], NAMES[1]):
            await wait_for(three, "all pods to run", partial(elsewhere, three, ""))
            await cordon(three, drained)
            for name in pods:
                if (await three.has(name))[0] == drained:
                    await three.api.delete(PODS, name, namespace=NAMESPACE)
            await wait_for(three, f"the pods to run elsewhere than on {drained}", partial(elsewhere, three, drained))
            held = [await three.has(name) for name in pods]
            assert len({device for _, devices in held for device in devices}) == replicas
            await uncordon(three, drained)
        assert max(Counter(node for node, _ in held).values()) <= DEVICES
    finally:
        for name in NAMES:
            await uncordon(three, name)
    await three.api.delete(STATEFUL_SETS, "store", namespace=NAMESPACE)
    await three.all_is_free()


async def elsewhere(three: ThreeNodes, drained: str) -> bool:
    pods = await three.workload_pods()
    nodes = [
        one["spec"]["nodeName"]
        for one in pods
        if one["status"].get("phase") == "Running" and not one["metadata"].get("deletionTimestamp")
    ]
    return len(nodes) == DEVICES + 2 and drained not in nodes


async def cordon(three: ThreeNodes, name: str, *, off: bool = False) -> None:
    async def done() -> bool:
        node = await three.api.get(NODES, name)
        node["spec"]["unschedulable"] = not off
        await three.api.replace(NODES, node)
        return True

    await wait_for(three, f"{name} to be {'un' if off else ''}cordoned", done)


async def uncordon(three: ThreeNodes, name: str) -> None:
    await cordon(three, name, off=True)
