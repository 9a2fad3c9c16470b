"""Kinds of pods: init containers and sidecars, roll-outs, unmodified pods that the scheduler serves by claims."""

from __future__ import annotations

from typing import Any

import pytest

from drabridge.kube.api import Kind
from tests.cluster import workloads as w
from tests.cluster.bed import CLAIMS, MANAGER, NAMESPACE, PODS, RESOURCE, TEMPLATES, Bed, Json, failed, wait_for
from tests.cluster.real_bed import DEPLOYMENTS, STATEFUL_SETS
from tests.cluster.steps import claim_pod, deleted, legacy_pod, offered, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

ONE: Json = {"limits": {RESOURCE: "1"}}


async def create(bed: Bed, name: str, spec: Json) -> None:
    await bed.api.create(PODS, w.pod(name, spec), namespace=NAMESPACE)


def of_init(bed: Bed, resources: Json, **more: Any) -> Json:
    """An init container that ends at once; the simulated runtime is told so by ``runSeconds``."""
    told: Json = {} if bed.runs_programs else {"runSeconds": 0.05}
    return w.container(bed.image, resources, name="init", seconds=0, **told, **more)


async def test_an_init_container_leaves_its_device_to_the_container(bed: Bed) -> None:
    """Kubelet gives the device of an init container that has ended to containers (devicemanager, devicesToReuse)."""
    spec = w.spec_of(bed.node, w.container(bed.image, ONE), initContainers=[of_init(bed, ONE)])
    await create(bed, "l1", spec)
    await running(bed, "l1")
    found = await bed.devices("l1")
    assert len(found) == 2
    assert len(set(found)) == 1
    await legacy_pod(bed, "l2")
    await running(bed, "l1", "l2")


async def test_a_sidecar_keeps_a_device_of_its_own(bed: Bed) -> None:
    sidecar = w.container(bed.image, ONE, name="sidecar", restartPolicy="Always")
    await create(bed, "l1", w.spec_of(bed.node, w.container(bed.image, ONE), initContainers=[sidecar]))
    await running(bed, "l1")
    assert len(set(await bed.devices("l1"))) == 2
    await deleted(bed, "l1")
    await legacy_pod(bed, "l2")
    await legacy_pod(bed, "l3")
    await running(bed, "l2", "l3")


async def test_an_init_container_and_a_sidecar_use_the_pods_claim(bed: Bed) -> None:
    """The sidecar and the main container run side by side, so they share the lock."""
    await bed.api.create(TEMPLATES, w.template(f"{w.SHARED}-both"), namespace=NAMESPACE)
    resources = {"claims": [{"name": "device"}]}
    sidecar = w.container(bed.image, resources, name="sidecar", mode="-s", restartPolicy="Always")
    spec = w.spec_of(
        bed.node,
        w.container(bed.image, resources, mode="-s"),
        initContainers=[of_init(bed, resources), sidecar],
        resourceClaims=[{"name": "device", "resourceClaimTemplateName": f"{w.SHARED}-both"}],
    )
    await create(bed, f"{w.SHARED}-pod", spec)
    await running(bed, f"{w.SHARED}-pod")
    found = await bed.devices(f"{w.SHARED}-pod")
    assert len(found) == 3
    assert len(set(found)) == 1


async def test_one_pod_has_devices_of_both_lanes(bed: Bed) -> None:
    await bed.api.create(CLAIMS, w.claim("half"), namespace=NAMESPACE)
    claims = [{"name": "device", "resourceClaimName": "half"}]
    both = {**ONE, "claims": [{"name": "device"}]}
    await create(bed, "both", w.spec_of(bed.node, w.container(bed.image, both), resourceClaims=claims))
    await running(bed, "both")
    assert len(set(await bed.devices("both"))) == 2


def owner(kind: str, name: str, spec: Json, replicas: int, **more: Any) -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": w.meta(name),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"of": name}},
            "template": {"metadata": {"labels": {"of": name}}, "spec": {**spec, "restartPolicy": "Always"}},
            **more,
        },
    }


async def rolled_out(bed: Bed, kind: Kind, name: str, replicas: int) -> None:
    async def done() -> bool:
        found = await bed.api.get(kind, name, namespace=NAMESPACE)
        status = found.get("status", {})
        if status.get("observedGeneration") != found["metadata"]["generation"]:
            return False
        numbers = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas")]
        return numbers == [replicas] * 3

    await wait_for(bed, f"the roll-out of {name}", done)


@pytest.mark.parametrize("lane", ["limits", "claims"])
@pytest.mark.parametrize("kind", ["StatefulSet", "Deployment"])
async def test_a_roll_out_gives_each_new_pod_a_device(bed: Bed, kind: str, lane: str) -> None:
    """Two devices and two replicas. A StatefulSet ends each pod before its successor begins; the Deployment as well,
    for want of a third device.
    """
    if not bed.runs_programs:
        pytest.skip("the simulated cluster has no controllers for these")
    name = f"{kind.lower()}-{lane}"
    if lane == "claims":
        await bed.api.create(TEMPLATES, w.template(name), namespace=NAMESPACE)
        spec = w.with_claim(bed.image, bed.node, {"resourceClaimTemplateName": name})
    else:
        spec = w.pod_spec(bed.image, bed.node, ONE)
    kinds = STATEFUL_SETS if kind == "StatefulSet" else DEPLOYMENTS
    more: Json = {"serviceName": "none"} if kind == "StatefulSet" else {}
    if kind == "Deployment":
        more = {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}
    made = owner(kind, name, spec, 2, **more)
    await bed.api.create(kinds, made, namespace=NAMESPACE)
    await rolled_out(bed, kinds, name, 2)
    before = {one["metadata"]["uid"] for one in await bed.workload_pods()}
    made["spec"]["template"]["metadata"]["annotations"] = {"version": "2"}
    await bed.api.apply(kinds, made, manager=MANAGER, namespace=NAMESPACE)
    await rolled_out(bed, kinds, name, 2)
    pods = [one for one in await bed.workload_pods() if one["status"]["phase"] == "Running"]
    if before & {one["metadata"]["uid"] for one in pods}:
        raise await failed(bed, "pods of before the roll-out are still there")
    refused = [one["metadata"]["name"] for one in await bed.workload_pods() if one["status"]["phase"] == "Failed"]
    assert refused == []


async def test_every_kind_of_pod_frees_its_devices(bed: Bed) -> None:
    for name in ("l1", "l2"):
        await legacy_pod(bed, name)
    for name in ("c1", "c2"):
        await claim_pod(bed, name)
    await running(bed, "l1", "l2", "c1", "c2")
    await deleted(bed, "l1", "l2", "c1", "c2")
    await offered(bed, legacy=2, dra=2)
