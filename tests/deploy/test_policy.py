"""The admission policies: the agent may do its work on its own node, and nothing elsewhere."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from deploy.helm import manifests
from drabridge.kube.events import REASONS
from drabridge.kube.versions import RESOURCE_GROUP, RESOURCE_VERSIONS
from drabridge.sim.apiserver.auth import User
from tests.deploy.policy import POLICIES, Request, matches, refusals

Json = dict[str, Any]
DRIVER = "drabridge.example.com"
AGENT = User("system:serviceaccount:drabridge:drabridge", node="node-a")
UNBOUND = User("system:serviceaccount:drabridge:drabridge")
OTHER = User("system:serviceaccount:drabridge:other", node="node-b")


def slice_of(node: str | None = "node-a", driver: str = DRIVER) -> Json:
    spec: Json = {"driver": driver, "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1}}
    return {"metadata": {"name": "s"}, "spec": spec | ({"nodeName": node} if node else {"allNodes": True})}


def claim(node: str = "node-a", devices: tuple[str, ...] = (), **status: Any) -> Json:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    allocation = {
        "devices": {"results": [{"request": "r", "driver": DRIVER, "pool": "node-a", "device": "d"}]},
        "nodeSelector": {"nodeSelectorTerms": [term]},
    }
    written = {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": "p", "uid": "1"}], **status}
    if devices:
        written["devices"] = [{"driver": driver, "pool": "node-a", "device": "d"} for driver in devices]
    return {"metadata": {"name": "c", "namespace": "default"}, "spec": {}, "status": written}


def without(claim: Json, *path: str) -> Json:
    changed = copy.deepcopy(claim)
    place = changed
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return changed


def asked(operation: str, new: Json | None, old: Json | None, user: User = AGENT) -> list[str]:
    return refusals(POLICIES, Request(operation, "resourceslices", user, new, old))


def test_every_version_that_the_agent_speaks_is_covered() -> None:
    rules = [rule for policy in POLICIES for rule in policy["spec"]["matchConstraints"]["resourceRules"]]
    covered = {tuple(rule["apiVersions"]) for rule in rules if rule["apiGroups"] == [RESOURCE_GROUP]}
    assert covered == {tuple(row.version for row in RESOURCE_VERSIONS)}


@pytest.mark.parametrize(
    ("operation", "new", "old"),
    [("CREATE", slice_of(), None), ("UPDATE", slice_of(), slice_of()), ("DELETE", None, slice_of())],
    ids=["create", "update", "delete"],
)
def test_slices_of_the_own_node_are_the_agents(operation: str, new: Json | None, old: Json | None) -> None:
    assert asked(operation, new, old) == []


OWN_POOL = "the agent on node-a may publish only in the pool {}"


def in_pool(name: str, node: str = "node-a") -> Json:
    found = slice_of(node)
    found["spec"]["pool"] = {"name": name, "generation": 9_007_199_254_740_991, "resourceSliceCount": 128}
    return found


def test_a_slice_of_the_own_node_in_another_nodes_pool_is_refused() -> None:
    """There it would stand for that node's devices, and with a higher generation instead of them."""
    said = [OWN_POOL.format("node-a")]
    assert asked("CREATE", in_pool("node-b"), None) == said
    assert asked("UPDATE", in_pool("node-b"), slice_of()) == said
    assert asked("CREATE", in_pool("node-a"), None) == []


def test_a_slice_that_is_there_already_keeps_its_pool_and_may_go() -> None:
    """The pool was called otherwise when it was made: before ``config.dra.pool`` was changed."""
    former = in_pool("former")
    assert asked("UPDATE", former, former) == []
    assert asked("UPDATE", slice_of(), former) == []
    assert asked("DELETE", None, former) == []


def test_a_configured_pool_is_the_only_one() -> None:
    objects = manifests({"config": {"dra": {"pool": "rack/one"}}})
    policies = [obj for obj in objects if obj["kind"] == "ValidatingAdmissionPolicy"]

    def said(name: str) -> list[str]:
        return refusals(policies, Request("CREATE", "resourceslices", AGENT, in_pool(name), None))

    assert said("rack/one") == []
    assert said("node-a") == said("node-b") == [OWN_POOL.format("rack/one")]


OWN_ONLY = "the agent on node-a may change only ResourceSlices of drabridge.example.com on its own node"


@pytest.mark.parametrize("foreign", [slice_of("node-b"), slice_of(None), slice_of(driver="other.example.com")], ids=str)
def test_slices_of_other_nodes_are_refused(foreign: Json) -> None:
    for operation, new, old in (
        ("CREATE", foreign, None),
        ("DELETE", None, foreign),
        ("UPDATE", foreign, slice_of()),
        ("UPDATE", slice_of(), foreign),
    ):
        assert asked(operation, new, old) == [OWN_ONLY], (operation, new, old)


@pytest.mark.parametrize("old_token", [False, True], ids=["no node", "no extra"])
def test_a_token_that_is_bound_to_no_node_is_good_for_nothing(old_token: bool) -> None:
    create = Request("CREATE", "resourceslices", UNBOUND, slice_of(), None, old_token)
    assert len(refusals(POLICIES, create)) == 3
    delete = Request("DELETE", "resourceslices", UNBOUND, None, slice_of(""), old_token)
    assert "not bound to a node" in refusals(POLICIES, delete)[0], "not even for nameless nodes"


def test_the_policies_do_not_apply_to_other_users() -> None:
    request = Request("CREATE", "resourceslices", OTHER, slice_of("node-z"), None)
    assert not any(matches(policy, request) for policy in POLICIES)
    assert refusals(POLICIES, request) == []


# --- status of claims -----------------------------------------------------------------------------------------------


def status_write(new: Json, old: Json, user: User = AGENT) -> list[str]:
    return refusals(POLICIES, Request("UPDATE", "resourceclaims/status", user, new, old))


def test_the_agent_reports_on_its_devices() -> None:
    assert status_write(claim(devices=(DRIVER,)), claim()) == []
    assert status_write(claim(devices=(DRIVER, "nic.example.com")), claim(devices=("nic.example.com",))) == []
    assert status_write(claim(), claim(devices=(DRIVER,))) == []


OLD = claim()
CHANGED_ALLOCATION = copy.deepcopy(OLD)
CHANGED_ALLOCATION["status"]["allocation"]["devices"]["results"][0]["device"] = "e"


@pytest.mark.parametrize(
    ("new", "old", "said"),
    [
        (claim("node-b", (DRIVER,)), claim("node-b"), "only the status of claims that are allocated there"),
        (claim("node-a", (DRIVER,)), claim("node-b"), "only the status of claims that are allocated there"),
        (CHANGED_ALLOCATION, OLD, "does not allocate"),
        (without(OLD, "status", "allocation"), OLD, "does not allocate"),
        (OLD, without(OLD, "status", "allocation"), "does not allocate"),
        (without(OLD, "status", "reservedFor"), OLD, "does not reserve"),
        (OLD, without(OLD, "status", "reservedFor"), "does not reserve"),
        (claim(devices=("nic.example.com",)), OLD, "only on devices of drabridge.example.com"),
        (OLD, claim(devices=("nic.example.com",)), "only on devices of drabridge.example.com"),
        (without(OLD, "status"), OLD, "does not allocate"),
        (OLD, without(OLD, "status", "allocation", "nodeSelector"), "only the status of claims"),
    ],
)
def test_the_agent_reports_on_no_other_driver(new: Json, old: Json, said: str) -> None:
    assert any(said in message for message in status_write(new, old)), status_write(new, old)


def test_a_claim_that_spans_nodes_is_refused_to_the_agent() -> None:
    wide = claim()
    wide["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"].append("node-b")
    assert status_write(wide, wide)
    either = claim()
    either["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"] += claim("node-b")["status"]["allocation"][
        "nodeSelector"
    ]["nodeSelectorTerms"]
    assert status_write(either, either), "one of several terms is enough for the scheduler"
    by_label = claim()
    by_label["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"] = [{"matchExpressions": []}]
    assert status_write(by_label, by_label)


# --- Events ---------------------------------------------------------------------------------------------------------


def event(kind: str = "Node", name: str = "node-a", reason: str = "AllocateRefused", **source: str) -> Json:
    namespace = "default" if kind == "Node" else "team"
    return {
        "metadata": {"name": "e", "namespace": namespace},
        "involvedObject": {"kind": kind, "name": name, "namespace": namespace},
        "reason": reason,
        "source": {"component": DRIVER, "host": "node-a", **source},
    }


def event_write(new: Json, user: User = AGENT) -> list[str]:
    return refusals(POLICIES, Request("CREATE", "events", user, new, None))


@pytest.mark.parametrize("reason", REASONS)
def test_the_agent_writes_its_events_about_its_own_node_and_pods_and_claims(reason: str) -> None:
    for kind, name in (("Node", "node-a"), ("Pod", "p"), ("ResourceClaim", "c")):
        assert event_write(event(kind, name, reason)) == []
        reported = {"reportingComponent": DRIVER, "reportingInstance": "node-a"}
        assert event_write(event(kind, name, reason) | reported) == []
        assert event_write(event(kind, name, reason) | dict.fromkeys(reported, "")) == []


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (event(name="node-b"), "only about its own Node"),
        (event("Deployment", "d"), "only about its own Node"),
        (without(event(), "involvedObject", "name"), "only about its own Node"),
        (without(event(), "involvedObject", "kind"), "only about its own Node"),
        (event(host="node-b"), "only in its own name"),
        (event(component="kubelet"), "only in its own name"),
        (without(event(), "source"), "only in its own name"),
        (event("Pod", "p", "Killing"), "no Events with such a reason"),
        (without(event(), "reason"), "no Events with such a reason"),
        ({**event(), "reportingComponent": "kubelet"}, "only in its own name"),
        ({**event(), "reportingInstance": "node-b"}, "only in its own name"),
        ({**event(), "related": {"kind": "Node", "name": "node-b"}}, "about one object"),
        ({**event("Pod", "p"), "related": {}}, "about one object"),
    ],
)
def test_the_agent_writes_no_events_about_other_objects(new: Json, said: str) -> None:
    assert any(said in message for message in event_write(new)), event_write(new)


def test_events_of_other_programs_are_left_to_them() -> None:
    assert event_write(event("Deployment", "d", "Whatever", component="other"), OTHER) == []
    assert "not bound to a node" in " ".join(event_write(event(), UNBOUND))


# --- objects that a real API server stored -------------------------------------------------------------------------

RECORDED = Path(__file__).parents[1] / "sim/fixtures/kubernetes-1.36.3"
RECORDED_DRIVER = "obs.example.com"
FOR_RECORDED = [
    obj for obj in manifests({"config": {"driver": RECORDED_DRIVER}}) if obj["kind"] == "ValidatingAdmissionPolicy"
]
ELSEWHERE = User(AGENT.name, node="node-b")


def recorded(name: str) -> Json:
    found: Json = json.loads((RECORDED / f"{name}.json").read_text())
    return found


def test_a_recorded_slice_is_its_own_nodes_agents() -> None:
    stored = recorded("resourceslice")
    for operation, new, old in (("CREATE", stored, None), ("UPDATE", stored, stored), ("DELETE", None, stored)):
        assert refusals(FOR_RECORDED, Request(operation, "resourceslices", AGENT, new, old)) == []
        assert refusals(FOR_RECORDED, Request(operation, "resourceslices", ELSEWHERE, new, old))
        assert asked(operation, new, old), "another driver's"


@pytest.mark.parametrize("name", ["allocated", "shared", "from-template", "extended"])
def test_a_recorded_claim_takes_its_nodes_agents_report(name: str) -> None:
    stored = recorded(f"resourceclaim-{name}")
    (result, *_) = stored["status"]["allocation"]["devices"]["results"]
    entry = {key: result[key] for key in ("driver", "pool", "device")} | {"conditions": []}
    reported = copy.deepcopy(stored)
    reported["status"]["devices"] = [entry]
    assert refusals(FOR_RECORDED, Request("UPDATE", "resourceclaims/status", AGENT, reported, stored)) == []
    assert refusals(FOR_RECORDED, Request("UPDATE", "resourceclaims/status", ELSEWHERE, reported, stored))
    assert "only on devices of" in status_write(reported, stored)[0], "another driver's"
    for taken in ("allocation", "reservedFor"):
        write = Request("UPDATE", "resourceclaims/status", AGENT, without(reported, "status", taken), stored)
        assert refusals(FOR_RECORDED, write), taken
