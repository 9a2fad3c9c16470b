"""Each blocker and trap is found in the cluster that has it, and not in the same cluster without it."""

from __future__ import annotations

from typing import Any

import pytest

from drabridge.migrate.report.codes import TEXTS, Code
from tests.migrate.cluster_objects import (
    CLASS,
    GPU,
    claim,
    container,
    custom,
    device_class,
    dra_pod,
    node,
    obstacles_of,
    pod,
    pod_spec,
    quota,
    resource_slice,
    workload,
)

Json = dict[str, Any]
Case = tuple[Code, str, list[Json], list[Json]]


def owned(kind: str, spec: Json | None = None, **more: Any) -> list[Json]:
    """A workload with one pod; a Deployment's ReplicaSet between them."""
    top = workload(kind, spec=spec, **more)
    if kind == "Deployment":
        middle = workload("ReplicaSet", "web-5d", owner=top, spec=spec)
        return [top, middle, pod(owner=middle, spec=spec)]
    if kind == "CronJob":
        middle = workload("Job", "web-29", owner=top, spec=spec)
        return [top, middle, pod(owner=middle, spec=spec)]
    return [top, pod(owner=top, spec=spec)]


def of_custom(api_version: str, kind: str) -> list[Json]:
    return [pod(owner=custom(api_version, kind))]


PLAIN = owned("DaemonSet")
MIRROR = pod(annotations={"kubernetes.io/config.mirror": "x"}, owner=custom("v1", "Node", "node-a"))
AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "nvidia.com/gpu.memory", "operator": "Exists"}]}]
        }
    }
}
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "t", "namespace": "team-a", "uid": "t"},
    "spec": {"spec": {}},
}
WITH_TEMPLATE = pod_spec(0, resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}])
BY_CLASS = f"{CLASS}.deviceclass.resource.k8s.io/devices"
NAMED = device_class(extended=GPU)


def env(value: str, count: int = 1) -> list[Json]:
    return [
        pod(spec={"containers": [container(count=count, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}])]})
    ]


# code, object, a cluster that has it, the same without it
CASES: list[Case] = [
    (Code.STATIC_POD, "Pod/one", [MIRROR], PLAIN),
    (Code.FIXED_NODE_NAME, "DaemonSet/web", owned("DaemonSet", pod_spec(nodeName="node-a")), PLAIN),
    (Code.MORE_THAN_32_DEVICES, "Pod/one", [pod(spec=pod_spec(33))], [pod(spec=pod_spec(32))]),
    (Code.OPERATOR_COUNTS_LIMITS, "RayCluster/big", of_custom("ray.io/v1", "RayCluster"), PLAIN),
    (Code.CUSTOM_OWNER, "JobSet/big", of_custom("jobset.x-k8s.io/v1alpha2", "JobSet"), PLAIN),
    (
        Code.CUSTOM_OWNER,
        "Rollout/big",
        [
            pod(owner=workload("ReplicaSet", owner=custom("argoproj.io/v1", "Rollout"))),
            workload("ReplicaSet", owner=custom("argoproj.io/v1", "Rollout")),
        ],
        PLAIN,
    ),
    (
        Code.QUOTA_COUNTS_LIMITS_ONLY,
        "ResourceQuota/q",
        [quota(**{f"requests.{GPU}": "4"})],
        [quota(**{f"requests.{GPU}": "4"}), NAMED],
    ),
    (
        Code.QUOTA_COUNTS_LIMITS_ONLY,
        "ResourceQuota/q",
        [quota(**{f"requests.{GPU}": "4"}), device_class()],
        [quota(**{f"requests.{GPU}": "4", BY_CLASS: "4"}), device_class()],
    ),
    (
        Code.QUOTA_COUNTS_CLAIMS_ONLY,
        "ResourceQuota/q",
        [quota(**{BY_CLASS: "4"}), device_class(), node()],
        [quota(**{f"requests.{GPU}": "4", BY_CLASS: "4"}), device_class(), node()],
    ),
    (
        Code.CLAIM_TEMPLATE_MISSING,
        "DaemonSet/web",
        owned("DaemonSet", WITH_TEMPLATE),
        [*owned("DaemonSet", WITH_TEMPLATE), TEMPLATE],
    ),
    (
        Code.SEVERAL_CLASSES_ONE_NAME,
        "DeviceClass/gpu.nvidia.com",
        [NAMED, device_class("z", GPU)],
        [NAMED, device_class("z", "other.com/z")],
    ),
    (
        Code.AUTOSCALER_LABEL,
        "Node/node-a",
        [node(labels={"cloud.google.com/gke-accelerator": "h100"})],
        [node()],
    ),
    (Code.PRE_START, "DeviceClass/gpu.nvidia.com", [NAMED, node(count=0)], [device_class(), node(count=0)]),
    (Code.NAME_SET_TOO_EARLY, "DeviceClass/gpu.nvidia.com", [NAMED, node(count=1)], [NAMED, node(count=0)]),
    (
        Code.TIME_SLICING,
        "Node/node-a",
        [node(labels={"nvidia.com/gpu.replicas": "4"})],
        [node(labels={"nvidia.com/gpu.replicas": "1"})],
    ),
    (
        Code.TIME_SLICING,
        "Node/node-a",
        [node(labels={"nvidia.com/gpu.product": "H100-SHARED"})],
        [node(labels={"nvidia.com/gpu.product": "H100"})],
    ),
    (Code.EXTENDED_RESOURCE_TOLERATION, "Node/node-a", [node(taints=[GPU])], [node(taints=["other"])]),
    (
        Code.SURGE_NEEDS_DEVICE,
        "Deployment/web",
        owned("Deployment"),
        owned("Deployment", strategy={"type": "Recreate"}),
    ),
    (
        Code.SURGE_NEEDS_DEVICE,
        "Deployment/web",
        [*owned("Deployment"), device_class(), resource_slice(count=1), claim()],
        [*owned("Deployment"), device_class(), resource_slice(count=2), claim()],
    ),
    (Code.STATEFUL_SET_ROLLS, "StatefulSet/web", owned("StatefulSet"), PLAIN),
    (Code.JOB_IMMUTABLE, "Job/web", owned("Job"), owned("CronJob")),
    (Code.BARE_POD, "Pod/one", [pod()], PLAIN),
    (Code.BARE_POD, "Pod/one", [pod()], [MIRROR]),
    (Code.KUEUE, "Pod/one", [pod(labels={"kueue.x-k8s.io/queue-name": "q"})], [pod(labels={"queue": "q"})]),
    (
        Code.OTHER_SCHEDULER,
        "Pod/one",
        [pod(spec=pod_spec(schedulerName="volcano"))],
        [pod(spec=pod_spec(schedulerName="default-scheduler"))],
    ),
    (
        Code.NO_PREEMPTION,
        "Pod/one",
        [pod(spec=pod_spec(priorityClassName="high"))],
        [pod(spec=pod_spec(priorityClassName="high", preemptionPolicy="Never"))],
    ),
    (
        Code.INIT_CONTAINER,
        "Pod/one",
        [pod(spec=pod_spec(initContainers=[container("setup")]))],
        [pod(spec=pod_spec(initContainers=[container("setup", 0)]))],
    ),
    (
        Code.SIDECAR,
        "Pod/one",
        [pod(spec=pod_spec(initContainers=[container("side", restartPolicy="Always")]))],
        [pod(spec=pod_spec(initContainers=[container("side")]))],
    ),
    (
        Code.SEVERAL_CONTAINERS,
        "Pod/one",
        [pod(spec={"containers": [container("a"), container("b")]})],
        [pod(spec={"containers": [container("a"), container("b", 0)]})],
    ),
    (Code.EPHEMERAL_CONTAINER, "Pod/one", [pod(spec=pod_spec(ephemeralContainers=[{"name": "debugger"}]))], [pod()]),
    (
        Code.RUNTIME_CLASS,
        "Pod/one",
        [pod(spec=pod_spec(runtimeClassName="nvidia"))],
        [pod(spec=pod_spec(runtimeClassName="kata"))],
    ),
    (Code.VISIBLE_DEVICES, "Pod/one", env("all"), [pod()]),
    (Code.VISIBLE_DEVICES, "Pod/one", env("all", 0), env("void", 0)),
    (
        Code.NODE_LABEL_SELECTOR,
        "Pod/one",
        [pod(spec=pod_spec(nodeSelector={"nvidia.com/gpu.product": "H100"}))],
        [pod(spec=pod_spec(nodeSelector={"disk": "ssd"}))],
    ),
    (Code.NODE_LABEL_SELECTOR, "Pod/one", [pod(spec=pod_spec(affinity=AFFINITY))], [pod()]),
]
ELSEWHERE = {Code.DRA_NOT_SERVED, Code.PODS_NOT_READ, Code.NOT_READ}  # in test_report_command.py


@pytest.mark.parametrize(
    ("code", "where", "having", "without"), CASES, ids=[f"{one[0]}-{n}" for n, one in enumerate(CASES)]
)
async def test_it_is_found_where_it_is_and_nowhere_else(
    code: Code, where: str, having: list[Json], without: list[Json]
) -> None:
    found = [one for one in await obstacles_of(*having) if one.code is code]
    assert [one.object for one in found] == [where]
    assert (found[0].why, found[0].action) == (TEXTS[code].why, TEXTS[code].action)
    assert code not in {one.code for one in await obstacles_of(*without)}


def test_every_code_has_a_case_and_words() -> None:
    assert {one[0] for one in CASES} | ELSEWHERE == set(Code) == set(TEXTS)


async def test_pods_that_dra_serves_already_are_not_to_be_converted() -> None:
    spec = pod_spec(33, runtimeClassName="nvidia")
    assert await obstacles_of(dra_pod(spec=spec)) == []
    ended = pod(spec=spec, status={"phase": "Succeeded"})
    assert await obstacles_of(ended) == []


async def test_a_workload_without_pods_is_judged_by_its_template() -> None:
    cron = workload("CronJob", spec=pod_spec(33))
    found = await obstacles_of(cron)
    assert [(one.code, one.object) for one in found] == [(Code.MORE_THAN_32_DEVICES, "CronJob/web")]


async def test_many_pods_of_one_workload_are_one_row() -> None:
    top = workload("DaemonSet", spec=pod_spec(runtimeClassName="nvidia"))
    pods = [pod(f"p{index}", owner=top, spec=pod_spec(runtimeClassName="nvidia")) for index in range(5)]
    found = await obstacles_of(top, *pods)
    assert [(one.code, one.pods) for one in found] == [(Code.RUNTIME_CLASS, 5)]
