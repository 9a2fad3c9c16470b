"""The agent on clusters of every supported Kubernetes release, and on nodes older than their control plane."""

from __future__ import annotations

import pytest

from drabridge.sim.cluster import SimCluster
from drabridge.sim.releases import FIRST, NEWEST
from tests.support.agent_on_cluster import (
    BOTH_LANES,
    all_free,
    bridge,
    claim_pod,
    devices_in_slices,
    healthy,
    limits_pod,
    set_lanes,
)
from tests.support.agent_process import DRIVER, RESOURCE
from tests.support.waiting import until


@pytest.mark.parametrize(("release", "kubelet"), [(FIRST, ""), (NEWEST, FIRST)])
async def test_pods_of_both_kinds_run_and_lanes_move(release: str, kubelet: str) -> None:
    async with bridge(release=release, kubelet_version=kubelet) as (agent, cluster, _):
        await until(lambda: len(devices_in_slices(cluster)) == 2, 10, agent.text)
        await cluster.apply(f"{claim_pod('c1')}---\n{limits_pod('l1')}")
        for name in ("c1", "l1"):
            await cluster.wait_pod(name)
        await set_lanes(agent, legacy=1, dra=3)
        await until(lambda: len(devices_in_slices(cluster)) == 3, 10, agent.text)
        await cluster.apply(claim_pod("c2", 2))
        await cluster.wait_pod("c2")
        assert len(healthy(cluster)) == 1
        for name in ("c1", "c2", "l1"):
            cluster.api.objects.delete("pods", name, "default")
        await until(lambda: all_free(agent), 20, agent.text)


CLASS = f"""\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: unmodified}}
spec:
  selectors: [{{cel: {{expression: "device.driver == '{DRIVER}'"}}}}]
  extendedResourceName: {RESOURCE}
"""


def allocatable(cluster: SimCluster) -> str:
    """How many of the resource the scheduler may give out by limits."""
    node = cluster.api.objects.get("nodes", "node-a")
    return str(node["status"]["allocatable"].get(RESOURCE, "0"))


@pytest.mark.parametrize(("release", "served"), [("1.35", False), (NEWEST, True)])
async def test_pods_with_limits_are_served_by_claims_where_the_cluster_can(release: str, served: bool) -> None:
    """KEP-5004: beta in 1.36, GA in 1.37. Before, the API server drops the class's field in silence."""
    async with bridge(release=release) as (agent, cluster, _):
        await set_lanes(agent, legacy=0, dra=4)
        await until(lambda: len(devices_in_slices(cluster)) == 4, 10, agent.text)
        await until(lambda: allocatable(cluster) == "0", 10, "kubelet's count in the Node")
        (stored,) = await cluster.apply(CLASS)
        assert ("extendedResourceName" in stored["spec"]) is served
        await cluster.apply(limits_pod("l1"))
        if not served:
            with pytest.raises(TimeoutError):
                await cluster.wait_pod("l1", timeout=1.0)
            return
        await cluster.wait_pod("l1")
        owners = sorted((await agent.owners()).values())
        assert owners == ["dra-prepared", "none", "none", "none"]


SHARED = BOTH_LANES.replace("{legacy: 2, dra: 2}", '{shared: "*"}')


@pytest.mark.parametrize(("release", "leased"), [("1.35", False), (NEWEST, True)])
async def test_devices_are_shared_where_the_api_server_keeps_what_a_lease_needs(release: str, leased: bool) -> None:
    async with bridge(SHARED, release=release) as (agent, cluster, _):
        await until(lambda: len(healthy(cluster)) == 4, 10, agent.text)
        await until(lambda: len(devices_in_slices(cluster)) == (4 if leased else 0), 10, agent.text)
        await cluster.apply(limits_pod("l1"))
        await cluster.wait_pod("l1")
        await cluster.apply(claim_pod("c1"))
        if leased:
            await cluster.wait_pod("c1")
        else:
            with pytest.raises(TimeoutError):
                await cluster.wait_pod("c1", timeout=1.0)


RULE = f"""\
apiVersion: resource.k8s.io/v1
kind: DeviceTaintRule
metadata: {{name: repair}}
spec:
  deviceSelector: {{driver: {DRIVER}}}
  taint: {{key: example.com/repair, effect: NoExecute}}
"""


async def test_an_administrators_taint_rule_ends_claims_and_leaves_pods_with_limits_alone() -> None:
    """Kubernetes 1.37: a rule is about devices in slices. Ours stay as they are, and the device becomes free."""
    async with bridge(release=NEWEST) as (agent, cluster, _):
        await until(lambda: len(devices_in_slices(cluster)) == 2, 10, agent.text)
        await cluster.apply(f"{claim_pod('c1')}---\n{limits_pod('l1')}")
        for name in ("c1", "l1"):
            await cluster.wait_pod(name)
        before = [one["metadata"]["resourceVersion"] for one in cluster.api.objects.peek("resourceslices")]
        await cluster.apply(RULE)
        await until(lambda: cluster.get("pods", "c1") is None, 10, agent.text)

        async def owners() -> list[str]:
            return sorted((await agent.owners()).values())

        async def only_the_pod_with_limits() -> bool:
            return await owners() == ["legacy", "none", "none", "none"]

        await until(only_the_pod_with_limits, 20, agent.text)
        assert len(devices_in_slices(cluster)) == 2
        after = [one["metadata"]["resourceVersion"] for one in cluster.api.objects.peek("resourceslices")]
        assert after == before, "a rule is no reason to write"
        cluster.api.objects.delete("devicetaintrules", "repair")
        await cluster.apply(claim_pod("c2", 2))
        await cluster.wait_pod("c2")
