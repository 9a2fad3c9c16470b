"""The admission policy for Nodes: labels of the configuration on the agent's own Node, and nothing else."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from deploy.helm import manifests, one
from drabridge.config import load
from drabridge.sim.apiserver.auth import User
from tests.deploy.policy import Request, by_google, matches, refusals
from tests.deploy.policy_types import complaints
from tests.deploy.renders import VERSIONS

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
    new = node()
    new["metadata"]["labels"][name] = "x"
    assert asked(GFD, new, node()) == []
    assert asked(CONFIGURED, new, node()) == ONLY_LABELS
    foreign = node()
    foreign["metadata"]["labels"]["nvidia.com/dcgm.deploy"] = "x"
    assert asked(GFD, foreign, node()) == ONLY_LABELS


def _of(count: int) -> Json:
    new = node()
    new["metadata"]["labels"] |= {f"nvidia.com/mig-{n}g.count": "1" for n in range(count)}
    return new


def _written(count: int) -> Json:
    fields: Json = {f"f:nvidia.com/mig-{n}g.count": {} for n in range(count)}
    new = node()
    new["metadata"]["managedFields"].append({"manager": DRIVER, "fieldsV1": {"f:metadata": {"f:labels": fields}}})
    return new


def _by_many() -> Json:
    return node(managers={f"{DRIVER}{n}": ["a"] for n in range(100)})


FIELDS = _written(600)


@pytest.mark.parametrize("new", [_of(600), FIELDS, _by_many()], ids=["labels", "fields", "managers"])
def test_a_stolen_token_cannot_keep_the_api_server_busy_with_a_node(new: Json) -> None:
    """Each label is compared with all that others have written: 20,000 of them take a server seconds."""
    (policy,) = (one for one in GFD if one["metadata"]["name"].endswith("-nodes"))
    for rule in policy["spec"]["validations"][-2:]:
        for most, old in ((_of(9), node()), (_written(9), node()), (new, node()), (new, new)):
            context = {**Request("UPDATE", "nodes", AGENT, most, old).context, "variables": {"node": "node-a"}}
            holds = by_google(rule["expression"], frozenset(context)).eval(data=context).plain_value()
            refused = most is new and not (new is FIELDS and rule is policy["spec"]["validations"][-1])
            assert holds is not refused


WHOLE = "{name: nvidia.com/gpu, match: {subsystem: pci}}"
MIXED = "{name: nvidia.com/mig-NAME, match: {subsystem: nvidia-mig}, partition: {of: nvidia.com/gpu}}"
SINGLE = (
    "{name: nvidia.com/gpu-whole, match: {subsystem: pci}}, "
    "{name: nvidia.com/gpu, match: {subsystem: nvidia-mig}, partition: {of: nvidia.com/gpu-whole}}"
)


def rules(resources: str) -> list[str]:
    head = "apiVersion: drabridge/v1alpha1\nkind: AgentConfig\nnodeLabels: {gfd: true}\n"
    return [rule.name for rule in load(f"{head}resources: [{resources}]").label_rules]


@pytest.mark.parametrize(
    "resources",
    [
        WHOLE,
        SINGLE,
        *(f"{WHOLE}, {MIXED.replace('NAME', name)}" for name in ("1g.10gb", "1c.3g.40gb", "1g.10gb.me.all", "small-1")),
    ],
)
def test_every_label_of_gfd_is_allowed(resources: str) -> None:
    found = rules(resources)
    new = node()
    new["metadata"]["labels"] |= dict.fromkeys(found, "x")
    assert len(found) > 20
    assert asked(GFD, new, node()) == []


def test_no_name_is_allowed_that_no_rule_has() -> None:
    (policy,) = (one for one in GFD if one["metadata"]["name"].endswith("-nodes"))
    text = policy["spec"]["validations"][-1]["expression"]
    listed = json.loads(text[text.index('["nvidia.com') :].partition("]")[0] + "]")
    assert sorted(listed) == sorted({*rules(WHOLE), *rules(SINGLE)})
    suffixes = {name.removeprefix("nvidia.com/mig-x.") for name in rules(f"{WHOLE}, {MIXED.replace('NAME', 'x')}")}
    for suffix in suffixes - {name for name in suffixes if "/" in name}:
        assert asked(GFD, with_label(f"nvidia.com/mig-x.{suffix}"), node()) == []


def with_label(name: str) -> Json:
    new = node()
    new["metadata"]["labels"][name] = "all-disabled"
    return new


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/mig.config",
        "nvidia.com/mig.config.state",
        "nvidia.com/gpu.deploy.driver",
        "nvidia.com/gpu.deploy.operands",
        "nvidia.com/gpu.workload.config",
        "nvidia.com/gpu.present",
        "nvidia.com/gpu-driver-upgrade-state",
        "nvidia.com/device-plugin.config",
        "nvidia.com/mps.config",
        "nvidia.com/vgpu.config",
        "nvidia.com/cuda.x",
        "nvidia.com/gpu.product.x",
        "nvidia.com/mig-1g.10gb.config",
        "nvidia.com/mig-1g.10gb.product/x",
        "xnvidia.com/mig-1g.10gb.product",
        "nvidia.com/mig-1g.10gb.productx",
    ],
)
def test_no_label_that_commands_an_operator_is_written(name: str) -> None:
    assert asked(GFD, with_label(name), node()) == ONLY_LABELS
    assert asked(GFD, node(), with_label(name)) == ONLY_LABELS


NOBODY_ELSE = ["the agent does not change who has written what, but for the labels of its configuration"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"nfd": ["pool"]}, {DRIVER: ["pool"]}),  # taken over
        ({"nfd": ["pool"]}, {}),  # forgotten
        ({"nfd": ["pool"]}, {"nfd": []}),
        ({"nfd": ["pool"]}, {"nfd": ["pool"], "kubectl": ["pool"]}),  # under another name
        ({}, {DRIVER: ["pool"]}),
        ({DRIVER: ["count"]}, {DRIVER: ["count", "pool"]}),
        ({"nfd": ["pool"], DRIVER: ["count"]}, {DRIVER: ["count", "pool"]}),
        ({}, {DRIVER: ["not-there-yet"]}),
    ],
)
def test_nobody_becomes_the_writer_of_a_label_by_saying_so(before: Json, after: Json) -> None:
    """A write may set ``managedFields``: then a second one could remove the label as the agent's own."""
    for of in (CONFIGURED, GFD, EMPTY):
        assert asked(of, node(managers=after, pool="x"), node(managers=before, pool="x")) == NOBODY_ELSE
        assert asked(of, node(managers=after), node(managers=before, pool="x")), "in one step"


def test_the_agent_becomes_the_writer_of_its_own_labels() -> None:
    kubelet = {"kubelet": ["zone"]}
    new = node(managers={**kubelet, DRIVER: ["count", "kind"]}, count="1", kind="x")
    assert asked(CONFIGURED, new, node(managers=kubelet)) == []
    assert asked(CONFIGURED, node(managers=kubelet), new) == []
    former = node(managers={**kubelet, DRIVER: ["former"]}, former="1")
    assert asked(CONFIGURED, node(managers={**kubelet, DRIVER: ["count"]}, count="1"), former) == []
    dotted = node(managers={**kubelet, DRIVER: ["count"]}, count="1")
    dotted["metadata"]["managedFields"][1]["fieldsV1"]["f:metadata"]["f:labels"]["."] = {}
    assert asked(CONFIGURED, dotted, node(managers=kubelet)) == []
    without = node()
    del without["metadata"]["managedFields"]
    assert asked(CONFIGURED, without, without) == []
    first = node(managers={"before-first-apply": ["zone"], DRIVER: ["count"]}, count="1")
    assert asked(CONFIGURED, first, without) == []
    taken = node(managers={DRIVER: ["count", "pool"]}, count="1", pool="x")
    old = node(pool="x")
    del old["metadata"]["managedFields"]
    assert asked(CONFIGURED, taken, old) == NOBODY_ELSE


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
