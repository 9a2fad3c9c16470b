"""Leases on three nodes with a coordinator: its leader killed, paused in its work, and parted from the cluster."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.cluster.bed import CLAIMS, DEVICES, NAMESPACE, Json, wait_for
from tests.cluster.releases.features import needs
from tests.cluster.steps import claim_pod, deleted, legacy_pod, running
from tests.cluster.three_nodes.bed import NAMES, ThreeNodes, config, signal_pod
from tests.cluster.three_nodes.coordinators import another_leads, two_are_ready

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.cluster, needs("binding conditions")]

CONFIG = config(legacy=0, dra=0, shared=DEVICES)
VALUES = {"coordinator": {"enabled": True}}


async def two_work(three: ThreeNodes) -> Json:
    """Wait for a leader, another coordinator that waits, and agents that follow; return the leader."""
    one = await two_are_ready(three)

    async def followed() -> bool:
        return all(["the coordinator names the claims" in await each.agent_story() for each in three.each_node()])

    await wait_for(three, "every agent to follow it", followed)
    return one


async def one_of_each(three: ThreeNodes, mark: str, *names: str) -> list[str]:
    """Pods of both kinds on these nodes run; return their names."""
    pods = [f"{kind}-{mark}-{name}" for name in names for kind in ("c", "l")]
    for name in names:
        await claim_pod(three.on(name), f"c-{mark}-{name}")
        await legacy_pod(three.on(name), f"l-{mark}-{name}")
    await running(three, *pods)
    return pods


async def freed(three: ThreeNodes, pods: list[str]) -> None:
    await deleted(three, *pods)
    for name in pods:
        if name.startswith("c-"):
            await three.api.delete(CLAIMS, name, namespace=NAMESPACE)
    await three.all_is_free()


async def test_leases_go_on_when_the_leader_is_killed(three: ThreeNodes) -> None:
    first = await two_work(three)
    pods = await one_of_each(three, "1", *NAMES)
    await three.force_delete(first["metadata"]["name"])
    await another_leads(three, first)
    pods += await one_of_each(three, "2", *NAMES)
    await freed(three, pods)


async def test_a_leader_that_is_paused_comes_back_late_and_harms_nobody(three: ThreeNodes) -> None:
    """Frozen for longer than it leads for, with claims to name; then it goes on where it was, with what it knew."""
    first = await two_work(three)
    pods = await one_of_each(three, "1", *NAMES)
    signal_pod(first["metadata"]["uid"], signal.SIGSTOP)
    try:
        begun = [asyncio.create_task(one_of_each(three, "2", name)) for name in NAMES]
        await another_leads(three, first)
        for one in begun:
            pods += await one
        await deleted(three, *(one for one in pods if "-1-" in one))
    finally:
        signal_pod(first["metadata"]["uid"], signal.SIGCONT)
    pods = [one for one in pods if "-1-" not in one]
    for name in NAMES:
        await three.api.delete(CLAIMS, f"c-1-{name}", namespace=NAMESPACE)
    pods += await one_of_each(three, "3", *NAMES)
    await freed(three, pods)


async def test_a_leader_on_a_node_without_network_is_followed_by_another_one(three: ThreeNodes) -> None:
    """Shorter than a node needs to count as lost: its pods stay, and its own claims wait until the cable is back."""
    first = await two_work(three)
    node = first["spec"]["nodeName"]
    others = [name for name in NAMES if name != node]
    await asyncio.to_thread(three.cluster.node(node).cut)
    try:
        await another_leads(three, first)
        pods = await one_of_each(three, "1", *others)
    finally:
        await asyncio.to_thread(three.cluster.node(node).heal)
    pods += await one_of_each(three, "1", node)
    await freed(three, pods)
