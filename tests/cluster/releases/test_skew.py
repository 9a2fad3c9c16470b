"""Nodes of an older release than their control plane, as upgrades have them, and a node whose kubelet is upgraded.

Upstream upgrades a kubelet on a drained node only. What is asked here, with pods on it: no device has two holders, and
everything works again afterwards; pods may end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.cluster.bed import Bed, at_the_beginning, clear, wait_for
from tests.cluster.real_bed import RealBed, own_cluster, real
from tests.cluster.steps import a_day, claim_pod, deleted, legacy_pod, phase, running
from tests.node import build
from tests.node.cluster import Cluster, NodeSpec
from tests.node.releases import Release, releases

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.cluster]


def older(cluster: Cluster, by: int) -> Release:
    """The release that is so much older than the control plane's. Skips the test where that is not built."""
    known = {one.name: one for one in releases()}
    minor = known[cluster.spec.release].minor - by
    found = next((one for one in known.values() if one.minor == minor), None)
    if found is None or not build.is_built(found):
        pytest.skip(f"no node of Kubernetes 1.{minor} is built: python -m tests.node build 1.{minor}")
    return found


@pytest_asyncio.fixture(loop_scope="module", params=[1, 2], ids=["one", "two"])
async def old_node(request: pytest.FixtureRequest) -> AsyncIterator[RealBed]:
    """The agent on a node that is one or two releases older than the control plane."""
    cluster = own_cluster()
    if cluster is None:
        pytest.skip("not a cluster of tests.node: there is no node of another release")
    name = older(cluster, request.param).name
    await asyncio.to_thread(cluster.add, NodeSpec("node-old", 0, name))
    try:
        async with real(node_name="node-old") as bed:
            await bed.install()
            await at_the_beginning(bed)
            yield bed
            await clear(bed)
            assert not await bed.conflicts()
    finally:
        await asyncio.to_thread(cluster.remove, "node-old")


async def test_a_node_that_is_older_than_its_control_plane_serves_both_apis(old_node: RealBed) -> None:
    await a_day(old_node)


async def test_a_kubelet_that_is_upgraded_under_pods_gives_no_device_twice(old_node: RealBed) -> None:
    cluster = old_node.own("upgrade a kubelet")
    limits, claims = ("before-l1", "before-l2"), ("before-c1", "before-c2")
    for name in limits:
        await legacy_pod(old_node, name)
    for name in claims:
        await claim_pod(old_node, name)
    await running(old_node, *limits, *claims)
    newer = next(one for one in releases() if one.minor == _minor(cluster) + 1)
    await asyncio.to_thread(cluster.upgrade, "node-old", newer.name)
    await wait_for(old_node, "the agent to be ready", old_node.ready)
    await _settled(old_node, *limits, *claims)
    assert not await old_node.conflicts()
    await deleted(old_node, *limits, *claims)
    await a_day(old_node)


def _minor(cluster: Cluster) -> int:
    known = {one.name: one for one in releases()}
    return known[cluster.node_spec("node-old").release].minor


async def _settled(bed: Bed, *names: str) -> None:
    """Each pod runs, or kubelet has ended it."""

    async def settled() -> bool:
        return {await phase(bed, name) for name in names} <= {"Running", "Failed", "Succeeded"}

    await wait_for(bed, "the pods to go on or to end", settled)
