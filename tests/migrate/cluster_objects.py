"""Objects of a cluster that the report reads, and a simulated API server that has them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from drabridge.cli import main
from drabridge.kube.client import KubernetesCluster
from drabridge.migrate.report.build import build
from drabridge.migrate.report.collect import collect
from drabridge.migrate.report.document import Obstacle, Report
from drabridge.migrate.switch import marks
from drabridge.sim.apiserver.kinds import BY_KIND
from drabridge.sim.apiserver.server import SimApiServer
from tests.support.waiting import short_directory

Json = dict[str, Any]

GPU = "nvidia.com/gpu"
CLASS = "gpu.nvidia.com"


def meta(name: str, namespace: str = "team-a", owner: Json | None = None, **fields: Any) -> Json:
    """Metadata; ``owner`` is the object that controls this one."""
    found: Json = {"name": name, "uid": f"uid-{namespace}-{name}", **fields}
    if namespace:
        found["namespace"] = namespace
    if owner is not None:
        reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"]}
        found["ownerReferences"] = [{**reference, "uid": owner["metadata"]["uid"], "controller": True}]
    return found


def container(name: str = "main", count: int = 1, resource: str = GPU, **fields: Any) -> Json:
    """A container with limits; none where ``count`` is 0."""
    limits = {resource: str(count)} if count else {}
    return {"name": name, "image": "x", "resources": {"limits": limits}, **fields}


def pod_spec(count: int = 1, **fields: Any) -> Json:
    return {"containers": [container(count=count)], **fields}


def pod(
    name: str = "one",
    *,
    owner: Json | None = None,
    namespace: str = "team-a",
    node: str | None = "node-a",
    spec: Json | None = None,
    status: Json | None = None,
    **metadata: Any,
) -> Json:
    """A pod on ``node``; pending where that is None."""
    body = {**(spec or pod_spec()), **({"nodeName": node} if node else {})}
    phase = {"phase": "Running" if node else "Pending"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta(name, namespace, owner, **metadata),
        "spec": body,
        "status": {**phase, **(status or {})},
    }


def workload(kind: str, name: str = "web", *, owner: Json | None = None, spec: Json | None = None, **more: Any) -> Json:
    """A controller with a pod template; ``more`` goes into its spec."""
    group = "batch/v1" if kind in ("Job", "CronJob") else "apps/v1"
    template: Json = {"template": {"metadata": more.pop("template_metadata", {}), "spec": spec or pod_spec()}}
    body = {"jobTemplate": {"spec": template}} if kind == "CronJob" else template
    body = {**({"replicas": 1} if kind in ("Deployment", "ReplicaSet", "StatefulSet") else {}), **body, **more}
    return {"apiVersion": group, "kind": kind, "metadata": meta(name, owner=owner), "spec": body, "status": {}}


def custom(api_version: str, kind: str, name: str = "big") -> Json:
    """A custom resource, only to be an owner."""
    return {"apiVersion": api_version, "kind": kind, "metadata": meta(name)}


def node(
    name: str = "node-a", count: int = 8, *, taints: Iterable[str] = (), labels: dict[str, str] | None = None
) -> Json:
    amounts = {"cpu": "4", GPU: str(count)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": meta(name, "", labels=labels or {}),
        "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]},
        "status": {"capacity": {**amounts, GPU: "8"}, "allocatable": amounts},
    }


def device_class(name: str = CLASS, extended: str = "", driver: str = CLASS) -> Json:
    spec: Json = {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]}
    if extended:
        spec["extendedResourceName"] = extended
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": meta(name, ""), "spec": spec}


def resource_slice(
    name: str = "s", count: int = 2, *, driver: str = CLASS, node: str = "node-a", generation: int = 1
) -> Json:
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    devices = [{"name": f"d{index}"} for index in range(count)]
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta(name, ""), "spec": spec}


def claim(name: str = "c", count: int = 1, *, allocated: bool = True, device_class: str = CLASS) -> Json:
    exactly = {"deviceClassName": device_class, "count": count, "allocationMode": "ExactCount"}
    results = [{"request": "gpu", "driver": CLASS, "pool": "node-a", "device": f"d{index}"} for index in range(count)]
    status = {"allocation": {"devices": {"results": results}}} if allocated else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": meta(name),
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": status,
    }


def claim_pod(name: str = "claimed", claim: str = "c", **fields: Any) -> Json:
    """A pod that names a claim."""
    spec = pod_spec(0, resourceClaims=[{"name": "gpu", "resourceClaimName": claim}])
    return pod(name, spec=spec, **fields)


def dra_pod(name: str = "served", **fields: Any) -> Json:
    """A pod with limits that DRA serves."""
    mapping = [{"containerName": "main", "resourceName": GPU, "requestName": "container-0-request-0"}]
    return pod(name, status={"extendedResourceClaimStatus": {"requestMappings": mapping}}, **fields)


def namespace(name: str = "team-a", *, switched: bool = True, notes: dict[str, str] | None = None) -> Json:
    """A Namespace, switched to claims. ``notes``: the percent and the selector of the switch."""
    labels = {marks.LABEL: marks.CLAIMS} if switched else {}
    keys = {"percent": marks.PERCENT, "selector": marks.SELECTOR}
    annotations = {keys[key]: value for key, value in (notes or {}).items()}
    metadata = meta(name, "", labels=labels, annotations=annotations)
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata, "spec": {}, "status": {}}


def quota(name: str = "q", **hard: str) -> Json:
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta(name), "spec": {"hard": hard}}


@contextlib.asynccontextmanager
async def serving(*objects: Json, **options: Any) -> AsyncIterator[tuple[SimApiServer, Path]]:
    """A simulated API server with these ``options`` that has these objects as they are; with its kubeconfig."""
    api = SimApiServer(**options)
    for obj in objects:
        stored = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}
        api.objects.store.put(BY_KIND[obj["kind"]], stored)
    with short_directory() as root:
        async with api:
            yield api, api.kubeconfig(root / "kubeconfig")


async def report_of(*objects: Json, classes: dict[str, str] | None = None) -> Report:
    """What is reported of a cluster that has these objects, read over HTTP."""
    async with serving(*objects) as (_, kubeconfig):
        cluster = KubernetesCluster.from_kubeconfig(kubeconfig)
        try:
            return build(await collect(cluster, lambda kind, count: None), classes or {})
        finally:
            cluster.close()


async def obstacles_of(*objects: Json) -> list[Obstacle]:
    return (await report_of(*objects)).obstacles


async def command(*words: str) -> tuple[int, str, str]:
    """What :func:`migrate` returns of ``report``."""
    return await migrate("report", *words)


async def asked(objects: Iterable[Json], *words: str, **options: Any) -> tuple[int, str, str]:
    """What :func:`migrate` returns of a command on a cluster that has these objects."""
    async with serving(*objects, **options) as (_, kubeconfig):
        return await migrate(*words, "--kubeconfig", str(kubeconfig))


async def migrate(*words: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of ``drabridge migrate``, in a thread."""
    out, err = io.StringIO(), io.StringIO()

    def call() -> int:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                return main(["migrate", *words])
            except SystemExit as ended:  # argparse
                return int(ended.code or 0)

    return await asyncio.to_thread(call), out.getvalue(), err.getvalue()


def parsed(out: str) -> Json:
    found: Json = json.loads(out)
    return found
