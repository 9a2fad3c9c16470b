"""The same steps on the simulated and on a real cluster: what a client observes must be equal.

Where no real cluster is there the comparison is left out. What the simulated cluster shows is looked at in any case.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.cluster import workloads as w
from tests.cluster.bed import (
    CLAIMS,
    CONFIG,
    DRIVER,
    EVENTS,
    NAMESPACE,
    NODES,
    PODS,
    RESOURCE,
    SLICES,
    TEMPLATES,
    Bed,
    Json,
    wait_for,
)
from tests.cluster.beds import Beds
from tests.cluster.real_bed import ask, real
from tests.cluster.releases.features import version
from tests.cluster.sim_bed import simulated
from tests.cluster.steps import claim_pod, event, legacy_pod, phase, pod_with, running, template_pod

EXPECTED: Mapping[str, str] = {
    "/answers/slice: ": "that it is refused is the same, the words are shorter",
    "/answers/claim: name with capitals/": "as with slices",
    "/answers/change what may not change/": "as with slices",
    "/answers/a list from nowhere/message": "ends with the words of Go's JSON decoder",
}
"""What may differ: the beginning of a path in the observations, and why."""

NODES_AVAILABLE = re.compile(r"\d+/\d+ nodes are available")
UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
STRUCT = "into Go struct field"  # whose name only Go's compiler knows
OBJECT = re.compile(r"(?<=Invalid value: )\{.*\}(?=: )")  # with the names of the fields of Go's internal types
GONE = {"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "generateName", "annotations"}
"""Of metadata: the cluster's own numbers. Annotations are those that kubectl or a controller adds for itself."""


# --- what is done, and what is seen ---------------------------------------------------------------------------------


async def observe(bed: Bed) -> Json:
    """Everything that is compared, by name. The bed has a ready agent and no workloads."""
    found: Json = {"offered": await offered(bed), "answers": await answers(bed)}
    await legacy_pod(bed, "l1")
    await legacy_pod(bed, "l2")
    await claim_pod(bed, "c1")
    await template_pod(bed, "t1")
    await running(bed, "l1", "l2", "c1", "t1")
    found["running"] = {name: await pod(bed, name) for name in ("l1", "l2", "c1", "t1")}
    found["claims"] = [await claim(bed, one["metadata"]["name"]) for one in await claims(bed)]
    found["slices with holders"] = await slices(bed)
    await unschedulable(bed)
    await rejected(bed)
    found["not running"] = {name: await pod(bed, name) for name in ("no-device", "no-claim", "rejected")}
    found["events"] = {name: await warnings(bed, name) for name in ("no-device", "no-claim", "rejected")}
    seen: Json = plain(found, {bed.node_object: "<node>", bed.node: "<node>"})
    return seen


async def offered(bed: Bed) -> Json:
    node = await bed.api.get(NODES, bed.node_object)
    return {
        "capacity": node["status"]["capacity"].get(RESOURCE),
        "allocatable": node["status"]["allocatable"].get(RESOURCE),
        "slices": await slices(bed),
    }


async def slices(bed: Bed) -> list[Json]:
    """In canonical form: by name of the first device, devices in their order."""
    found = (await bed.api.list(SLICES, field_selector=f"spec.driver={DRIVER}")).items
    specs = [one["spec"] for one in found]
    for spec in specs:
        spec["pool"].pop("generation")  # how often it was written
    return sorted(specs, key=lambda spec: json.dumps(spec.get("devices", [])))


async def claims(bed: Bed) -> list[Json]:
    found = (await bed.api.list(CLAIMS, namespace=NAMESPACE)).items
    return sorted(found, key=lambda one: str(one["metadata"]["name"]))


async def claim(bed: Bed, name: str) -> Json:
    """Without what only one of several equal devices has: which one it is."""

    async def reported() -> Json | None:
        one: Json = await bed.api.get(CLAIMS, name, namespace=NAMESPACE)
        return one if one["status"].get("devices") else None

    found: Json = await wait_for(bed, f"the driver's report in claim {name}", reported)
    metadata = {key: value for key, value in found["metadata"].items() if key not in GONE}
    if owners := metadata.pop("ownerReferences", []):
        metadata["name"] = "<generated>"
        metadata["owners"] = [(one["kind"], one["name"], one.get("controller", False)) for one in owners]
    devices = {one["device"]: "<device>" for one in found["status"]["allocation"]["devices"]["results"]}
    return {"metadata": metadata, "spec": found["spec"], "status": plain(found["status"], devices)}


async def pod(bed: Bed, name: str) -> Json:
    """What its status says of devices and of why it does not run."""
    found = await bed.api.get(PODS, name, namespace=NAMESPACE)
    status = found["status"]
    scheduled = [one for one in status.get("conditions", ()) if one["type"] == "PodScheduled"]
    statuses = [
        {"name": one["name"], "generated": one.get("resourceClaimName", "").startswith(f"{name}-")}
        for one in status.get("resourceClaimStatuses", ())
    ]
    return {
        "phase": status["phase"],
        "reason": status.get("reason", ""),
        "message": status.get("message", ""),
        "scheduled": [(one["status"], one.get("reason", ""), said(one.get("message", ""))) for one in scheduled],
        "claims": statuses,
        "bound": "nodeName" in found["spec"],
    }


async def unschedulable(bed: Bed) -> None:
    """A pod too many with limits, and one whose claim fits no device."""
    await legacy_pod(bed, "no-device")
    await pod_with(bed, "no-claim", w.request(selectors=[{"cel": {"expression": "device.driver == 'nobody'"}}]))
    for name in ("no-device", "no-claim"):
        await event(bed, name, "FailedScheduling")

        async def told(name: str = name) -> bool:
            return bool((await pod(bed, name))["scheduled"])

        await wait_for(bed, f"the scheduler to say that {name} waits", told)


async def rejected(bed: Bed) -> None:
    """Past the scheduler: kubelet itself has to say that it has no device left."""
    made = w.legacy_pod("rejected", bed.image, bed.node)
    made["spec"]["nodeName"] = bed.node_object
    await bed.api.create(PODS, made, namespace=NAMESPACE)

    async def failed() -> bool:
        return await phase(bed, "rejected") == "Failed"

    await wait_for(bed, "kubelet to reject the pod", failed)

    async def told() -> bool:
        return bool(await warnings(bed, "rejected"))

    await wait_for(bed, "kubelet's event about the pod", told)


async def warnings(bed: Bed, name: str) -> list[tuple[str, str, str]]:
    """(kind, reason, message) of the warnings about an object, each once."""
    events = (await bed.api.list(EVENTS, namespace=NAMESPACE)).items
    about = [one for one in events if one["involvedObject"]["name"] == name and one.get("type") == "Warning"]
    return sorted({(one["involvedObject"]["kind"], one["reason"], said(one["message"])) for one in about})


def said(message: str) -> str:
    """A message; of the scheduler's the first sentence. The others are about preemption, which is not simulated."""
    return message.partition(". ")[0].rstrip(".") if NODES_AVAILABLE.match(message) else message


# --- what the API server answers ------------------------------------------------------------------------------------


def _claim(**request: Any) -> Json:
    made: Json = w.claim("bad", w.request(**request))
    return made


def _changed(obj: Json, **fields: Any) -> Json:
    return {**obj, **fields}


ROOT = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
SLICE: Json = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "drabridge-test-bad"},
    "spec": {
        "driver": "bad.example.com",
        "nodeName": "nowhere",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
    },
}


def _slice(**spec: Any) -> Json:
    return {**SLICE, "spec": {**SLICE["spec"], **spec}}


BAD_CLAIMS: dict[str, Json] = {
    "text for a count": _claim(count="2"),
    "unknown field": _claim(colour="red"),
    "name with capitals": _changed(w.claim("bad"), metadata=w.meta("Bad")),
}
BAD_SLICES: dict[str, Json] = {
    "two devices of one name": _slice(devices=[{"name": "d0"}, {"name": "d0"}]),
    "no driver": _slice(driver=""),
    "two ways to say where": _slice(allNodes=True),
    "no slices in the pool": _slice(pool={"name": "p", "generation": 1, "resourceSliceCount": 0}),
    "a version that is none": _slice(devices=[{"name": "d0", "attributes": {"a": {"version": "580.95"}}}]),
    "two types at once": _slice(devices=[{"name": "d0", "attributes": {"a": {"int": 1, "bool": True}}}]),
    "a name that is none": _slice(devices=[{"name": "D_0"}]),
    "an unknown effect": _slice(devices=[{"name": "d0", "taints": [{"key": "a", "effect": "Never"}]}]),
}


OLD = w.meta("there", resourceVersion="1")


async def answers(bed: Bed) -> Json:
    """Code, reason, message and causes of every answer to what cannot be done. Nothing is left behind."""
    await bed.api.create(CLAIMS, w.claim("there"), namespace=NAMESPACE)
    await bed.api.create(TEMPLATES, w.template("there"), namespace=NAMESPACE)
    asked: dict[str, tuple[str, str, Any]] = {
        **{f"claim: {name}": ("POST", f"{ROOT}?fieldValidation=Strict", body) for name, body in BAD_CLAIMS.items()},
        **{
            f"slice: {name}": ("POST", "/apis/resource.k8s.io/v1/resourceslices?fieldValidation=Strict", body)
            for name, body in BAD_SLICES.items()
        },
        "create what is there": ("POST", ROOT, w.claim("there")),
        "get what is not there": ("GET", f"{ROOT}/missing", None),
        "delete what is not there": ("DELETE", f"{ROOT}/missing", None),
        "delete another one of the name": ("DELETE", f"{ROOT}/there", {"preconditions": {"uid": "another"}}),
        "change an old version": ("PUT", f"{ROOT}/there", _changed(w.claim("there"), metadata=OLD)),
        "change what may not change": ("PUT", f"{ROOT}/there", w.claim("there", w.request(count=2))),
        "another name than the URL's": ("PUT", f"{ROOT}/there", w.claim("elsewhere")),
        "another kind": ("POST", ROOT, _changed(w.claim("bad"), kind="ResourceSlice", spec={})),
        "a list from nowhere": ("GET", f"{ROOT}?continue=nonsense", None),
        "a list by an unknown field": ("GET", f"{ROOT}?fieldSelector=spec.colour%3Dred", None),
        "a version that is not served": ("GET", "/apis/resource.k8s.io/v9/resourceslices", None),
    }  # fmt: skip
    try:
        return {name: await asyncio.to_thread(_answer, bed, *request) for name, request in asked.items()}
    finally:
        await bed.api.delete(CLAIMS, "there", namespace=NAMESPACE)
        await bed.api.delete(TEMPLATES, "there", namespace=NAMESPACE)


def _answer(bed: Bed, method: str, path: str, body: Any) -> Json:
    from kubernetes import config

    with config.new_client_from_config(str(bed.kubeconfig)) as connection:
        configuration = connection.configuration
        headers = {one["key"]: one["value"] for one in configuration.auth_settings().values() if one["in"] == "header"}
        response = connection.rest_client.pool_manager.request(
            method,
            configuration.host + path,
            body=None if body is None else json.dumps(body),
            headers={**headers, "Content-Type": "application/json", "Accept": "application/json"},
            retries=False,
        )
    try:
        status = json.loads(response.data)
    except ValueError:
        return {"code": response.status, "text": response.data.decode()}
    causes = status.get("details", {}).get("causes", ())
    return {
        "code": response.status,
        "reason": status.get("reason", ""),
        "message": _without_go(status.get("message", "")),
        "causes": sorted(
            (one.get("reason", ""), one.get("field", ""), _without_go(one.get("message", ""))) for one in causes
        ),
    }


def _without_go(message: str) -> str:
    """A message of the API server without what only Go's types say."""
    return OBJECT.sub("<object>", message.partition(STRUCT)[0])


# --- the comparison -------------------------------------------------------------------------------------------------


def plain(value: Any, names: Mapping[str, str], key: str = "") -> Any:
    """The observation with placeholders for names of this cluster, uids and times."""
    if isinstance(value, dict):
        return {name: plain(item, names, name) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, names) for item in value]
    if key == "uid":
        return "<uid>"
    if key.endswith(("Timestamp", "Time")):
        return "<time>"
    if isinstance(value, str):
        value = UID.sub("<uid>", value)
        for name, placeholder in names.items():
            value = re.sub(rf"\b{re.escape(name)}\b", placeholder, value)
    return value


def flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every leaf by its path. Empty lists and objects are leaves: they are not the same as nothing."""
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from flat(item, f"{path}/{name}")
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from flat(item, f"{path}/{index}")
    else:
        yield path, json.dumps(value)


def differences(real_one: Json, simulated_one: Json) -> list[str]:
    """One line for each leaf that is not the same, except those that are expected to differ."""
    there, here = dict(flat(real_one)), dict(flat(simulated_one))
    lines = [
        f"{path}: real {there.get(path, 'nothing')}, simulated {here.get(path, 'nothing')}"
        for path in sorted(there.keys() | here.keys())
        if there.get(path) != here.get(path)
    ]
    return [line for line in lines if not line.startswith(tuple(EXPECTED))]


async def on(make: Callable[[Any], AbstractAsyncContextManager[Bed]]) -> Json:
    """What is seen on a cluster of this kind."""
    beds = Beds(lambda: make(CONFIG))
    try:
        bed = await beds.begin()
        found = await observe(bed)
        await beds.end()
        return found
    finally:
        await beds.give_up()


async def test_two_simulated_clusters_show_the_same() -> None:
    """So nothing in the observations is a cluster's own: a difference to a real one is a difference of behaviour."""
    found = await on(simulated)
    assert found["offered"]["allocatable"] == "2"
    assert {name: one["phase"] for name, one in found["running"].items()} == dict.fromkeys(found["running"], "Running")
    assert len(found["claims"]) == 2
    assert found["not running"]["rejected"]["reason"] == "UnexpectedAdmissionError"
    assert [name for name, one in found["answers"].items() if one["code"] < 400] == []
    assert all(found["events"].values()), found["events"]
    assert differences(found, await on(simulated)) == []


@pytest.mark.cluster
async def test_a_real_cluster_shows_what_the_simulated_one_does() -> None:
    real_one = await on(real)  # skips without a cluster
    release = version(ask).rpartition(".")[0]
    assert differences(real_one, await on(functools.partial(simulated, release=release))) == []


def test_a_difference_is_told_with_its_path_and_both_values() -> None:
    one, other = {"a": [{"b": 1}], "c": {}}, {"a": [{"b": 2}], "c": {"d": ""}}
    assert differences(one, other) == [
        "/a/0/b: real 1, simulated 2",
        "/c: real {}, simulated nothing",
        '/c/d: real nothing, simulated ""',
    ]
