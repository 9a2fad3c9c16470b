"""Devices that both APIs are offered, leased to claims, with a real agent over real sockets."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter

from drabridge.sim.kubelet.faults import ListFault
from tests.support.agent_on_cluster import (
    allocate,
    bridge,
    claim_pod,
    devices_in_slices,
    end_claim,
    healthy,
    limits_pod,
    set_lanes,
)
from tests.support.agent_process import DRIVER, RESOURCE, AgentProcess, metric, noted
from tests.support.leases import (
    ALL,
    SHARED,
    allocated_devices,
    claim_has_phase,
    condition,
    messages,
    offered_twice,
    owners,
    waits_for_lease,
)
from tests.support.waiting import until


async def test_each_free_device_is_for_a_pod_or_a_claim_whichever_comes_first() -> None:
    async with bridge(SHARED) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        for turn in range(2):
            await cluster.apply(claim_pod(f"claim-{turn}"))
            await cluster.apply(limits_pod(f"pod-{turn}"))
        for turn in range(2):
            await cluster.wait_pod(f"claim-{turn}")
            await cluster.wait_pod(f"pod-{turn}")
        assert await owners(agent) == ["dra-prepared", "dra-prepared", "legacy", "legacy"]
        for turn in range(2):
            await end_claim(cluster, f"claim-{turn}")
            await cluster.delete("pods", f"pod-{turn}")
        await offered_twice(agent, cluster)
        await cluster.apply(claim_pod("all", 4))
        await cluster.wait_pod("all")
        await end_claim(cluster, "all")
        await offered_twice(agent, cluster)
        await cluster.apply(limits_pod("all-limits", 4))
        await cluster.wait_pod("all-limits")


TEMPLATE = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: each, namespace: default}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: mem}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: of-template, namespace: default}
spec:
  resourceClaims: [{name: c, resourceClaimTemplateName: each}]
  containers: [{name: main, image: x, resources: {claims: [{name: c}]}}]
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: extended}
spec:
  extendedResourceName: example.com/by-claim
  selectors: [{cel: {expression: "device.driver == 'DRIVER'"}}]
---
apiVersion: v1
kind: Pod
metadata: {name: of-extended, namespace: default}
spec:
  containers: [{name: main, image: x, resources: {limits: {example.com/by-claim: 2}}}]
"""


async def test_claims_of_templates_and_of_extended_resources_are_leased() -> None:
    async with bridge(SHARED) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        await cluster.apply(TEMPLATE.replace("DRIVER", DRIVER))
        await cluster.wait_pod("of-template")
        await cluster.wait_pod("of-extended")
        assert await metric(agent, "leases_total", resource=RESOURCE, result="granted") == 3


ADMIN = """\
apiVersion: v1
kind: Namespace
metadata: {name: monitoring, labels: {resource.kubernetes.io/admin-access: "true"}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: NAME, namespace: monitoring}
spec:
  devices:
    requests:
    - {name: all, exactly: {deviceClassName: mem, allocationMode: All, adminAccess: true}}
    MORE
---
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: monitoring}
spec:
  resourceClaims: [{name: c, resourceClaimName: NAME}]
  containers: [{name: main, image: x, resources: {claims: [{name: c}]}}]
"""


async def test_a_pod_with_admin_access_to_shared_devices_starts_and_takes_none() -> None:
    """The scheduler waits for a word about each of them: without one a monitoring pod would never start."""
    async with bridge(SHARED) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        await cluster.apply(ADMIN.replace("NAME", "looks").replace("MORE", ""))
        await cluster.wait_pod("looks", namespace="monitoring")
        assert await owners(agent) == ["none"] * 4
        await cluster.delete("pods", "looks", "monitoring")  # what starts containers here takes any access for a use
        await cluster.apply(
            ADMIN.replace("NAME", "looks-and-has").replace("MORE", "- {name: one, exactly: {deviceClassName: mem}}")
        )
        await cluster.wait_pod("looks-and-has", namespace="monitoring")
        assert await owners(agent) == ["dra-prepared", "none", "none", "none"]


async def test_a_pod_that_kubelet_is_quicker_with_wins_and_the_claim_waits_for_a_device() -> None:
    async with bridge(SHARED) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        faults = cluster.kubelets["node-a"].faults
        faults.list_delay_seconds = 60.0  # it reads one more list, and then none
        await cluster.apply(claim_pod("first"))
        await cluster.wait_pod("first")
        await cluster.apply(claim_pod("second"))
        await until(lambda: waits_for_lease(agent), 10, agent.text)
        await cluster.apply(limits_pod("all", 3))
        await cluster.wait_pod("all")
        await until(lambda: condition(cluster, "second", "lease-denied"), 10, agent.text)
        assert condition(cluster, "second", "lease-denied")["message"].startswith("null is held by")
        faults.list_delay_seconds = 0.0
        await cluster.delete("pods", "all")
        await cluster.wait_pod("second")


async def test_a_denial_waits_until_the_slices_show_it_so_that_another_device_is_chosen() -> None:
    async with bridge(SHARED) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        cluster.api.faults.fail(1_000_000, 503, verb="update", resource="resourceslices")
        await cluster.apply(limits_pod("most", 3))
        await cluster.wait_pod("most")
        held = {row["name"] for row in (await agent.status())["devices"] if row["owner"] == "legacy"}
        await cluster.apply(claim_pod("late", 2))
        await until(lambda: _denied(agent), 10, agent.text)
        assert allocated_devices(cluster, "late") & held
        await asyncio.sleep(0.5)
        assert not condition(cluster, "late", "lease-denied"), "the scheduler would choose the same device again"
        cluster.api.faults.heal()
        await until(lambda: not allocated_devices(cluster, "late"), 10, agent.text)
        await cluster.delete("pods", "most")
        await cluster.wait_pod("late")


async def test_a_claim_is_denied_if_kubelet_says_nothing_and_served_when_it_answers() -> None:
    config = SHARED.replace("resources:", "dra: {leases: {kubeletSeconds: 1}}\nresources:")
    async with bridge(config) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        faults = cluster.kubelets["node-a"].faults
        faults.podresources = ListFault.ERROR
        await cluster.apply(claim_pod("waits"))
        await until(lambda: messages(cluster, "LeaseDenied"), 10, agent.text)
        assert "kubelet did not give it up in 1 s" in messages(cluster, "LeaseDenied")[0]
        faults.podresources = ListFault.NONE
        await cluster.wait_pod("waits")
        await until(lambda: len(healthy(cluster)) == len(devices_in_slices(cluster)) - 1 == 3, 20, agent.text)


async def test_a_lease_survives_the_death_of_the_agent_at_every_step() -> None:
    async with bridge(SHARED) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        faults = cluster.kubelets["node-a"].faults
        faults.podresources = ListFault.ERROR
        await cluster.apply(claim_pod("pending", 2))
        await until(lambda: waits_for_lease(agent), 10, agent.text)
        await agent.stop(signal.SIGKILL)
        faults.podresources = ListFault.NONE
        await agent.start()
        await cluster.wait_pod("pending")
        cluster.api.faults.fail(1_000_000, 503, verb="patch", resource="resourceclaims")
        await cluster.apply(claim_pod("granted"))
        await until(lambda: claim_has_phase(agent, "granted", "granted"), 10, agent.text)
        await agent.stop(signal.SIGKILL)
        cluster.api.faults.heal()
        await agent.start()
        await cluster.wait_pod("granted")
        assert await owners(agent) == ["dra-prepared"] * 3 + ["none"]


async def test_a_claim_that_is_deleted_while_it_waits_frees_its_devices() -> None:
    async with bridge(SHARED) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        cluster.kubelets["node-a"].faults.podresources = ListFault.ERROR
        await cluster.apply(claim_pod("gone", 4))
        await until(lambda: waits_for_lease(agent), 10, agent.text)
        await end_claim(cluster, "gone")
        cluster.kubelets["node-a"].faults.podresources = ListFault.NONE
        await offered_twice(agent, cluster)
        assert await owners(agent) == ["none"] * 4


BOUND_EARLY = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: early, namespace: default}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: mem}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: early, namespace: default}
spec:
  schedulerName: nobody
  resourceClaims: [{name: c, resourceClaimName: early}]
  containers: [{name: main, image: x, resources: {claims: [{name: c}]}}]
"""


async def test_a_pod_that_was_bound_by_an_older_slice_gets_its_shared_device_after_the_pod_that_has_it() -> None:
    """Seen in an hour of faults: nobody leased the device to such a claim, and its pod never started."""
    async with bridge(SHARED) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        await cluster.apply(limits_pod("first"))
        await cluster.wait_pod("first")
        (device,) = [row["name"] for row in (await agent.status())["devices"] if row["owner"] == "legacy"]
        await cluster.apply(BOUND_EARLY)
        allocate(cluster, "early", [device])
        objects = cluster.api.objects
        objects.modify("pods", "early", lambda obj: obj["spec"].update(nodeName="node-a"), namespace="default")
        await until(
            lambda: any("held by" in one for one in messages(cluster, "FailedPrepareDynamicResources")), 20, agent.text
        )
        await cluster.delete("pods", "first")
        await cluster.wait_pod("early")
        assert allocated_devices(cluster, "early") == {device}
        await end_claim(cluster, "early")
        await offered_twice(agent, cluster)


async def test_pods_of_another_scheduler_get_no_lease() -> None:
    config = SHARED.replace("resources:", "dra: {leases: {schedulers: [another]}}\nresources:")
    async with bridge(config) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        await cluster.apply(claim_pod("c"))
        await until(lambda: messages(cluster, "LeaseDenied"), 10, agent.text)
        assert "default-scheduler of pod default/c is not listed" in messages(cluster, "LeaseDenied")[0]
        await cluster.apply(limits_pod("all", 4))
        await cluster.wait_pod("all")


async def test_devices_are_for_pods_where_the_api_server_drops_binding_conditions() -> None:
    async with bridge(SHARED) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        cluster.kubelets["node-a"].faults.podresources = ListFault.ERROR
        await cluster.apply(claim_pod("waits"))
        await until(lambda: waits_for_lease(agent), 10, agent.text)
        cluster.api.gates["DRADeviceBindingConditions"] = False
        await agent.stop(signal.SIGKILL)
        cluster.kubelets["node-a"].faults.podresources = ListFault.NONE
        await agent.start()
        await until(lambda: healthy(cluster) == ALL and not devices_in_slices(cluster), 20, agent.text)
        why = "4 of 4 shared devices are for pods only: the API server does not keep binding conditions"
        await until(lambda: noted(agent, why), 10, agent.text)
        await until(lambda: messages(cluster, "LeaseDenied"), 10, agent.text)
        assert "binding conditions any more" in messages(cluster, "LeaseDenied")[0]
        await cluster.apply(limits_pod("all", 4))
        await cluster.wait_pod("all")


async def test_lanes_are_shared_and_unshared_while_pods_run() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(limits_pod("pod"))
        await cluster.apply(claim_pod("claim"))
        await cluster.wait_pod("pod")
        await cluster.wait_pod("claim")
        assert not [one for one in cluster.api.requests if "nominatedNodeName" in str(one)]
        await set_lanes(agent, shared="*")
        await until(lambda: _lanes(agent, {"shared": 3, "dra": 1}), 20, agent.text)
        await end_claim(cluster, "claim")
        await until(lambda: _lanes(agent, {"shared": 4}), 20, agent.text)
        await set_lanes(agent, shared=2, dra=1)
        await until(lambda: _lanes(agent, {"legacy": 1, "dra": 1, "shared": 2}), 20, agent.text)


async def _lanes(agent: AgentProcess, expected: dict[str, int]) -> bool:
    lanes = Counter(row["lane"] for row in (await agent.status())["devices"])
    return lanes == expected


async def _denied(agent: AgentProcess) -> bool:
    return any("was denied its lease" in row["reason"] for row in (await agent.status())["devices"])
