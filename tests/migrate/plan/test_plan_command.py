"""``drabridge migrate plan`` as a person and a program see it: what it reads, writes, says and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from drabridge.kube.client import KubernetesCluster
from drabridge.kube.features import POLICIES, FeatureState
from drabridge.migrate.plan.build import plan
from drabridge.migrate.plan.document import Plan
from drabridge.migrate.report.collect import collect
from tests.migrate.cluster_objects import (
    GPU,
    asked,
    device_class,
    meta,
    migrate,
    node,
    pod,
    pod_spec,
    serving,
    workload,
)
from tests.migrate.example_cluster import example_cluster, moved

Json = dict[str, Any]
OURS = "gpu.example.com"
CLASS = ("--class", f"{GPU}={OURS}", "--driver", OURS)
KUBE_SYSTEM: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": meta("kube-system", "")}


async def planned(*objects: Json, words: tuple[str, ...] = CLASS, status: int = 0) -> Json:
    """The plan of a cluster that has these objects."""
    code, out, err = await asked([KUBE_SYSTEM, *objects], "plan", *words, "-o", "json")
    assert code == status, err
    found: Json = json.loads(out)
    return found


def deployment(name: str, devices: int = 1, pods: int = 1, namespace: str = "team-a", **more: Any) -> list[Json]:
    """A Deployment with its ReplicaSet, and its pods on node-a."""
    made = moved(workload("Deployment", name, replicas=pods, spec=pod_spec(devices), **more), namespace)
    middle = moved(workload("ReplicaSet", f"{name}-1", owner=made, spec=pod_spec(devices)), namespace)
    spec = pod_spec(devices)
    return [
        made,
        middle,
        *(pod(f"{name}-1-{i}", owner=middle, namespace=namespace, spec=spec) for i in range(pods)),
    ]


def steps(plan: Json) -> list[str]:
    return [step["name"] for step in plan["steps"]]


async def test_idle_ones_go_first_then_single_devices_then_rollouts_then_what_has_an_order() -> None:
    store = moved(workload("StatefulSet", "store"), "ordered")
    night = moved(workload("CronJob", "night"), "idle")
    found = await planned(
        node(count=16),
        *deployment("big", 4, namespace="rolling"),
        *deployment("small", namespace="single"),
        store,
        pod("store-0", owner=store, namespace="ordered"),
        night,
    )
    assert steps(found) == ["idle", "single", "rolling", "ordered", "rest/lanes"]
    assert [step.get("lanes") for step in found["steps"]] == [
        {"node-a": 1},
        {"node-a": 2},
        {"node-a": 9},
        {"node-a": 10},
        {"node-a": "all"},
    ]


async def test_workloads_of_one_namespace_are_one_step_because_it_is_switched_as_a_whole() -> None:
    found = await planned(node(), *deployment("web", pods=2), *deployment("api"))
    (step, _) = found["steps"]
    assert step["name"] == "team-a"
    assert step["moves"] == [
        {"object": "Deployment/api", "pods": 1, "devices": 1, "how": "rollout"},
        {"object": "Deployment/web", "pods": 2, "devices": 1, "how": "rollout"},
    ]


async def test_what_is_missing_is_said_and_the_exit_status_is_1() -> None:
    found = await planned(node(count=1), *deployment("web"), status=1)
    (words,) = found["steps"][0]["missing"]
    assert words.startswith("Deployment/web: 1 free device on one of node-a: its rollout makes a new pod before")


@pytest.mark.parametrize(
    ("resource", "code"), [("pods", 1), ("deployments", 1), ("resourceclaimtemplates", 0), ("namespaces", 0)]
)
async def test_a_right_that_is_missing_is_named_and_stops_only_what_needs_it(resource: str, code: int) -> None:
    async with serving(KUBE_SYSTEM, node(), *deployment("web")) as (api, kubeconfig):
        api.faults.fail(9, 403, verb="list", resource=resource)
        status, out, err = await migrate("plan", "--kubeconfig", str(kubeconfig), *CLASS)
    assert (status, bool(out)) == (code, not code)
    assert f"list {resource}" in err


async def test_without_policies_in_the_api_server_a_switch_does_not_fit() -> None:
    async with serving(node(), *deployment("web")) as (_, kubeconfig):
        api = KubernetesCluster.from_kubeconfig(kubeconfig)
        facts = await collect(api, lambda kind, count: None)
        api.close()
    head = Plan(apiVersion="drabridge.migration/v1alpha1", cluster="uid", resource=GPU, device_class=OURS, driver=OURS)
    for serves in (True, False):
        facts.features[POLICIES] = FeatureState.of(serves)
        made = plan(facts, head)
        assert made.fits is serves
    assert "plan with --manifests" in made.steps[0].missing[0]


async def test_operators_that_count_limits_keep_their_whole_namespace() -> None:
    found = await planned(*example_cluster())
    assert steps(found) == ["inference", "batch", "search", "rest/lanes"]
    assert {one["object"] for one in found["left"]} == {"research/CronJob/nightly", "research/RayCluster/train"}


async def test_manifests_make_steps_of_single_workloads(tmp_path: Path) -> None:
    objects = [*deployment("web"), *deployment("api"), *deployment("more", namespace="team-b")]
    (tmp_path / "web.yaml").write_text(yaml.safe_dump(objects[0]))
    found = await planned(node(), *objects, words=(*CLASS, "--manifests", str(tmp_path)))
    assert steps(found) == ["team-a/Deployment/web", "team-b", "rest/lanes"]
    assert [one["object"] for one in found["left"]] == ["team-a/Deployment/api"]
    assert found["manifests"] == [str(tmp_path)]


async def test_one_namespace_alone_is_planned_and_devices_are_kept() -> None:
    objects = [*deployment("web"), *deployment("other", namespace="team-b")]
    found = await planned(node(), *objects, words=(*CLASS, "-n", "team-b", "--keep", "2"))
    assert steps(found) == ["team-b", "rest/lanes"]
    assert found["steps"][1]["lanes"] == {"node-a": "all"}
    assert found["keepForLimits"] == 2


async def test_the_class_and_its_driver_are_found_where_only_one_can_be_meant() -> None:
    objects = [node(), *deployment("web"), device_class("gpus", extended=GPU, driver="gpu.example.org")]
    found = await planned(*objects, words=())
    assert (found["resource"], found["deviceClass"], found["driver"]) == (GPU, "gpus", "gpu.example.org")


async def test_the_vendors_class_is_meant_where_the_cluster_has_it() -> None:
    found = await planned(node(), *deployment("web"), device_class(), words=())
    assert {found["deviceClass"], found["driver"]} == {"gpu.nvidia.com"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), f"no DeviceClass has extendedResourceName {GPU}"),
        (("--class", f"{GPU}=none"), "which driver serves DeviceClass none cannot be seen"),
        (("--explain", "x"), "--explain needs a PLAN"),
        (("--config", "x"), "--config is for --manifests"),
        (("--keep", "-1"), "expected a whole number from 0 to 1000"),
    ],
)
async def test_bad_words_are_refused_with_what_to_do(words: tuple[str, ...], said: str) -> None:
    code, _, err = await asked([KUBE_SYSTEM, node(), *deployment("web")], "plan", *words)
    assert code == 2
    assert said in err


async def test_a_plan_is_written_read_and_explained(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    async with serving(KUBE_SYSTEM, node(), *deployment("web")) as (_, kubeconfig):
        words = ("plan", "--kubeconfig", str(kubeconfig), *CLASS, "--write", str(path))
        code, out, _ = await migrate(*words)
        assert code == 0
        assert f"drabridge migrate apply {path}" in out
        assert "is there already" in (await migrate(*words))[2]
    code, again, _ = await migrate("plan", str(path))
    assert (code, again) == (0, out.partition("\n\n")[0] + "\n")
    code, explained, _ = await migrate("plan", str(path), "--explain", "team-a")
    assert code == 0
    assert "node-a: 2 of 8 devices are for claims (before: as many as now)" in explained
    assert "Deployment/web: 1 pod with 1 device each: rolled out" in explained
    code, _, err = await migrate("plan", str(path), "--explain", "team-b")
    assert code == 2
    assert 'did you mean "team-a"?' in err


@pytest.mark.parametrize("content", ["", "kept"])
async def test_an_empty_file_is_no_plan_that_is_there_already(tmp_path: Path, content: str) -> None:
    """`plan > plan.yaml` makes one before the command runs."""
    path = tmp_path / "plan.yaml"
    path.write_text(content)
    code, _, err = await asked([KUBE_SYSTEM, node(), *deployment("web")], "plan", *CLASS, "--write", str(path))
    assert (code, "is there already" in err) == ((1, True) if content else (0, False))
    assert path.read_text().startswith(content or "apiVersion:")


async def test_every_fault_of_an_edited_plan_is_said_at_once_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(
        "apiVersion: drabridge.migration/v1alpha1\ncluster: x\nresource: nvidia.com/gpu\ndeviceClass: c\ndriver: d\n"
        "steps:\n- name: a\n  way: swich\n- name: a\n  way: lanes\n  lanes: {n: some}\n  colour: red\n"
    )
    code, _, err = await migrate("plan", str(path))
    assert code == 2
    assert len(err.splitlines()) == 4
    for line, word in ((8, "way"), (9, "name"), (11, "lanes"), (12, "colour")):
        assert any(f"plan.yaml:{line}:" in said and word in said for said in err.splitlines()), (word, err)


async def test_without_the_right_to_see_kube_system_the_reason_is_said() -> None:
    async with serving(node(), *deployment("web")) as (api, kubeconfig):
        api.faults.fail(9, 403, verb="get", resource="namespaces")
        code, _, err = await migrate("plan", "--kubeconfig", str(kubeconfig), *CLASS)
    assert code == 1
    assert "allow `get` of namespace kube-system" in err
