"""The role has exactly what an agent asks for in its life, and the policies let it live that life.

A real agent, with a token of the chart's service account bound to its node, beside the simulated cluster: it starts,
prepares and unprepares claims, moves lanes both ways, posts Events, has its slices wiped. Each write of it passes the
chart's admission policies, as they are, evaluated on the spot; the log of its requests is compared with the rules.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import pytest

from deploy.helm import manifests, one
from deviceplugin.wire import v1beta1_pb2, v1beta1_pb2_grpc
from drabridge.sim.apiserver import admission
from drabridge.sim.apiserver.auth import User
from drabridge.sim.apiserver.kinds import Resource
from drabridge.sim.apiserver.status import forbidden
from drabridge.sim.cluster import SimCluster
from tests.deploy.policy import Request, refusals
from tests.support.agent_on_cluster import (
    BOTH_LANES,
    claim_pod,
    devices_in_slices,
    healthy,
    limits_pod,
    not_started,
    set_lanes,
)
from tests.support.agent_process import DRIVER, RESOURCE, AgentProcess
from tests.support.waiting import until

Json = dict[str, Any]
Rule = tuple[str, str, str]  # API group, resource, verb

OBJECTS = manifests({"config": {"driver": DRIVER}}, namespace="kube-system")
ACCOUNT = "system:serviceaccount:kube-system:drabridge"
POLICIES = [obj for obj in OBJECTS if obj["kind"] == "ValidatingAdmissionPolicy"]

JUDGED = ("resourceslices", "resourceclaims", "events", "nodes")

NEVER_A_REQUEST: Mapping[Rule, str] = {
    ("resource.k8s.io", "resourceclaims/driver", "associated-node:patch"): (
        "asked by the API server about a PATCH of resourceclaims/status since 1.36, with this synthetic resource"
    ),
    ("resource.k8s.io", "resourceclaims/driver", "associated-node:update"): "likewise, about a PUT",
    ("resource.k8s.io", "resourceclaims/status", "update"): (
        "for claims that a real API server lets nobody patch: tests/cluster/pods/test_claims.py"
    ),
}
"""Rules that no request shows, and why they are there all the same."""


def granted(objects: list[Json] = OBJECTS) -> set[Rule]:
    return {
        (group, resource, verb)
        for rule in one(objects, "ClusterRole")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


class Judge:
    """Stands in the simulated server's admission, with the chart's policies. ``refused`` keeps what they said no to."""

    def __init__(self, policies: list[Json]) -> None:
        self.policies = policies
        self.judged: Counter[str] = Counter()
        self.refused: list[str] = []

    def check(self, resource: Resource, new: Json, old: Json | None, user: User, *, deleting: bool) -> None:
        if user.name != ACCOUNT or resource.plural not in JUDGED:
            return
        operation = "DELETE" if deleting else "UPDATE" if old is not None else "CREATE"
        name = "resourceclaims/status" if resource.plural == "resourceclaims" else resource.plural
        self.judged[f"{operation} {name}"] += 1
        request = Request(operation, name, user, None if deleting else new, (old or new) if deleting else old)
        if said := refusals(self.policies, request):
            self.refused += said
            raise forbidden("resource.k8s.io", resource.plural, new["metadata"]["name"], "; ".join(said))


def judged(monkeypatch: pytest.MonkeyPatch, policies: list[Json]) -> Judge:
    judge, genuine = Judge(policies), admission.check

    def check(resource: Resource, new: Json, old: Json | None, user: User, **more: Any) -> None:
        judge.check(resource, new, old, user, deleting=more["deleting"])
        genuine(resource, new, old, user, **more)

    monkeypatch.setattr(admission, "check", check)
    return judge


@contextlib.asynccontextmanager
async def agent_with_its_own_token(
    token_node: str = "node-a", config: str = BOTH_LANES
) -> AsyncIterator[tuple[AgentProcess, SimCluster]]:
    def token(cluster: SimCluster) -> str:
        return str(cluster.api.token(token_node, drivers=frozenset({DRIVER})))

    async with not_started(config, token=token) as (agent, cluster):
        await agent.start()
        yield agent, cluster


async def refuse_a_stale_allocate(agent: AgentProcess, device: str) -> None:
    """What a kubelet that missed a list does: ask for a device that went to the claims' lane."""
    (socket,) = (
        path for path in (agent.root / "device-plugins").iterdir() if path.is_socket() and path.name != "kubelet.sock"
    )
    async with grpc.aio.insecure_channel(
        f"unix:{socket}", options=[("grpc.default_authority", "localhost")]
    ) as channel:
        wanted = v1beta1_pb2.ContainerAllocateRequest(devices_ids=[device])
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await v1beta1_pb2_grpc.DevicePluginStub(channel).Allocate(
                v1beta1_pb2.AllocateRequest(container_requests=[wanted])
            )
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def live(agent: AgentProcess, cluster: SimCluster) -> None:
    """One life of an agent, with everything that makes it talk to the API server."""
    await agent.ready(20)
    await cluster.apply(claim_pod("c1") + "---\n" + limits_pod("l1"))
    await cluster.wait_pod("c1")
    await cluster.wait_pod("l1")
    await cluster.wait(lambda: _claim_status(cluster, "c1"), what="the claim's status to be written")
    taken = next(iter(devices_in_slices(cluster)))
    await refuse_a_stale_allocate(agent, taken)
    await cluster.wait(lambda: cluster.events(reason="AllocateRefused"), what="the Event about the refusal")
    await cluster.delete("pods", "c1")
    await cluster.delete("resourceclaims", "c1")
    await set_lanes(agent, legacy=1, dra=3)
    await until(lambda: len(devices_in_slices(cluster)) == 3, 10, agent.text)
    await set_lanes(agent, legacy=4, dra=0)
    await until(lambda: len(healthy(cluster)) == 4 and not devices_in_slices(cluster), 20, agent.text)
    await set_lanes(agent, reset=True)
    await until(lambda: len(devices_in_slices(cluster)) == 2, 20, agent.text)
    # By the Node's annotation, as an administrator does it from afar.
    annotation = {f"{DRIVER}/lanes": json.dumps({RESOURCE: {"legacy": 1, "dra": 3}})}
    await cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "annotations": annotation}})
    await until(lambda: len(devices_in_slices(cluster)) == 3, 20, agent.text)
    await _foreign_leftover(cluster)  # before kubelet's restart, which would wipe it
    await cluster.kubelets["node-a"].restart()  # kubelet wipes the node's slices when it starts
    await until(lambda: len(devices_in_slices(cluster)) == 3, 20, agent.text)
    await agent.ready(20)


def _claim_status(cluster: SimCluster, name: str) -> Any:
    found = cluster.get("resourceclaims", name)
    return found and found["status"].get("devices")


async def _foreign_leftover(cluster: SimCluster) -> None:
    """A slice that an earlier agent of this node left: nobody wants it any more, so it goes."""
    (current, *_) = cluster.api.objects.peek("resourceslices")
    spec = {**current["spec"], "pool": {**current["spec"]["pool"], "generation": 1}}
    leftover = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "left-behind"}}
    await cluster.apply({**leftover, "spec": {**spec, "devices": []}})
    await cluster.wait(lambda: cluster.get("resourceslices", "left-behind") is None, what="the leftover to be deleted")


def asked(cluster: SimCluster) -> Counter[Rule]:
    """What the agent's requests needed. Discovery is for everybody who is authenticated (system:discovery)."""
    mine = [request for request in cluster.api.requests if request.user == ACCOUNT]
    assert mine
    assert {request.path for request in mine if request.verb == "nonresource"} <= {"/apis/resource.k8s.io", "/version"}
    return Counter(request.rule for request in mine if request.verb != "nonresource")


async def test_the_role_is_exactly_what_an_agent_needs_and_the_policies_allow_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge = judged(monkeypatch, POLICIES)
    async with agent_with_its_own_token() as (agent, cluster):
        await live(agent, cluster)
        requests = asked(cluster)
        assert requests.keys() - granted() == set(), "the agent asks for what the chart does not grant"
        assert granted() - requests.keys() == NEVER_A_REQUEST.keys(), "the chart grants what nobody asks for"
        denied = [request for request in cluster.api.requests if request.user == ACCOUNT and request.status == 403]
        assert denied == []
    assert judge.refused == []
    assert judge.judged.keys() == {
        "CREATE resourceslices",
        "UPDATE resourceslices",
        "DELETE resourceslices",
        "UPDATE resourceclaims/status",
        "CREATE events",
    }


async def test_with_a_token_of_another_node_nothing_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same agent with a stolen token: legacy devices work, slices are refused by the policy, and it says so."""
    judge = judged(monkeypatch, POLICIES)
    async with agent_with_its_own_token("node-z") as (agent, cluster):
        await agent.up(20)
        await until(lambda: judge.refused, 20, agent.text)
        await until(lambda: len(healthy(cluster)) == 2, 20, agent.text)
        assert not cluster.api.objects.peek("resourceslices")

        async def says_so() -> bool:
            code, body = await agent.ask("/readyz")
            return code == 503 and b"may change only ResourceSlices" in body

        await until(says_so, 20, agent.text)
    assert set(judge.refused) == {
        f"the agent on node-z may change only ResourceSlices of {DRIVER} on its own node",
        "the agent on node-z may publish only in the pool node-z",
    }


NODE_LABELS = {
    "example.com/mem.count": {"resource": RESOURCE, "count": "devices"},
    "example.com/mem.kind": {"resource": RESOURCE, "value": "{subsystem}"},
}
FOR_LABELS = manifests(
    {
        "config": {
            "driver": DRIVER,
            "nodeLabels": {"labels": NODE_LABELS},
            "resources": [{"name": RESOURCE, "match": [{"subsystem": "mem"}]}],
        }
    },
    namespace="kube-system",
)


async def test_with_labels_of_the_node_the_role_has_one_right_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels come, follow the configuration, and go, each write past the policy as the chart has it."""
    assert granted(FOR_LABELS) - granted() == {("", "nodes", "patch")}
    judge = judged(monkeypatch, [obj for obj in FOR_LABELS if obj["kind"] == "ValidatingAdmissionPolicy"])
    labelled = BOTH_LANES.replace("resources:", f"nodeLabels: {json.dumps({'labels': NODE_LABELS})}\nresources:")
    async with agent_with_its_own_token(config=labelled) as (agent, cluster):

        def labels() -> dict[str, str]:
            found = cluster.get("nodes", "node-a")
            return {} if found is None else found["metadata"].get("labels") or {}

        await agent.ready(20)
        await until(lambda: labels().get("example.com/mem.count") == "4", 10, agent.text)
        await cluster.apply(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "labels": {"zone": "a"}}}
        )
        agent.config.write_text(BOTH_LANES.replace("resources:", "nodeLabels: {}\nresources:"))
        await until(lambda: not labels().keys() & NODE_LABELS.keys(), 20, agent.text)
        assert labels()["zone"] == "a"
        assert asked(cluster).keys() - granted(FOR_LABELS) == set()
    assert judge.refused == []
    assert judge.judged["UPDATE nodes"] == 2


async def test_with_a_token_of_another_node_no_label_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = judged(monkeypatch, [obj for obj in FOR_LABELS if obj["kind"] == "ValidatingAdmissionPolicy"])
    labelled = BOTH_LANES.replace("resources:", f"nodeLabels: {json.dumps({'labels': NODE_LABELS})}\nresources:")
    async with agent_with_its_own_token("node-z", labelled) as (agent, cluster):
        await agent.up(20)
        await until(lambda: "the agent on node-z may change only its own Node" in judge.refused, 20, agent.text)
        await until(lambda: "labels of the Node not written" in agent.text(), 10, agent.text)
        found = cluster.get("nodes", "node-a")
        assert found is not None
        assert not [name for name in found["metadata"].get("labels") or {} if name.startswith("example.com/")]
