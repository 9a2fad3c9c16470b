"""Run an agent process beside a simulated cluster: configuration, pods, claims, and what both APIs offer."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from drabridge.sim.cluster import RUN_SECONDS_ANNOTATION, ClusterTimings, SimCluster
from drabridge.sim.kubelet.runtime import LockingRuntime
from drabridge.sim.kubelet.timings import Timings
from drabridge.sim.releases import DEFAULT
from tests.support.agent_process import COMMAND, DRIVER, RESOURCE, AgentProcess, lists_read
from tests.support.waiting import short_directory, until

BOTH_LANES = f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
safety: {{minHoldSeconds: 0.5, unconfirmedSeconds: 2, absentSeconds: 0.3, settleSeconds: 1, quiesceSeconds: 0.5}}
resources:
- name: {RESOURCE}
  match: [{{subsystem: mem, sysname: [zero, "null", full, random]}}]
  id: ["{{sysname}}"]
  lanes: {{legacy: 2, dra: 2}}
"""


CLASS = f"""\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: mem}}
spec: {{selectors: [{{cel: {{expression: "device.driver == '{DRIVER}'"}}}}]}}
"""


def claim_pod(name: str, count: int = 1) -> str:
    """A claim for so many devices, and a pod that uses it."""
    return claim_and_pod(name, {"requests": [{"name": "r", "exactly": {"deviceClassName": "mem", "count": count}}]})


def claim_and_pod(name: str, devices: Mapping[str, Any]) -> str:
    """A claim with this ``spec.devices``, and a pod that uses it."""
    return f"""\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: {name}, namespace: default}}
spec: {{devices: {json.dumps(devices)}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default}}
spec:
  resourceClaims: [{{name: c, resourceClaimName: {name}}}]
  containers: [{{name: main, image: x, resources: {{claims: [{{name: c}}]}}}}]
  terminationGracePeriodSeconds: 1
"""


def limits_pod(name: str, count: int = 1) -> str:
    """A pod with so many devices in its limits."""
    return f"""\
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default}}
spec:
  containers: [{{name: main, image: x, resources: {{limits: {{"{RESOURCE}": {count}}}}}}}]
  terminationGracePeriodSeconds: 1
"""


def short_pod(name: str, seconds: float) -> str:
    """A pod that ends by itself after so long."""
    pod = limits_pod(name).replace(
        f"metadata: {{name: {name}, namespace: default",
        f"metadata: {{name: {name}, namespace: default, annotations: {{{RUN_SECONDS_ANNOTATION}: '{seconds}'}}",
    )
    return pod.replace("spec:\n  containers", "spec:\n  restartPolicy: Never\n  containers")


def phase(cluster: SimCluster, name: str) -> str:
    pod = cluster.get("pods", name)
    return str(pod["status"].get("phase")) if pod else ""


@contextlib.asynccontextmanager
async def not_started(
    config: str = BOTH_LANES,
    driver: str = DRIVER,
    *,
    command: Callable[[Path], tuple[str, ...]] = lambda _: COMMAND,
    token: Callable[[SimCluster], str | None] = lambda _: None,
    **cluster: Any,
) -> AsyncIterator[tuple[AgentProcess, SimCluster]]:
    """A cluster with a DeviceClass, and an agent that the test starts.

    ``command``: what Python runs as the agent, by the node's folder; ``token``: the agent's at the API server;
    ``cluster``: options of the simulated cluster.
    """
    with short_directory() as root:
        async with SimCluster(root, **{"timings": ClusterTimings.fast(), **cluster}) as made:
            kubeconfig = made.api.kubeconfig(root / "kubeconfig", token=token(made))
            node = root / "node-a"
            agent = AgentProcess(node, config, driver, ("--kubeconfig", str(kubeconfig)), command(node))
            await made.apply(CLASS)
            try:
                yield agent, made
            finally:
                if agent.process is not None:
                    with contextlib.suppress(ProcessLookupError):
                        await agent.stop(signal.SIGKILL)


@contextlib.asynccontextmanager
async def bridge(
    config: str = BOTH_LANES,
    kubelet_version: str = "",
    release: str = DEFAULT,
    driver: str = DRIVER,
    gates: Mapping[str, bool] | None = None,
    command: Callable[[Path], tuple[str, ...]] = lambda _: COMMAND,
    **kubelet: Any,
) -> AsyncIterator[tuple[AgentProcess, SimCluster, LockingRuntime]]:
    """Cluster and agent, ready. Every container takes an exclusive lock on its devices for its life.

    ``release``: of the control plane, with changes by ``gates``, and of kubelet without a ``kubelet_version``.
    ``kubelet``: changes to its fast timings.
    """
    with short_directory() as locks:
        runtime = LockingRuntime(locks)
        options: dict[str, Any] = {
            "timings": replace(ClusterTimings.fast(), kubelet=Timings.fast(**kubelet)),
            "runtime": lambda _: runtime,
            "kubelet_version": kubelet_version,
            "release": release,
            "gates": gates,
        }
        async with not_started(config, driver, command=command, **options) as (agent, cluster):
            await agent.start()
            await agent.ready()
            await lists_read(cluster.kubelets["node-a"])
            yield agent, cluster, runtime
            assert runtime.conflicts == [], runtime.conflicts


def allocate(cluster: SimCluster, claim: str, devices: list[str]) -> None:
    """Give a claim devices as the scheduler writes it, without binding conditions; for the pod of its name."""
    pod = cluster.get("pods", claim)
    assert pod is not None
    results = [{"request": "r", "driver": DRIVER, "pool": "node-a", "device": device} for device in devices]
    reserved = [{"resource": "pods", "name": claim, "uid": pod["metadata"]["uid"]}]

    def write(obj: dict[str, Any]) -> None:
        obj["status"] = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}

    cluster.api.objects.modify("resourceclaims", claim, write, namespace="default", subresource="status")


async def end_claim(cluster: SimCluster, name: str) -> None:
    """Delete a pod, and its claim of the same name."""
    await cluster.delete("pods", name)
    await cluster.delete("resourceclaims", name)


def devices_in_slices(cluster: SimCluster) -> set[str]:
    """Names of devices that a scheduler could take: published and not tainted."""
    return {
        device["name"]
        for one in cluster.api.objects.peek("resourceslices")
        for device in one["spec"].get("devices") or ()
        if not device.get("taints")
    }


def pools(cluster: SimCluster) -> set[str]:
    """Names of the pools that have slices."""
    return {one["spec"]["pool"]["name"] for one in cluster.api.objects.peek("resourceslices")}


def healthy(cluster: SimCluster) -> set[str]:
    """Ids that kubelet could give to a pod, held or not."""
    view = cluster.kubelets["node-a"].resources.get(RESOURCE)
    return set(view.healthy) if view else set()


def allocatable(cluster: SimCluster) -> str:
    """What the scheduler knows of the number of devices for pods."""
    return str((cluster.get("nodes", "node-a") or {})["status"].get("allocatable", {}).get(RESOURCE, ""))


async def set_lanes(agent: AgentProcess, **lanes: Any) -> dict[str, Any]:
    """Ask the agent for lanes; returns its answer, which must be a yes."""
    code, body = await agent.ask("/lanes", json.dumps({"resource": RESOURCE, **lanes}).encode())
    answer: dict[str, Any] = json.loads(body)
    assert code == 200, answer
    return answer


async def all_free(agent: AgentProcess) -> bool:
    return {row["owner"] for row in (await agent.status())["devices"]} == {"none"}


async def held_by_claim(agent: AgentProcess, cluster: SimCluster) -> str:
    """The device of a running pod with a claim, ``default/c``."""
    await until(lambda: len(devices_in_slices(cluster)) == 2, 10, agent.text)
    await cluster.apply(claim_pod("c"))
    await cluster.wait_pod("c")
    (name,) = [row["name"] for row in (await agent.status())["devices"] if row["owner"] == "dra-prepared"]
    return str(name)


MONITOR = """\
apiVersion: v1
kind: Namespace
metadata: {name: monitoring, labels: {resource.kubernetes.io/admin-access: "true"}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: all, namespace: monitoring}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: mem, allocationMode: All, adminAccess: true}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: monitor, namespace: monitoring}
spec:
  resourceClaims: [{name: c, resourceClaimName: all}]
  containers: [{name: main, image: x, resources: {claims: [{name: c}]}}]
"""
