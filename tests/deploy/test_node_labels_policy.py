"""The admission policy for Nodes: labels of the configuration on the agent's own Node, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from deploy.helm import manifests, one
from drabridge.config import load
from drabridge.config.gfd_labels import PREFIXES
from drabridge.sim.apiserver.auth import User
from tests.deploy.policy import Request, matches, refusals
from tests.deploy.policy_types import VERSIONS, complaints

Json = dict[str, Any]
DRIVER = "drabridge.example.com"
GPU = {"name": "nvidia.com/gpu", "match": [{"subsystem": "pci"}]}
COUNT = {"resource": "nvidia.com/gpu", "count": "devices"}
AGENT = User("system:serviceaccount:drabridge:drabridge", node="node-a")
OTHER = User("system:serviceaccount:kube-system:nfd", node="node-b")


def policies(node_labels: Json | None) -> list[Json]:
    config: Json = {"resources": [GPU]} | ({} if node_labels is None else {"nodeLabels": node_labels})
    return [obj for obj in manifests({"config": config}) if obj["kind"] == "ValidatingAdmissionPolicy"]


CONFIGURED = policies({"labels": {"example.com/count": COUNT, "example.com/kind": COUNT}})
GFD = policies({"gfd": True})
EMPTY = policies({})


def node(name: str = "node-a", /, managers: Json | None = None, **labels: str) -> Json:
    """``managers``: manager -> names of its labels; names are written without ``example.com/``."""
    fields = [
        {
            "manager": manager,
            "operation": "Apply",
            "fieldsV1": {"f:metadata": {"f:labels": {f"f:example.com/{one}": {} for one in own}}},
        }
        for manager, own in (managers or {}).items()
    ]
    status = {"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": {}}}
    return {
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                **{f"example.com/{key}": value for key, value in labels.items()},
            },
            "annotations": {"a": "b"},
            "managedFields": [*fields, status],
        },
        "spec": {"podCIDR": "10.0.0.0/24"},
    }


def asked(of: list[Json], new: Json, old: Json, user: User = AGENT) -> list[str]:
    return refusals(of, Request("UPDATE", "nodes", user, new, old))


ONLY_LABELS = ["the agent writes only the labels of its configuration"]


def test_labels_of_the_configuration_come_change_and_go() -> None:
    assert asked(CONFIGURED, node(count="2"), node()) == []
    assert asked(CONFIGURED, node(count="3", kind="x"), node(count="2")) == []
    assert asked(CONFIGURED, node(), node(count="2", kind="x")) == []
    bare = node()
    del bare["metadata"]["labels"]
    assert asked(CONFIGURED, bare, bare) == []
    without_spec = node()
    del without_spec["spec"]
    assert asked(CONFIGURED, without_spec | node(count="1") | {"spec": {}}, node() | {"spec": {}}) == []


@pytest.mark.parametrize("of", [CONFIGURED, GFD, EMPTY], ids=["labels", "gfd", "empty"])
def test_other_labels_are_refused(of: list[Json]) -> None:
    assert asked(of, node(other="x"), node()) == ONLY_LABELS
    assert asked(of, node(other="y"), node(other="x")) == ONLY_LABELS
    assert asked(of, node(), node(other="x")) == ONLY_LABELS
    moved = node()
    moved["metadata"]["labels"] = {"kubernetes.io/hostname": "node-b"}
    assert asked(of, moved, node()) == ONLY_LABELS
    gone = node()
    del gone["metadata"]["labels"]
    assert asked(of, gone, node()) == ONLY_LABELS


@pytest.mark.parametrize(
    "name",
    ["nvidia.com/gpu.product", "nvidia.com/mig-1g.10gb.count", "nvidia.com/mig.strategy", "nvidia.com/cuda.driver.rev",
     "nvidia.com/mps.capable"],
)  # fmt: skip
def test_the_labels_of_gfd_are_those_that_the_agent_writes(name: str) -> None:
    assert name.startswith(PREFIXES)
    new = node()
    new["metadata"]["labels"][name] = "x"
    assert asked(GFD, new, node()) == []
    assert asked(CONFIGURED, new, node()) == ONLY_LABELS
    foreign = node()
    foreign["metadata"]["labels"]["nvidia.com/dcgm.deploy"] = "x"
    assert asked(GFD, foreign, node()) == ONLY_LABELS


def test_every_label_of_gfd_is_allowed() -> None:
    mig = "{name: nvidia.com/mig-1g.10gb, match: {subsystem: nvidia-mig}, partition: {of: nvidia.com/gpu}}"
    of = load(
        "apiVersion: drabridge/v1alpha1\nkind: AgentConfig\nnodeLabels: {gfd: true}\n"
        f"resources: [{{name: nvidia.com/gpu, match: {{subsystem: pci}}}}, {mig}]"
    )
    new = node()
    new["metadata"]["labels"] |= {rule.name: "x" for rule in of.label_rules}
    assert len(of.label_rules) > 30
    assert asked(GFD, new, node()) == []


@pytest.mark.parametrize(
    ("managers", "refused"),
    [
        ({DRIVER: ["other"]}, False),
        ({DRIVER: ["other"], "nfd": ["else"]}, False),
        ({DRIVER: ["other"], "nfd": ["other"]}, True),
        ({"nfd": ["other"]}, True),
        ({DRIVER: ["else"]}, True),
        ({}, True),
        (None, True),
    ],
)
def test_a_label_of_a_former_configuration_may_go_if_nobody_else_has_written_it(
    managers: Json | None, refused: bool
) -> None:
    for of in (CONFIGURED, EMPTY, GFD):
        assert asked(of, node(managers=managers), node(managers=managers, other="x")) == (
            ONLY_LABELS if refused else []
        )
        assert asked(of, node(managers=managers, other="y"), node(managers=managers, other="x")) == ONLY_LABELS


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "unschedulable"), True),
        (("spec", "taints"), [{"key": "a", "effect": "NoExecute"}]),
        (("metadata", "annotations"), {"a": "c"}),
        (("metadata", "finalizers"), ["example.com/x"]),
        (("metadata", "ownerReferences"), [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1"}]),
    ],
)
def test_nothing_else_of_the_node_is_written(path: tuple[str, str], value: Any) -> None:
    new = copy.deepcopy(node(count="2"))
    new[path[0]][path[1]] = value
    assert asked(CONFIGURED, new, node()) == ["the agent writes labels of its Node, and nothing else of it"]
    assert asked(CONFIGURED, node(), new) == ["the agent writes labels of its Node, and nothing else of it"]


def test_nodes_of_others_and_new_ones_are_refused() -> None:
    said = asked(CONFIGURED, node("node-b", count="2"), node("node-b"))
    assert said == ["the agent on node-a may change only its own Node"]
    role = one(manifests({"config": {"resources": [GPU], "nodeLabels": {}}}), "ClusterRole")
    assert role["rules"][0]["verbs"] == ["get", "list", "watch", "patch"], "so a PATCH makes none"
    assert "not bound to a node" in " ".join(asked(CONFIGURED, node(), node(), User(AGENT.name)))


def test_other_users_are_not_meant() -> None:
    request = Request("UPDATE", "nodes", OTHER, node("node-z", anything="x"), node("node-z"))
    assert not any(matches(policy, request) for policy in CONFIGURED)


def test_without_the_key_there_is_neither_policy_nor_right() -> None:
    assert not [one for one in policies(None) if one["metadata"]["name"].endswith("-nodes")]
    role = one(manifests({"config": {"resources": [GPU]}}), "ClusterRole")
    assert role["rules"][0]["verbs"] == ["get", "list", "watch"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("of", [CONFIGURED, GFD, EMPTY], ids=["labels", "gfd", "empty"])
def test_every_expression_has_the_types_of_what_it_reads(of: list[Json], version: str) -> None:
    (policy,) = (one for one in of if one["metadata"]["name"].endswith("-nodes"))
    assert complaints(policy, version) == []
