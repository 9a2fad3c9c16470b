"""``migration.namespaces``: the chart's policies are those of ``drabridge migrate switch``."""

from __future__ import annotations

import re
from typing import Any

import pytest

from deploy.helm import HelmRefusedError, manifests
from drabridge.migrate.convert.templates import Template
from drabridge.migrate.switch.policy import Form, Parts, objects, policies

Json = dict[str, Any]
RESOURCES = {"nvidia.com/gpu": "gpu.example.com", "example.net/RDMA_nic.v2": "nic.example.com"}
CONFIG: Json = {
    "apiVersion": "drabridge/v1alpha1",
    "kind": "AgentConfig",
    "driver": "gpu.example.com",
    "resources": [
        *(
            {"name": name, "match": [{"subsystem": "mem"}], "id": ["{sysname}"], "deviceClass": {"name": class_name}}
            for name, class_name in RESOURCES.items()
        ),
        {"name": "example.com/other", "match": [{"subsystem": "tty"}], "id": ["{sysname}"]},
        {
            "name": "example.com/part-{attr:profile}",  # several resources, of one class: none of them is switched
            "match": [{"subsystem": "tty"}],
            "id": ["{sysname}"],
            "deviceClass": {"name": "part.example.com", "selector": "true"},
        },
    ],
}
TEAMS: list[Json] = [{"name": "team-a", "counts": [1, 8]}, {"name": "team-b"}]


def rendered(teams: list[Json], config: Json = CONFIG, version: str = "1.36.2") -> list[Json]:
    values = {"config": config, "migration": {"namespaces": teams}, "kubeVersion": version}
    return manifests(values, name="drabridge", namespace="drabridge")


def test_the_policies_are_those_of_the_command() -> None:
    known = {
        "team-a": ["nvidia-gpu-1", "nvidia-gpu-8", "example-rdma-nic-v2-1", "example-rdma-nic-v2-8"],
        "team-b": ["nvidia-gpu-1", "example-rdma-nic-v2-1"],
    }
    text = str(known).replace("'", '"').replace(": ", ":").replace(", ", ",")
    names = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a", "team-b"]}
    form = Form(
        policy="drabridge-switch",
        guard="drabridge-switch-templates",
        known=f"{text}[namespaceObject.metadata.name]",
        namespaces={"matchExpressions": [names]},
    )
    found = {(one["kind"], one["metadata"]["name"]): one["spec"] for one in rendered(TEAMS) if "spec" in one}
    for wanted in objects(Parts(list(RESOURCES)), form):
        assert found[wanted["kind"], wanted["metadata"]["name"]] == wanted["spec"]


def test_the_templates_are_those_of_the_command() -> None:
    found = [one for one in rendered(TEAMS) if one["kind"] == "ResourceClaimTemplate"]
    wanted = [
        Template(team["name"], resource, class_name, count)
        for team in TEAMS
        for resource, class_name in RESOURCES.items()
        for count in team.get("counts", [1])
    ]
    assert [one["metadata"]["name"] for one in found] == [one.name for one in wanted]
    for one, template in zip(found, wanted, strict=True):
        spec = template.manifest()["spec"]
        spec["spec"]["devices"]["requests"][0]["exactly"].setdefault("count", 1)
        assert one["spec"] == spec
        assert one["metadata"]["namespace"] == template.namespace


def test_the_policies_that_change_pods_are_of_the_version_that_is_served() -> None:
    for version in ("v1", "v1beta1"):
        found = {one["kind"]: one["apiVersion"].rpartition("/")[2] for one in policies(RESOURCES, version)}
        assert found == {
            "MutatingAdmissionPolicy": version,
            "MutatingAdmissionPolicyBinding": version,
            "ValidatingAdmissionPolicy": "v1",
            "ValidatingAdmissionPolicyBinding": "v1",
        }


def test_every_text_of_others_has_a_limit_before_it_is_looped_over() -> None:
    """Admission sees names and annotations before the API server has checked their size."""
    switch, guard = (one["spec"] for one in policies(RESOURCES) if "matchConstraints" in one["spec"])
    for spec in switch, guard:
        variables = {one["name"]: one["expression"] for one in spec["variables"]}
        for expression in variables.values():
            for text in re.findall(r"(variables[.]owner|variables[.]notes[^ ()]*?)[.]split[(]", expression):
                if text == "variables.owner":
                    assert ".map(n, n.size() > 253 ? '' : n)" in variables["owner"]
                else:
                    assert f"{text}.size() <= " in expression.partition(f"{text}.split")[0]
    conditions = " ".join(one["expression"] for one in switch["matchConditions"])
    for listed in "containers", "initContainers":
        assert f"object.spec.{listed}.size() <= 100" in conditions
    assert "resourceClaims.size() > 256" in str(guard)


def test_nothing_is_switched_by_default() -> None:
    kinds = {one["kind"] for one in rendered([])}
    assert not kinds & {"MutatingAdmissionPolicy", "ResourceClaimTemplate"}


@pytest.mark.parametrize(
    ("config", "version", "said"),
    [
        pytest.param(CONFIG, "1.35.0", "needs Kubernetes 1.36", id="old"),
        pytest.param({**CONFIG, "resources": CONFIG["resources"][2:]}, "1.36.0", "deviceClass", id="no class"),
        pytest.param(
            {**CONFIG, "resources": [{**CONFIG["resources"][0], "name": f"example.com/{'x' * 60}"}]},
            "1.36.0",
            "is too long for the chart",
            id="long name",
        ),
    ],
)
def test_what_cannot_be_switched_is_refused(config: Json, version: str, said: str) -> None:
    with pytest.raises(HelmRefusedError, match=said):
        rendered(TEAMS, config, version)
