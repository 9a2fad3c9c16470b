"""Let pods use devices on a node, and keep what the API server and kubelet show meanwhile.

The same steps on a real and on a simulated node. Everything that the steps create is gone afterwards.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.json_format import MessageToDict

from deviceplugin.wire import v1beta1_pb2 as pb
from drabridge.sim.kubelet.go_grpc import unix_channel
from podresources.wire import v1_pb2 as podresources
from podresources.wire import v1_pb2_grpc as podresources_rpc
from tests.sim.record.api import Api, Json
from tests.sim.record.exchanges import CLAIMS, CLASSES, DOCUMENTS, SLICES, claim_of, record_exchanges
from tests.sim.record.peers import DRIVER, GPUS, RecordedDriver, RecordedPlugin
from tests.support.kubelet_peers import GPU
from tests.support.waiting import until

PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
EXTENDED = f"{DRIVER}/gpu"
PARAMETERS = {"opaque": {"driver": DRIVER, "parameters": {"apiVersion": "x/v1", "kind": "K"}}, "requests": ["gpu"]}
NEW_ENOUGH = (
    f'device.attributes["{DRIVER}"].cudaComputeCapability.isGreaterThan(semver("7.0.0")) && '
    f'device.capacity["{DRIVER}"].memory == quantity("64Gi")'
)


@dataclass(slots=True)
class Place:
    """A cluster of one node, real or simulated."""

    api: Api
    kubelet: Path
    """Kubelet's root directory, with its sockets, as this process can open it."""
    kubelet_root: Path
    """The same as kubelet calls it."""
    node: str = "node-a"
    image: str = "docker.io/local/busybox:1"
    patience_seconds: float = 150.0
    documents: dict[str, Json] = field(default_factory=dict)
    """What was recorded, by the name of its file."""

    def driver(self) -> RecordedDriver:
        return RecordedDriver(self.kubelet, self.kubelet_root)

    async def get(self, path: str) -> Json:
        """Return an object without what only tells who wrote it."""
        found = await self.api.get(path)
        found["metadata"].pop("managedFields", None)
        return found

    async def until(self, what: str, there: Callable[[], Awaitable[Json]]) -> Json:
        """Return the first answer that is true. Raises AssertionError that names ``what``."""
        deadline = time.monotonic() + self.patience_seconds
        while not (found := await there()):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {self.patience_seconds:g} s for {what}")
            await asyncio.sleep(0.1)
        return found


async def record(place: Place, gates: Json) -> dict[str, Json]:
    """Return everything, by the name of its file. ``gates``: of each program, as their metrics say."""
    place.documents["gates"] = gates
    place.documents["discovery"] = {path: await place.api.get(path) for path in DOCUMENTS}
    place.documents["http-exchanges"] = await record_exchanges(place.api)
    plugin, driver = RecordedPlugin(place.kubelet), place.driver()
    async with _serving(place, plugin, driver):
        await _claims(place, driver)
        await _configurations(place, driver)
        await _extended(place, driver)
        await _shared(place, driver)
        await _binding(place)
        await _limits(place, plugin)
        await _refusals(place, plugin, driver)
        await _registration(place, plugin, driver)
    return place.documents


# -- objects


def pod_of(place: Place, name: str, *containers: Json, **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [_container(place, **one) for one in containers],
            **spec,
        },
    }


def _container(place: Place, **fields: Any) -> Json:
    sleep = {"command": ["sh", "-c", "sleep 600"], "image": place.image, "imagePullPolicy": "IfNotPresent"}
    return {**sleep, **fields}


def _with_limits(name: str, resource: str, number: int) -> Json:
    return {"name": name, "resources": {"limits": {resource: str(number)}}}


def _with_claim(name: str, request: str = "") -> Json:
    claim = {"name": "g"} | ({"request": request} if request else {})
    return {"name": name, "resources": {"claims": [claim]}}


def _device_class(name: str, driver: str, **spec: Any) -> Json:
    selectors = [{"cel": {"expression": f'device.driver == "{driver}"'}}]
    spec = {"selectors": selectors, **spec}
    meta = {"name": name}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": meta, "spec": spec}


def _gpu(index: int, name: str) -> Json:
    attributes = {
        "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "580.95.5"},
        "ecc": {"bool": True},
        "index": {"int": index},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
        "type": {"string": "gpu"},
        "uuid": {"string": f"GPU-{index}"},
    }
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": "65536Mi"}}}


def _slice(node: Json, name: str, driver: str, pool: str, *devices: Json) -> Json:
    meta = node["metadata"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": meta["name"], "uid": meta["uid"], "controller": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": {
            "driver": driver,
            "nodeName": meta["name"],
            "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


@asynccontextmanager
async def _serving(place: Place, plugin: RecordedPlugin, driver: RecordedDriver) -> AsyncIterator[None]:
    """Both are registered; classes and slices are there."""
    api = place.api
    classes = [
        _device_class("obs", DRIVER),
        _device_class("obs-ext", DRIVER, extendedResourceName=EXTENDED),
        _device_class("obs-set", DRIVER, config=[{"opaque": {"driver": DRIVER, "parameters": {"mode": "fast"}}}]),
        _device_class("bind", "bind.example.com"),
    ]
    try:
        await plugin.serve()
        await driver.serve()
        await plugin.register()
        await until(lambda: driver.statuses, why="kubelet to register the driver")
        assert driver.statuses[-1].plugin_registered, driver.statuses[-1].error
        for one in classes:
            await api.create(CLASSES, one)
        node = await api.get(f"/api/v1/nodes/{place.node}")
        gpus = [_gpu(index, name) for index, name in enumerate(GPUS)]
        await api.create(SLICES, _slice(node, "obs-slice", DRIVER, "node-a", *gpus))
        place.documents["resourceslice"] = await place.get(f"{SLICES}/obs-slice")

        async def allocatable() -> Json:
            shown = await place.get(f"/api/v1/nodes/{place.node}")
            return shown if shown["status"]["allocatable"].get(GPU) == "4" else None

        place.documents["node"] = await place.until("the Node to show the plugin's devices", allocatable)
        yield
    finally:
        with contextlib.suppress(RuntimeError):
            for one in classes:
                await api.delete(f"{CLASSES}/{one['metadata']['name']}")
            for name in ("obs-slice", "shared-slice", "bind-slice"):
                await api.delete(f"{SLICES}/{name}")
        await driver.stop()
        await plugin.stop()


# -- steps


async def _started(place: Place, name: str, phase: str = "Running") -> Json:
    async def there() -> Json:
        pod = await place.get(f"{PODS}/{name}")
        return pod if pod["status"].get("phase") == phase else None

    return await place.until(f"pod {name} to be {phase}", there)


async def _gone(place: Place, *names: str) -> None:
    for name in names:
        await place.api.delete(f"{PODS}/{name}?gracePeriodSeconds=0")
    for name in names:

        async def gone(name: str = name) -> Json:
            return (await place.api.request("GET", f"{PODS}/{name}")).status == 404

        await place.until(f"pod {name} to be gone", gone)


async def _allocated(place: Place, name: str, users: int = 1) -> Json:
    async def there() -> Json:
        found = await place.get(f"{CLAIMS}/{name}")
        return found if len(found.get("status", {}).get("reservedFor", ())) == users else None

    return await place.until(f"claim {name} to be reserved for {users}", there)


async def _claim_of_pod(place: Place, name: str) -> str:
    async def there() -> Json:
        status = (await place.get(f"{PODS}/{name}"))["status"]
        special = status.get("extendedResourceClaimStatus")
        made = [one["resourceClaimName"] for one in status.get("resourceClaimStatuses", ())]
        return special["resourceClaimName"] if special else (made or [None])[0]

    found: str = await place.until(f"the claim of pod {name}", there)
    return found


async def _warning(place: Place, name: str, reason: str) -> str:
    """Return the message of the last Warning about a pod."""

    async def there() -> Json:
        events = (await place.api.get(f"{EVENTS}?fieldSelector=involvedObject.name%3D{name}"))["items"]
        return [one["message"] for one in events if (one["type"], one["reason"]) == ("Warning", reason)]

    found = await place.until(f"event {reason} of pod {name}", there)
    return str(found[-1])


async def _claims(place: Place, driver: RecordedDriver) -> None:
    """A claim of two pods, one from a template, and what happens where a driver fails."""
    api, documents = place.api, place.documents
    request = {"name": "gpu", "exactly": {"deviceClassName": "obs", "selectors": [{"cel": {"expression": NEW_ENOUGH}}]}}
    await api.create(CLAIMS, claim_of("cl1", request, config=[PARAMETERS]))
    claimed = {"resourceClaims": [{"name": "g", "resourceClaimName": "cl1"}]}
    driver.gate.clear()
    await api.create(PODS, pod_of(place, "b1", _with_claim("c0"), _with_claim("c1"), **claimed))
    documents["resourceclaim-allocated"] = await _allocated(place, "cl1")
    driver.grant(documents["resourceclaim-allocated"])
    driver.gate.set()
    await _started(place, "b1")
    await driver.report("gpu-0", healthy=True)
    await _health(place, "b1", "Healthy")
    await driver.report("gpu-0", healthy=False, message="ECC errors")
    documents["pod-with-claim"] = await _health(place, "b1", "Unhealthy")
    await api.create(PODS, pod_of(place, "b2", _with_claim("c0", "gpu"), **claimed))
    documents["resourceclaim-shared"] = await _allocated(place, "cl1", 2)
    await _started(place, "b2")
    documents["podresources-claims"] = await _podresources(place, "b1")
    documents["dra-manager-state"] = _checkpoint(place.kubelet / "dra_manager_state")
    await _gone(place, "b1", "b2")

    async def released() -> Json:
        found = await place.get(f"{CLAIMS}/cl1")
        return None if found.get("status") or found["metadata"].get("finalizers") else found

    documents["resourceclaim-released"] = await place.until("claim cl1 to be released", released)
    await api.delete(f"{CLAIMS}/cl1")

    alternatives = [
        {"name": name, "deviceClassName": "obs", "count": count} for name, count in (("big", 9), ("small", 1))
    ]
    spec = claim_of("x", {"name": "any", "firstAvailable": alternatives})["spec"]
    template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "t"}}
    await api.create(TEMPLATES, template | {"spec": {"spec": spec}})
    templated = {"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}]}
    driver.gate.clear()
    await api.create(PODS, pod_of(place, "b3", _with_claim("c"), **templated))
    documents["resourceclaim-from-template"] = await _allocated(place, await _claim_of_pod(place, "b3"))
    driver.grant(documents["resourceclaim-from-template"])
    driver.gate.set()
    documents["pod-with-template"] = await _started(place, "b3")
    await _gone(place, "b3")

    driver.error = "nobody knows this device"
    await api.create(PODS, pod_of(place, "b4", _with_claim("c"), **templated))
    message = await _warning(place, "b4", "FailedPrepareDynamicResources")
    documents["events"] = {"driver refuses": message.replace(await _claim_of_pod(place, "b4"), "b4-g-xxxxx")}
    driver.error = ""
    await _gone(place, "b4")
    await api.delete(f"{TEMPLATES}/t")


async def _configurations(place: Place, driver: RecordedDriver) -> None:
    """Two requests of a class with a configuration, one request that has its own, and one of all."""
    names = ("one", "two", "three")
    requests = [{"name": name, "exactly": {"deviceClassName": "obs-set"}} for name in names]
    opaque = {"driver": DRIVER, "parameters": {"mode": "slow"}}
    config = [
        {"opaque": opaque, "requests": ["two"]},
        {"opaque": opaque},
        {"opaque": opaque, "requests": [*names]},
    ]
    await place.api.create(CLAIMS, claim_of("set", *requests, config=config))
    claimed = {"resourceClaims": [{"name": "g", "resourceClaimName": "set"}]}
    driver.gate.clear()
    await place.api.create(PODS, pod_of(place, "b5", _with_claim("c", "one"), _with_claim("d", "two"), **claimed))
    place.documents["resourceclaim-configured"] = await _allocated(place, "set")
    driver.grant(place.documents["resourceclaim-configured"])
    driver.gate.set()
    await _started(place, "b5")
    place.documents["podresources-configured"] = await _podresources(place, "b5")
    await _gone(place, "b5")
    await place.api.delete(f"{CLAIMS}/set")


async def _health(place: Place, pod: str, health: str) -> Json:
    """Return the pod once its status says so; as it is where kubelet tells nothing about health."""
    enabled = place.documents["gates"]["kubelet"].get("ResourceHealthStatus", {}).get("enabled")

    async def there() -> Json:
        found = await place.get(f"{PODS}/{pod}")
        return found if not enabled or f"'{health}'" in str(found["status"]["containerStatuses"]) else None

    return await place.until(f"pod {pod} to say {health}", there)


async def _extended(place: Place, driver: RecordedDriver) -> None:
    """An extended resource that no device plugin has: from a claim, or from nobody."""
    driver.gate.clear()
    await place.api.create(PODS, pod_of(place, "b6", _with_limits("c", EXTENDED, 2)))
    if (await place.get(f"{CLASSES}/obs-ext"))["spec"].get("extendedResourceName"):
        claim = await _allocated(place, await _claim_of_pod(place, "b6"))
        place.documents["resourceclaim-extended"] = claim
        driver.grant(claim)
        driver.gate.set()
        place.documents["pod-extended-resource"] = await _started(place, "b6")
        place.documents["podresources-extended"] = await _podresources(place, "b6")
    else:
        driver.gate.set()
        place.documents["pod-extended-resource"] = await _unschedulable(place, "b6")
    await _gone(place, "b6")


async def _unschedulable(place: Place, name: str) -> Json:
    async def there() -> Json:
        found = await place.get(f"{PODS}/{name}")
        conditions = {one["type"]: one for one in found["status"].get("conditions", ())}
        return found if conditions.get("PodScheduled", {}).get("status") == "False" else None

    return await place.until(f"the scheduler to say that {name} waits", there)


async def _shared(place: Place, driver: RecordedDriver) -> None:
    """A part of a device that several may have at once; without the gate it is a whole one."""
    node = await place.api.get(f"/api/v1/nodes/{place.node}")
    policy = {"default": "10Gi", "validRange": {"min": "10Gi", "step": "10Gi"}}
    big = {"name": "big", "allowMultipleAllocations": True}
    big["capacity"] = {"memory": {"value": "80Gi", "requestPolicy": policy}}
    await place.api.create(SLICES, _slice(node, "shared-slice", DRIVER, "shared", big))
    place.documents["resourceslice-shared"] = await place.get(f"{SLICES}/shared-slice")
    wanted = {
        "deviceClassName": "obs",
        "selectors": [{"cel": {"expression": f'device.capacity["{DRIVER}"].memory == quantity("80Gi")'}}],
        "capacity": {"requests": {"memory": "15Gi"}},
    }
    await place.api.create(CLAIMS, claim_of("part", {"name": "gpu", "exactly": wanted}))
    driver.gate.clear()
    claimed = {"resourceClaims": [{"name": "g", "resourceClaimName": "part"}]}
    await place.api.create(PODS, pod_of(place, "b7", _with_claim("c"), **claimed))
    place.documents["resourceclaim-part"] = await _allocated(place, "part")
    driver.grant(place.documents["resourceclaim-part"])
    driver.gate.set()
    await _started(place, "b7")
    place.documents["podresources-part"] = await _podresources(place, "b7")
    await _gone(place, "b7")
    await place.api.delete(f"{CLAIMS}/part")
    await place.api.delete(f"{SLICES}/shared-slice")


async def _binding(place: Place) -> None:
    """A device that the pod is bound to only when a condition is true; without the gate, one without a driver."""
    node = await place.api.get(f"/api/v1/nodes/{place.node}")
    device = {
        "name": "d0",
        "bindingConditions": ["example.com/ready"],
        "bindingFailureConditions": ["example.com/failed"],
    }
    await place.api.create(SLICES, _slice(node, "bind-slice", "bind.example.com", "bind", device))
    await place.api.create(CLAIMS, claim_of("bound", {"name": "r", "exactly": {"deviceClassName": "bind"}}))
    claimed = {"resourceClaims": [{"name": "g", "resourceClaimName": "bound"}]}
    await place.api.create(PODS, pod_of(place, "b8", _with_claim("c"), **claimed))
    found = await _allocated(place, "bound")
    place.documents["resourceclaim-binding"] = found
    if "bindingConditions" in str(found["status"]):
        place.documents["pod-binding"] = await place.get(f"{PODS}/b8")
    else:
        message = await _warning(place, "b8", "FailedPrepareDynamicResources")
        place.documents["events"]["no driver"] = message
    await _gone(place, "b8")
    await place.api.delete(f"{CLAIMS}/bound")
    await place.api.delete(f"{SLICES}/bind-slice")


async def _limits(place: Place, plugin: RecordedPlugin) -> None:
    """A pod that gets its devices from the device plugin: one in its init container, again in a, two in b."""
    init = _container(place, **_with_limits("init", GPU, 1)) | {"command": ["true"]}
    place.documents["podresources-idle"] = await _podresources(place)
    pod = pod_of(place, "l1", _with_limits("a", GPU, 1), _with_limits("b", GPU, 2), initContainers=[init])
    await place.api.create(PODS, pod)
    await _started(place, "l1")
    place.documents["podresources-limits"] = await _podresources(place, "l1")
    place.documents["device-manager-checkpoint"] = _checkpoint(
        place.kubelet / "device-plugins" / "kubelet_internal_checkpoint"
    )
    await plugin.mark(d1="Unhealthy")
    place.documents["pod-with-limits"] = await _health(place, "l1", "Unhealthy")
    place.documents["podresources-unhealthy"] = await _podresources(place, "l1")
    await plugin.mark()
    await _gone(place, "l1")


async def _refusals(place: Place, plugin: RecordedPlugin, driver: RecordedDriver) -> None:
    """Pods that the scheduler or kubelet refuses, in their words."""
    refused: Json = {}
    await place.api.create(PODS, pod_of(place, "too-many", _with_limits("c", GPU, 5)))
    refused["too many"] = _scheduled(await _unschedulable(place, "too-many"))
    selector = {"deviceClassName": "obs", "selectors": [{"cel": {"expression": 'device.driver == "nobody"'}}]}
    await place.api.create(CLAIMS, claim_of("none", {"name": "gpu", "exactly": selector}))
    await place.api.create(CLAIMS, claim_of("wrong", {"name": "gpu", "exactly": {"deviceClassName": "nobody"}}))
    for name, claim in (("no-claim", "missing"), ("no-device", "none"), ("no-class", "wrong")):
        claimed = {"resourceClaims": [{"name": "g", "resourceClaimName": claim}]}
        await place.api.create(PODS, pod_of(place, name, _with_claim("c"), **claimed))
    for name in ("no-device", "no-class"):
        refused[name] = _scheduled(await _unschedulable(place, name))
    refused["no-claim"] = _scheduled(await place.get(f"{PODS}/no-claim"))  # it came before the others
    await _gone(place, "too-many", "no-device", "no-claim", "no-class")
    for name in ("none", "wrong"):
        await place.api.delete(f"{CLAIMS}/{name}")

    plugin.refuse = (grpc.StatusCode.FAILED_PRECONDITION, "d0 belongs to somebody")
    await place.api.create(PODS, pod_of(place, "l2", _with_limits("c", GPU, 1)))
    refused["plugin refuses"] = _end(await _started(place, "l2", "Failed"))
    plugin.refuse = None
    await place.api.create(PODS, pod_of(place, "l3", _with_limits("c", GPU, 5), nodeName=place.node))
    refused["more than healthy"] = _end(await _started(place, "l3", "Failed"))
    await _gone(place, "l2", "l3")
    place.documents["refusals"] = refused


def _scheduled(pod: Json) -> Json:
    """Return what the scheduler says. What follows the first sentence about nodes is about preemption."""
    said = []
    for one in pod["status"].get("conditions", ()):
        message = one.get("message", "")
        sentence = f"{message.partition('. ')[0].rstrip('.')}." if " nodes are available: " in message else message
        said.append({**{key: one.get(key) for key in ("type", "status", "reason")}, "message": sentence})
    return said


def _end(pod: Json) -> Json:
    return {name: pod["status"].get(name) for name in ("phase", "reason", "message")}


async def _registration(place: Place, plugin: RecordedPlugin, driver: RecordedDriver) -> None:
    """What kubelet answers to registrations that it does not take."""
    said: Json = {}
    for name, changes in (
        ("no domain", {"resource_name": "gpu"}),
        ("kubernetes.io", {"resource_name": "kubernetes.io/gpu"}),
        ("another version", {"version": "v1alpha"}),
    ):
        try:
            await plugin.register(**changes)
            said[name] = "taken"
        except grpc.aio.AioRpcError as error:
            said[name] = f"{error.code().name} {error.details()}"
    other = place.driver()
    other.name = "other.example.com"
    other.registration_socket = other.registration_socket.with_name("other.example.com-reg.sock")
    other.versions = ["v9.DRAPlugin"]
    try:
        await other.serve()
        await until(lambda: other.statuses, why="kubelet's answer to the driver")
        said["unknown service"] = other.statuses[-1].error
    finally:
        await other.stop()
    place.documents["registrations"] = said


# -- kubelet


async def _podresources(place: Place, pod: str = "") -> Json:
    """Return List, GetAllocatableResources and, of one pod, Get."""
    async with unix_channel(place.kubelet / "pod-resources" / "kubelet.sock") as channel:
        stub = podresources_rpc.PodResourcesListerStub(channel)
        said: Json = {
            "List": _plain(await stub.List(podresources.ListPodResourcesRequest(), timeout=10)),
            "GetAllocatableResources": _plain(
                await stub.GetAllocatableResources(podresources.AllocatableResourcesRequest(), timeout=10)
            ),
        }
        if pod:
            request = podresources.GetPodResourcesRequest(pod_name=pod, pod_namespace="default")
            said["Get"] = _plain(await stub.Get(request, timeout=10))
    return said


def _plain(message: Any) -> Json:
    """A message as JSON, without the machine's CPUs and memory, in an order that does not depend on Go's maps."""
    return _sorted(MessageToDict(message, preserving_proto_field_name=True))


def _sorted(value: Json) -> Json:
    if isinstance(value, dict):
        return {name: _sorted(item) for name, item in value.items() if name not in ("cpu_ids", "memory")}
    if isinstance(value, list):
        return sorted((_sorted(one) for one in value), key=lambda one: json.dumps(one, sort_keys=True))
    return value


def _checkpoint(path: Path) -> Json:
    """Return the document of a checkpoint file; its checksum is Go's own."""
    found = json.loads(path.read_text())
    found["Checksum"] = 0
    data = found["Data"] if isinstance(found["Data"], dict) else json.loads(found["Data"])
    for entry in data.get("PodDeviceEntries") or ():
        entry["AllocResp"] = MessageToDict(
            pb.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"])),
            preserving_proto_field_name=True,
        )
    return _ordered(found | {"Data": data})


def _ordered(value: Json) -> Json:
    """Lists in a fixed order: Go writes them from its maps."""
    if isinstance(value, dict):
        return {name: _ordered(item) for name, item in value.items()}
    if isinstance(value, list):
        return sorted((_ordered(one) for one in value), key=lambda one: json.dumps(one, sort_keys=True))
    return value
