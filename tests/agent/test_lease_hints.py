"""Agents lease the claims that a coordinator names, and watch pods only while there is none."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from drabridge.dra.claim_names import HintedClaims, WaitingPod
from drabridge.kube.claim_hints import ClaimHint, hints_name, hints_object, hints_text, lock_name
from drabridge.kube.client import KubernetesCluster
from drabridge.sim.apiserver.request import Request
from drabridge.sim.apiserver.server import SimApiServer
from drabridge.sim.cluster import SimCluster
from tests.support.agent_on_cluster import (
    BOTH_LANES,
    claim_pod,
    devices_in_slices,
    end_claim,
    healthy,
    limits_pod,
    not_started,
)
from tests.support.agent_process import DRIVER, AgentProcess, lists_read
from tests.support.coordinators import NAMESPACE, CoordinatorProcess, hinted, waiting_claim
from tests.support.waiting import HANG_SECONDS, short_directory, until

CONFIG = BOTH_LANES.replace("{legacy: 2, dra: 2}", '{shared: "*"}').replace(
    "resources:", f"dra: {{leases: {{coordinator: {NAMESPACE}}}}}\nresources:"
)
POD = {"spec": {"schedulerName": "default-scheduler", "containers": [{"name": "main", "image": "x"}]}}
ALL = {"zero", "null", "full", "random"}
QUICK = """\
import sys
from drabridge.dra import claim_names
claim_names.POLL_SECONDS, claim_names.PROOF_SECONDS, claim_names.DEAD_SECONDS = 0.5, DEAD, DEAD
claim_names.LOST_SECONDS = LOST
from drabridge.cli import main
sys.exit(main())
"""


@contextlib.asynccontextmanager
async def node(
    config: str = CONFIG, dead_seconds: float = HANG_SECONDS, lost_seconds: float = HANG_SECONDS
) -> AsyncIterator[tuple[AgentProcess, SimCluster, CoordinatorProcess]]:
    """An agent that looks for its coordinator every half second, and a coordinator that was not started yet.

    It watches pods after ``dead_seconds`` without a change of the Lease, or ``lost_seconds`` without hints.
    """
    command = ("-c", f"DEAD, LOST = {dead_seconds}, {lost_seconds}\n{QUICK}")
    async with not_started(config, command=lambda _: command) as (agent, cluster):
        coordinator = CoordinatorProcess(agent.root.parent, agent.root.parent / "kubeconfig")
        try:
            yield agent, cluster, coordinator
        finally:
            with contextlib.suppress(ProcessLookupError, AssertionError):
                await coordinator.stop(signal.SIGKILL)


async def begin(agent: AgentProcess, cluster: SimCluster) -> None:
    await agent.start()
    await agent.ready()
    await lists_read(cluster.kubelets["node-a"])
    await until(lambda: healthy(cluster) == devices_in_slices(cluster) == ALL, 10, agent.text)


def asked_for_pods(cluster: SimCluster) -> list[Request]:
    return [one for one in cluster.api.requests if "nominatedNodeName" in str(one.query)]


async def test_claims_are_leased_by_hints_without_a_watch_of_pods() -> None:
    pytest.importorskip("kubernetes.leaderelection.resourcelock.leaselock", reason="needs kubernetes 37 or later")
    async with node() as (agent, cluster, coordinator):
        await coordinator.start()
        await until(lambda: "leading" in coordinator.text(), 10, coordinator.text)
        await begin(agent, cluster)
        await cluster.apply(claim_pod("c"))
        await until(lambda: _condition(cluster, "c", "lease"), 10, agent.text)
        await cluster.wait_pod("c")
        await cluster.apply(limits_pod("pod"))
        await cluster.wait_pod("pod")
        await end_claim(cluster, "c")
        await cluster.apply(claim_pod("again", 3))
        await cluster.wait_pod("again")
        assert asked_for_pods(cluster) == []


async def test_pods_are_watched_while_no_coordinator_works_and_not_after_it_is_back() -> None:
    pytest.importorskip("kubernetes.leaderelection.resourcelock.leaselock", reason="needs kubernetes 37 or later")
    async with node(dead_seconds=10.0) as (agent, cluster, coordinator):
        await begin(agent, cluster)
        await cluster.apply(claim_pod("alone"))
        await cluster.wait_pod("alone")
        assert asked_for_pods(cluster)
        await coordinator.start()
        await until(lambda: "the coordinator names the claims" in agent.text(), 20, agent.text)
        await cluster.apply(claim_pod("hinted"))
        await cluster.wait_pod("hinted")
        assert hinted(cluster.api.objects) is not None
        watches = [one for one in asked_for_pods(cluster) if one.verb == "watch"]
        await until(lambda: all(one.status for one in watches), 10, "the watch of pods to end")
        known = len(asked_for_pods(cluster))
        await asyncio.sleep(0.5)
        assert len(asked_for_pods(cluster)) == known
        looks = _looks(cluster)
        await until(lambda: _looks(cluster) >= looks + 3, 10, "the agent to see the Lease renewed")
        await coordinator.stop(signal.SIGKILL)
        await until(lambda: len(asked_for_pods(cluster)) > known, 20, agent.text)
        assert "does not renew its Lease" in agent.text()
        await cluster.apply(claim_pod("after"))
        await cluster.wait_pod("after")


async def test_pods_are_watched_while_the_hints_cannot_be_followed() -> None:
    async with node(lost_seconds=10.0) as (agent, cluster, _), leading(cluster):
        await begin(agent, cluster)
        assert asked_for_pods(cluster) == []
        cluster.api.faults.fail(1_000_000, 403, resource="configmaps")
        cluster.api.faults.drop_watches()
        await until(lambda: asked_for_pods(cluster), 20, agent.text)
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")


async def test_a_hint_that_lies_changes_nothing_and_is_looked_at_once() -> None:
    async with node(lost_seconds=10.0) as (agent, cluster, _), leading(cluster):
        await begin(agent, cluster)
        objects = cluster.api.objects
        waiting_claim(objects, "of-another-node", pool="node-b")
        waiting_claim(objects, "for-nobody")
        objects.create(_unallocated("unallocated"))
        names = ("gone", "of-another-node", "unallocated", "../../secrets/x", "for-nobody")
        hints = [ClaimHint("default", name, "some-uid", "1") for name in names]
        objects.create(hints_object(DRIVER, "node-a", hints_text(hints)), namespace=NAMESPACE)
        await until(lambda: _gets(cluster, "for-nobody"), 10, agent.text)
        await asyncio.sleep(1.0)
        asked = {name: _gets(cluster, name) for name in names}
        assert asked.pop("for-nobody") <= 6  # a pod may still come; the pauses get longer
        assert asked == dict.fromkeys(names[:-1], 1) | {"../../secrets/x": 0}
        assert "is not the name of an object" not in agent.text()
        assert set((await agent.owners()).values()) == {"none"}
        assert healthy(cluster) == devices_in_slices(cluster) == ALL
        name = hints_name(DRIVER, "node-a")
        for data in ({"claims": "{"}, {"claims": "7"}, {"version": "2"}):
            objects.modify("configmaps", name, lambda one, data=data: one["data"].update(data), namespace=NAMESPACE)  # type: ignore[misc]
        await until(lambda: asked_for_pods(cluster), 20, agent.text)


async def test_pods_of_another_scheduler_get_no_lease_by_hints_either() -> None:
    config = CONFIG.replace("leases: {", "leases: {schedulers: [another], ")
    async with node(config) as (agent, cluster, _), leading(cluster):
        await begin(agent, cluster)
        await cluster.apply(claim_pod("c"))
        await until(lambda: _allocated(cluster, "c"), 10, agent.text)
        hint = ClaimHint("default", "c", (cluster.get("resourceclaims", "c") or {})["metadata"]["uid"], "1")
        cluster.api.objects.create(hints_object(DRIVER, "node-a", hints_text([hint])), namespace=NAMESPACE)
        await until(lambda: "default-scheduler of pod default/c is not listed" in _events(cluster), 10, agent.text)
        assert asked_for_pods(cluster) == []


async def test_all_pods_that_a_claim_is_reserved_for_are_read_two_at_a_time_until_one_is_there() -> None:
    with short_directory() as root:
        async with SimApiServer() as api:
            cluster = KubernetesCluster.from_kubeconfig(api.kubeconfig(root / "kubeconfig"))
            names = HintedClaims(cluster, DRIVER, "node-a", NAMESPACE, lambda: None)
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "there", "namespace": "default"}, **POD}
            uid = api.objects.create(body)["metadata"]["uid"]
            users = [("gone-0", "0"), ("gone-1", "1"), ("gone-2", "2"), ("there", "of-one-before"), ("there", uid)]
            claim = {"status": {"reservedFor": [{"resource": "pods", "name": name, "uid": it} for name, it in users]}}
            found = [await names.pods(("default", "c"), claim) for _ in range(4)]
            asked = [request.name for request in api.requests if request.resource == "pods"]
            assert found == [(), (), (WaitingPod(uid, "default", "there", "default-scheduler"),), ()]
            assert asked == ["gone-0", "gone-1", "gone-2", "there", "there", "gone-0", "gone-0", "gone-1"]
            assert await names.pods(("default", "c"), {"status": {}}) == ()
            cluster.close()


@pytest.mark.parametrize("by_hints", [True, False])
async def test_a_claim_that_is_reserved_for_a_pod_group_is_leased(by_hints: bool) -> None:
    """Pods of the group share the claim (KEP-5729); the scheduler reserves it for the group, not for them."""
    config = CONFIG if by_hints else CONFIG.replace(f"coordinator: {NAMESPACE}", "")
    async with (
        node(config.replace("leases: {", "leases: {schedulers: [gang], ")) as (agent, cluster, _),
        leading(cluster),
    ):
        await begin(agent, cluster)
        objects = cluster.api.objects
        waiting_claim(objects, "of-group")
        group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "group", "uid": "group-uid"}
        objects.modify(
            "resourceclaims",
            "of-group",
            lambda one: one["status"].update(reservedFor=[group]),
            namespace="default",
            subresource="status",
        )
        metadata = {"name": "member", "namespace": "default"}
        spec = {
            **POD["spec"],
            "schedulerName": "gang",
            "resourceClaims": [{"name": "c", "resourceClaimName": "of-group"}],
        }
        objects.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        objects.modify(
            "pods",
            "member",
            lambda one: one["status"].update(nominatedNodeName="node-a"),
            namespace="default",
            subresource="status",
        )
        uid = (cluster.get("resourceclaims", "of-group") or {})["metadata"]["uid"]
        hint = ClaimHint("default", "of-group", uid, "1")
        objects.create(hints_object(DRIVER, "node-a", hints_text([hint])), namespace=NAMESPACE)
        await until(lambda: _condition(cluster, "of-group", "lease"), 10, agent.text)
        assert bool(asked_for_pods(cluster)) is True
        assert any(one.verb == "watch" for one in asked_for_pods(cluster)) is not by_hints


@contextlib.asynccontextmanager
async def leading(cluster: SimCluster) -> AsyncIterator[None]:
    """Renew the coordinators' Lease, and do nothing else."""
    objects, name = cluster.api.objects, lock_name(DRIVER)
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": {"n": 0}}
    objects.create(body, namespace=NAMESPACE)

    async def renew() -> None:
        number = 0
        while True:
            number += 1
            objects.modify("leases", name, lambda one: one["spec"].update(n=number), namespace=NAMESPACE)  # noqa: B023
            await asyncio.sleep(0.2)

    task = asyncio.create_task(renew())
    try:
        yield
    finally:
        task.cancel()


def _looks(cluster: SimCluster) -> int:
    """How often the agent looked at the coordinators' Lease; the election's own client has another name."""
    return sum(one.resource == "leases" and one.user_agent.startswith("drabridge/") for one in cluster.api.requests)


def _unallocated(name: str) -> dict[str, Any]:
    requests = [{"name": "r", "exactly": {"deviceClassName": "mem"}}]
    metadata = {"name": name, "namespace": "default"}
    spec = {"devices": {"requests": requests}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def _gets(cluster: SimCluster, claim: str) -> int:
    return sum((one.verb, one.resource, one.name) == ("get", "resourceclaims", claim) for one in cluster.api.requests)


def _allocated(cluster: SimCluster, claim: str) -> bool:
    return bool((cluster.get("resourceclaims", claim) or {}).get("status", {}).get("allocation"))


def _condition(cluster: SimCluster, claim: str, name: str) -> bool:
    found = cluster.get("resourceclaims", claim) or {}
    conditions = [one for device in found.get("status", {}).get("devices", ()) for one in device["conditions"]]
    return any(one["type"] == f"{DRIVER}/{name}" for one in conditions)


def _events(cluster: SimCluster) -> str:
    return " ".join(one["message"] for one in cluster.api.objects.peek("events") if one["reason"] == "LeaseDenied")
