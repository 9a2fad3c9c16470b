"""The one-process cluster: manifests go in, a driver and a device plugin on real sockets see what nodes see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from drabridge.sim.cluster import ClusterTimings, SimCluster
from drabridge.wire import dra_v1_pb2
from tests.support.api_client import Client, slice_body
from tests.support.kubelet_peers import Driver, Plugin, device, serving, short_dir

DRIVER = "obs.example.com"

CLASS = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec:
  selectors:
  - cel: {expression: device.driver == "obs.example.com"}
"""
CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: shared}
spec:
  devices:
    requests:
    - name: gpu
      exactly: {deviceClassName: gpu}
"""
TEMPLATE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one-gpu}
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly: {deviceClassName: gpu}
"""


def pod(name: str, claim: str = "shared", **spec: Any) -> Any:
    container = {"name": "c", "image": "busybox", "resources": {"claims": [{"name": "g"}]}}
    claims = [{"name": "g", "resourceClaimName": claim}]
    body = {"containers": [container], "resourceClaims": claims, "terminationGracePeriodSeconds": 1, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}


def limits_pod(name: str, count: int, resource: str = "obs.example.com/gpu", **spec: Any) -> Any:
    container = {"name": "c", "image": "busybox", "resources": {"limits": {resource: count}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container], **spec}}


class Publishing(Driver):
    """A driver that answers with what the claim's allocation says, read back from the API server over HTTP."""

    def __init__(self, cluster: SimCluster, node: str = "node-a") -> None:
        super().__init__(cluster.root / node, DRIVER)
        self._client = Client(cluster.api, token=cluster.api.token(node))
        self._node = node

    async def publish(self, *devices: Any) -> None:
        path = "/apis/resource.k8s.io/v1/resourceslices"
        body = slice_body(f"{self._node}-s", *devices, driver=DRIVER, node=self._node)
        assert (await self._client("POST", path, body)).status == 201

    def granted(self, cluster: SimCluster, claim: str) -> None:
        """Prepare this claim with the devices of its allocation."""
        stored = cluster.get("resourceclaims", claim)
        assert stored is not None
        self.devices = {
            claim: [
                dra_v1_pb2.Device(
                    request_names=[one["request"].split("/")[0]],
                    pool_name=one["pool"],
                    device_name=one["device"],
                    cdi_device_ids=[f"{DRIVER}/dev={one['device']}"],
                )
                for one in stored["status"]["allocation"]["devices"]["results"]
            ]
        }


@asynccontextmanager
async def clustered(**options: Any) -> AsyncIterator[SimCluster]:
    async with short_dir() as root:
        async with SimCluster(Path(root), **({"timings": ClusterTimings.fast()} | options)) as cluster:
            yield cluster


@asynccontextmanager
async def with_driver(*devices: Any, **options: Any) -> AsyncIterator[tuple[SimCluster, Publishing]]:
    """A cluster with a class, a registered driver and its slice."""
    async with clustered(**options) as cluster:
        driver = Publishing(cluster)
        async with serving(driver):
            await cluster.wait(lambda: driver.statuses, what="the driver to be registered")
            await driver.publish(*devices)
            await cluster.apply(CLASS)
            yield cluster, driver


def calls(driver: Driver, method: str) -> int:
    return sum(name == method for name, _ in driver.calls)


async def test_job_with_a_claim_each() -> None:
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train"},
        "spec": {
            "parallelism": 2,
            "completions": 3,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "c", "image": "busybox", "resources": {"claims": [{"name": "g"}]}}],
                    "resourceClaims": [{"name": "g", "resourceClaimTemplateName": "one-gpu"}],
                }
            },
        },
    }
    async with with_driver("gpu-0", "gpu-1") as (cluster, driver):
        await cluster.apply(TEMPLATE)
        await cluster.apply(job)

        def done() -> bool:
            status = (cluster.get("jobs", "train") or {})["status"]
            return any(one["type"] == "Complete" for one in status.get("conditions", []))

        await cluster.wait(done, 15, "the Job to complete")
        assert cluster.get("jobs", "train")["status"]["succeeded"] == 3  # type: ignore[index]
        assert calls(driver, "Prepare") == calls(driver, "Unprepare") == 3
        await cluster.wait(lambda: not cluster.api.objects.peek("resourceclaims"), what="generated claims to go")
        await cluster.delete("jobs", "train")
        await cluster.wait(lambda: not cluster.api.objects.peek("pods"), what="garbage collection of the Job's pods")


async def test_allocated_devices_reach_the_container() -> None:
    async with with_driver("gpu-0") as (cluster, driver):
        driver.gate.clear()
        await cluster.apply(CLAIM)
        await cluster.apply(pod("b1"))
        await cluster.wait(lambda: calls(driver, "Prepare"), what="Prepare")
        driver.granted(cluster, "shared")
        driver.gate.set()
        running = await cluster.wait_pod("b1")
        runtime: Any = cluster.kubelets["node-a"].node.runtime
        assert runtime.running[running["metadata"]["uid"], "c"].cdi_devices == (f"{DRIVER}/dev=gpu-0",)
        (status,) = running["status"]["containerStatuses"]
        assert [one["name"] for one in status["allocatedResourcesStatus"]] == ["claim:g"]


async def test_extended_resource_is_dra_until_a_device_plugin_has_the_name() -> None:
    async with with_driver("gpu-0", "gpu-1") as (cluster, _):
        await cluster.apply(CLASS.replace("spec:", "spec:\n  extendedResourceName: obs.example.com/gpu"))
        await cluster.apply(limits_pod("dra", 1))
        running = await cluster.wait_pod("dra")
        assert "extendedResourceClaimStatus" in running["status"]
        plugin = Plugin(cluster.root / "node-a", "dp.sock", [device("d0"), device("d1")], "obs.example.com/gpu")
        async with serving(plugin):
            await plugin.register()

            def allocatable() -> str:
                node = cluster.get("nodes", "node-a") or {}
                return str(node["status"]["allocatable"].get("obs.example.com/gpu", "0"))

            await cluster.wait(lambda: allocatable() == "2", what="allocatable in the Node's status")
            # Observed accounting: the pod that DRA serves counts against the plugin's two.
            await cluster.apply(limits_pod("two", 2))
            await cluster.wait(lambda: cluster.events("two", "FailedScheduling"), what="a refusal")
            assert "Insufficient obs.example.com/gpu" in cluster.events("two", "FailedScheduling")[0]["message"]
            await cluster.apply(limits_pod("legacy", 1))
            running = await cluster.wait_pod("legacy")
            assert "extendedResourceClaimStatus" not in running["status"]
            assert len([ids for method, ids in plugin.calls if method == "Allocate"]) == 1


async def test_stopped_driver_loses_its_slices_and_a_deleted_node_too() -> None:
    async with with_driver("gpu-0") as (cluster, driver):

        def slices() -> Any:
            return cluster.api.objects.peek("resourceslices")

        assert len(slices()) == 1
        await driver.stop()
        await cluster.wait(lambda: not slices(), what="kubelet's wipe")
        node = cluster.get("nodes", "node-a") or {}
        body = slice_body("owned", "gpu-0", driver=DRIVER)
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": "node-a",
            "uid": node["metadata"]["uid"],
            "controller": True,
        }
        body["metadata"]["ownerReferences"] = [owner]
        cluster.api.objects.create(body)
        await cluster.delete("nodes", "node-a")
        await cluster.wait(lambda: not slices(), what="garbage collection")
        await cluster.wait(lambda: cluster.get("nodes", "node-a"), what="the kubelet to register its Node again")


BINDING = {"bindingConditions": ["d.example.com/ok"], "bindingFailureConditions": ["d.example.com/no"]}


def condition(cluster: SimCluster, kind: str) -> None:
    """What a controller says about the claim's first device, as server-side apply does it."""
    claim = cluster.get("resourceclaims", "shared") or {}
    result = claim["status"]["allocation"]["devices"]["results"][0]
    now = "2026-11-21T00:00:00Z"
    said = {"type": kind, "status": "True", "reason": "Test", "message": "", "lastTransitionTime": now}
    device_status = {key: result[key] for key in ("driver", "pool", "device")} | {"conditions": [said]}
    config = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "shared", "uid": claim["metadata"]["uid"]},
        "status": {"devices": [device_status]},
    }
    cluster.api.objects.apply("resourceclaims", "shared", config, namespace="default", subresource="status")


async def test_binding_conditions_hold_the_pod_until_they_are_true() -> None:
    async with with_driver({"name": "gpu-0", **BINDING}) as (cluster, driver):
        await cluster.apply(CLAIM)
        await cluster.apply(pod("b1"))
        await cluster.wait(lambda: cluster.events("b1", "BindingConditionsPending"), what="PreBind")
        await asyncio.sleep(0.2)
        waiting = cluster.get("pods", "b1") or {}
        assert not waiting["spec"].get("nodeName")
        assert waiting["status"]["nominatedNodeName"] == "node-a"
        assert calls(driver, "Prepare") == 0
        condition(cluster, "d.example.com/ok")
        await cluster.wait_pod("b1")


async def test_denied_device_is_given_back_and_another_is_taken_when_it_is_tainted() -> None:
    async with with_driver({"name": "gpu-0", **BINDING}, {"name": "gpu-1"}) as (cluster, _):
        await cluster.apply(CLAIM)
        await cluster.apply(pod("b1"))
        await cluster.wait(lambda: cluster.events("b1", "BindingConditionsPending"), what="PreBind")
        (name,) = [one["metadata"]["name"] for one in cluster.api.objects.peek("resourceslices")]
        taint = {"key": "d.example.com/held", "effect": "NoSchedule"}
        cluster.api.objects.modify("resourceslices", name, lambda one: one["spec"]["devices"][0].update(taints=[taint]))
        condition(cluster, "d.example.com/no")
        await cluster.wait_pod("b1")
        claim = cluster.get("resourceclaims", "shared") or {}
        assert [one["device"] for one in claim["status"]["allocation"]["devices"]["results"]] == ["gpu-1"]
        assert "devices" not in claim["status"]
        failed = 'device binding failed: claim=shared, reason=Test, message=""'
        (told,) = cluster.events("b1", "FailedScheduling")
        assert told["message"] == f'running PreBind plugin "DynamicResources": {failed}'


async def test_silence_about_a_condition_times_out() -> None:
    fast = ClusterTimings.fast()
    timings = replace(fast, scheduler=replace(fast.scheduler, binding_timeout_seconds=0.2))
    async with with_driver({"name": "gpu-0", **BINDING}, timings=timings) as (cluster, driver):
        await cluster.apply(CLAIM)
        await cluster.apply(pod("b1"))
        await cluster.wait(lambda: cluster.events("b1", "FailedScheduling"), what="the timeout")
        told = cluster.events("b1", "FailedScheduling")[0]["message"]
        assert told == 'running PreBind plugin "DynamicResources": claim binding timed out'
        assert calls(driver, "Prepare") == 0


async def test_laggy_node_cache_sends_a_pod_where_nothing_is_left() -> None:
    fast = ClusterTimings.fast()
    timings = replace(fast, scheduler=replace(fast.scheduler, node_cache_lag_seconds=0.6))
    async with clustered(timings=timings) as cluster:
        plugin = Plugin(cluster.root / "node-a", "dp.sock", [device("d0"), device("d1")], "y.example.com/gpu")
        async with serving(plugin):
            await plugin.register()
            await cluster.apply(limits_pod("waits", 1, "y.example.com/gpu"))
            await cluster.wait_pod("waits")
            await plugin.send([device("d0"), device("d1", "Unhealthy")])
            kubelet = cluster.kubelets["node-a"]
            await kubelet.wait_for(lambda: kubelet.published_node_status["allocatable"]["y.example.com/gpu"] == 1)
            await cluster.apply(limits_pod("late", 1, "y.example.com/gpu"))
            rejected = await cluster.wait_pod("late", "Failed")
            assert rejected["status"]["reason"] == "UnexpectedAdmissionError"
            assert "Available: 0" in rejected["status"]["message"]


async def test_two_nodes_and_their_drivers() -> None:
    async with clustered(nodes=("node-a", "node-b")) as cluster:
        drivers = [Publishing(cluster, node) for node in ("node-a", "node-b")]
        async with serving(*drivers):
            await cluster.wait(lambda: all(driver.statuses for driver in drivers), what="registration")
            for driver in drivers:
                await driver.publish("gpu-0")
            await cluster.apply(CLASS)
            await cluster.apply(TEMPLATE)
            for name in ("p", "q"):
                body = pod(name)
                body["spec"]["resourceClaims"] = [{"name": "g", "resourceClaimTemplateName": "one-gpu"}]
                await cluster.apply(body)
                await cluster.wait_pod(name)
            assert [calls(driver, "Prepare") for driver in drivers] == [1, 1]


async def test_kubelet_that_is_down_gets_its_pods_later() -> None:
    async with with_driver("gpu-0") as (cluster, _):
        kubelet = cluster.kubelets["node-a"]
        await kubelet.stop()
        await cluster.apply(
            {**pod("b1"), "spec": {**pod("b1")["spec"], "resourceClaims": [], "containers": [{"name": "c"}]}}
        )
        await asyncio.sleep(0.1)
        assert (cluster.get("pods", "b1") or {})["status"]["phase"] == "Pending"
        await kubelet.start()
        await cluster.wait_pod("b1")
