"""When a claim is denied its lease, and when not: no denial without need, none that outlives its reason."""

from __future__ import annotations

import asyncio
import signal
import time

from drabridge.sim.kubelet.faults import ListFault
from tests.support.agent_on_cluster import bridge, claim_pod, devices_in_slices, healthy, limits_pod, phase
from tests.support.leases import (
    SHARED,
    allocated_devices,
    claim_has_phase,
    condition,
    messages,
    offered_twice,
    waits_for_lease,
)
from tests.support.waiting import PATIENCE, until

ONE = SHARED.replace('[zero, "null", full, random]', "[zero]")
TWO_CLAIMS = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: two-a, namespace: default}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: mem}}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: two-b, namespace: default}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: mem}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: two, namespace: default}
spec:
  resourceClaims: [{name: a, resourceClaimName: two-a}, {name: b, resourceClaimName: two-b}]
  containers: [{name: main, image: x, resources: {claims: [{name: a}, {name: b}]}}]
"""


async def test_a_claim_that_follows_another_is_not_denied() -> None:
    """The scheduler gives a device away before the agent has heard that the last claim is deallocated."""
    async with bridge(SHARED) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        for turn in range(4):
            await cluster.apply(claim_pod(f"old-{turn}"))
            await cluster.wait_pod(f"old-{turn}")
        for turn in range(4):
            await cluster.apply(claim_pod(f"new-{turn}"))
            await until(lambda turn=turn: phase(cluster, f"new-{turn}") == "Pending")  # type: ignore[misc]
            uid = cluster.get("pods", f"old-{turn}")["metadata"]["uid"]  # type: ignore[index]
            await cluster.kubelets["node-a"].finish_pod(uid)
            await cluster.wait_pod(f"new-{turn}")
        assert messages(cluster, "LeaseDenied") == []


async def test_a_pod_gets_all_of_its_claims_or_none() -> None:
    """One device of two is taken. The scheduler, whose slices are late, takes both for free."""
    two = SHARED.replace('[zero, "null", full, random]', '[zero, "null"]')
    async with bridge(two) as (agent, cluster, _):
        await until(lambda: len(healthy(cluster)) == len(devices_in_slices(cluster)) == 2, 10, agent.text)
        cluster.api.faults.fail(1_000_000, 503, verb="update", resource="resourceslices")
        await cluster.apply(limits_pod("early"))
        await cluster.wait_pod("early")
        await cluster.apply(TWO_CLAIMS)
        await until(lambda: allocated_devices(cluster, "two-a") and allocated_devices(cluster, "two-b"), 10, agent.text)
        await asyncio.sleep(1.0)
        assert not [name for name in ("two-a", "two-b") if condition(cluster, name, "leased")], "half of a pod"
        cluster.api.faults.heal()
        names = "two-a", "two-b"
        await until(lambda: not any(allocated_devices(cluster, name) for name in names), 20, agent.text)
        said = messages(cluster, "LeaseDenied")
        assert [one for one in said if "of its pod was denied" in one], said
        await cluster.apply(limits_pod("second"))
        await cluster.wait_pod("second")
        await cluster.delete("pods", "early")
        await cluster.delete("pods", "second")
        await cluster.wait_pod("two")


async def test_a_claim_waits_while_it_is_not_known_whether_conditions_are_kept() -> None:
    async with bridge(SHARED) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        cluster.kubelets["node-a"].faults.podresources = ListFault.ERROR
        await cluster.apply(claim_pod("c"))
        await until(lambda: waits_for_lease(agent), 10, agent.text)
        await agent.stop(signal.SIGKILL)
        cluster.kubelets["node-a"].faults.podresources = ListFault.NONE
        cluster.api.faults.fail(1_000_000, 503, verb="list", resource="resourceslices")
        await agent.start()
        await agent.up()
        await asyncio.sleep(3.0)
        assert messages(cluster, "LeaseDenied") == []
        cluster.api.faults.heal()
        await cluster.wait_pod("c")


async def test_a_free_device_does_not_stay_tainted_for_a_claim_that_was_denied_often() -> None:
    config = ONE.replace("resources:", "dra: {leases: {kubeletSeconds: 1}}\nresources:")
    async with bridge(config) as (agent, cluster, _):
        await until(lambda: healthy(cluster) == devices_in_slices(cluster) == {"zero"}, 10, agent.text)
        faults = cluster.kubelets["node-a"].faults
        faults.podresources = ListFault.ERROR
        await cluster.apply(claim_pod("c"))
        for _ in range(4):
            await until(lambda: condition(cluster, "c", "lease-denied"), 20, agent.text)
            await until(lambda: not condition(cluster, "c", "lease-denied"), 20, agent.text)
        faults.podresources = ListFault.NONE
        began = time.monotonic()
        await cluster.wait_pod("c", timeout=20 * PATIENCE)
        assert time.monotonic() - began < 8 * PATIENCE


async def test_a_claim_that_was_denied_and_chosen_again_unseen_is_looked_at_again() -> None:
    """The agent stands still meanwhile: when it goes on, the pod looks as before."""
    config = SHARED.replace("resources:", "dra: {leases: {kubeletSeconds: 1}}\nresources:")
    async with bridge(config) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        faults = cluster.kubelets["node-a"].faults
        faults.podresources = ListFault.ERROR
        await cluster.apply(claim_pod("c"))
        await until(lambda: condition(cluster, "c", "lease-denied"), 10, agent.text)
        assert agent.process
        agent.process.send_signal(signal.SIGSTOP)
        try:
            faults.podresources = ListFault.NONE
            await until(lambda: allocated_devices(cluster, "c") and not condition(cluster, "c", "lease-denied"), 10)
        finally:
            agent.process.send_signal(signal.SIGCONT)
        await cluster.wait_pod("c", timeout=20 * PATIENCE)


async def test_a_bound_pod_that_is_still_named_keeps_no_device() -> None:
    """API servers before 1.35 leave ``nominatedNodeName`` on a pod after it is bound."""
    async with bridge(SHARED) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        pod = cluster.get("pods", "c")
        assert pod
        cluster.api.objects.modify(
            "pods",
            "c",
            lambda one: one["status"].update(nominatedNodeName="node-a"),
            namespace="default",
            subresource="status",
        )
        await until(lambda: claim_has_phase(agent, "c", "prepared"), 10, agent.text)
        await cluster.kubelets["node-a"].finish_pod(pod["metadata"]["uid"])
        await offered_twice(agent, cluster)
