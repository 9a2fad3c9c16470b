"""Requests to the API server whose answers are recorded: each verb, each conflict, and what is refused, in words."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from tests.sim.record.api import APPLY_TYPE, JSON_TYPE, Answer, Api, Json

GROUP = "/apis/resource.k8s.io"
SLICES = f"{GROUP}/v1/resourceslices"
CLASSES = f"{GROUP}/v1/deviceclasses"
CLAIMS = f"{GROUP}/v1/namespaces/default/resourceclaims"
DRIVER = "http.example.com"
STRICT = "?fieldValidation=Strict"
DOCUMENTS = ("/version", "/api", "/api/v1", "/apis", GROUP, f"{GROUP}/v1", "/apis/admissionregistration.k8s.io")
"""Discovery, and what the server says of itself."""


def slice_of(name: str, /, *, metadata: Json = None, **spec: Any) -> Json:
    body = {
        "driver": DRIVER,
        "nodeName": "node-a",
        "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "capacity": {"memory": {"value": "65536Mi"}}}],
    }
    meta = metadata or {"name": name}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta, "spec": body | spec}


def _without_devices(name: str, **spec: Any) -> Json:
    made = slice_of(name, **spec)
    del made["spec"]["devices"]
    return made


def claim_of(name: str, *requests: Json, **devices: Any) -> Json:
    listed = list(requests) or [{"name": "gpu", "exactly": {"deviceClassName": "obs"}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": listed, **devices}},
    }


def _exactly(**fields: Any) -> Json:
    return {"name": "gpu", "exactly": {"deviceClassName": "obs", **fields}}


def _taints(number: int) -> list[Json]:
    return [{"key": f"example.com/t{index}", "effect": "NoSchedule"} for index in range(number)]


def _counters(name: str) -> Json:
    return {"name": name, "counters": {"memory": {"value": "1Gi"}}}


BAD_CLAIMS: Mapping[str, Json] = {
    "text for a count": claim_of("bad", _exactly(count="2")),
    "unknown field": claim_of("bad", _exactly(colour="red")),
    "name with capitals": claim_of("Bad"),
}
"""Refused whatever the kind is. The simulation takes claims that are wrong otherwise: only users write them."""
BAD_SLICES: Mapping[str, Json] = {
    "two devices of one name": slice_of("bad", devices=[{"name": "d0"}, {"name": "d0"}]),
    "no driver": slice_of("bad", driver=""),
    "driver that is none": slice_of("bad", driver="No_Domain"),
    "pool that is none": slice_of("bad", pool={"name": "No_Pool", "generation": 1, "resourceSliceCount": 1}),
    "attribute that is none": slice_of("bad", devices=[{"name": "d0", "attributes": {"a-b": {"int": 1}}}]),
    "two counter sets of one name": _without_devices("bad", sharedCounters=[_counters("c"), _counters("c")]),
    "many counter sets": _without_devices("bad", sharedCounters=[_counters(f"c{index}") for index in range(9)]),
    "one condition alone": slice_of("bad", devices=[{"name": "d0", "bindingConditions": ["example.com/ready"]}]),
    "default without shares": slice_of(
        "bad", devices=[{"name": "d0", "capacity": {"m": {"value": "1", "requestPolicy": {"default": "1"}}}}]
    ),
    "two ways to say where": slice_of("bad", allNodes=True),
    "no slices in the pool": slice_of("bad", pool={"name": "p", "generation": 1, "resourceSliceCount": 0}),
    "a version that is none": slice_of("bad", devices=[{"name": "d0", "attributes": {"a": {"version": "580.95"}}}]),
    "two types at once": slice_of("bad", devices=[{"name": "d0", "attributes": {"a": {"int": 1, "bool": True}}}]),
    "no value": slice_of("bad", devices=[{"name": "d0", "attributes": {"a": {}}}]),
    "a name that is none": slice_of("bad", devices=[{"name": "D_0"}]),
    "a long text": slice_of("bad", devices=[{"name": "d0", "attributes": {"a": {"string": "x" * 65}}}]),
    "many attributes": slice_of(
        "bad", devices=[{"name": "d0", "attributes": {f"a{index}": {"int": index} for index in range(33)}}]
    ),
    "many devices": slice_of("bad", devices=[{"name": f"d{index}"} for index in range(129)]),
    "an unknown effect": slice_of("bad", devices=[{"name": "d0", "taints": [{"key": "a", "effect": "Never"}]}]),
    "many taints": slice_of("bad", devices=[{"name": "d0", "taints": _taints(17)}]),
    "counters beside devices": slice_of(
        "bad",
        devices=[{"name": "d0", "consumesCounters": [{"counterSet": "c", "counters": {"memory": {"value": "1"}}}]}],
        sharedCounters=[_counters("c")],
    ),
    "two selections of a node": slice_of(
        "bad", perDeviceNodeSelection=True, devices=[{"name": "d0", "nodeName": "node-a", "allNodes": True}]
    ),
}
WITH_GATES: Mapping[str, Json] = {
    "taint": slice_of("gate-taint", devices=[{"name": "d0", "taints": _taints(1)}]),
    "five taints": slice_of("gate-taints", devices=[{"name": "d0", "taints": _taints(5)}]),
    "counters": slice_of(
        "gate-counters",
        devices=[{"name": "d0", "consumesCounters": [{"counterSet": "c", "counters": {"memory": {"value": "1"}}}]}],
    ),
    "counter set": _without_devices("gate-set", sharedCounters=[_counters("c")]),
    "several allocations": slice_of(
        "gate-shared",
        devices=[
            {
                "name": "d0",
                "allowMultipleAllocations": True,
                "capacity": {"memory": {"value": "64Gi", "requestPolicy": {"default": "1Gi"}}},
            }
        ],
    ),
    "binding conditions": slice_of(
        "gate-binding",
        devices=[
            {
                "name": "d0",
                "bindsToNode": True,
                "bindingConditions": ["example.com/ready"],
                "bindingFailureConditions": ["example.com/failed"],
            }
        ],
    ),
}
"""Slices with fields that a feature gate guards: what of them is stored."""
CLASS_WITH_GATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gate-class"},
    "spec": {"extendedResourceName": "example.com/gate"},
}
CLAIM_WITH_GATES = claim_of(
    "gate-claim",
    _exactly(
        adminAccess=False,
        tolerations=[{"key": "example.com/t", "operator": "Exists"}],
        capacity={"requests": {"memory": "1Gi"}},
    ),
    {"name": "any", "firstAvailable": [{"name": "a", "deviceClassName": "obs"}]},
)


class Exchanges:
    """Each request with its answer, in order."""

    def __init__(self, api: Api) -> None:
        self.found: list[Json] = []
        self._api = api

    async def __call__(
        self, name: str, method: str, path: str, body: Json = None, content_type: str = JSON_TYPE
    ) -> Json:
        kind = None if body is None else content_type
        answer = await self._api.request(method, path, body, kind)
        self._note(name, method, path, body, kind, answer)
        return copy.deepcopy(answer.body)

    def _note(self, name: str, method: str, path: str, body: Json, kind: str | None, answer: Answer) -> None:
        request = {"method": method, "path": path, "contentType": kind, "body": copy.deepcopy(body)}
        response = {"status": answer.status, "contentType": answer.content_type, "body": answer.body}
        self.found.append({"name": name, "request": request, "response": response})

    @asynccontextmanager
    async def watching(self, name: str, path: str) -> AsyncIterator[None]:
        """Watch while the caller goes on; the answer is noted at the end."""
        watch = asyncio.create_task(self._api.request("GET", path, None, None))
        await asyncio.sleep(1.0)  # its initial events are there
        yield
        answer = await watch
        events = [one for one in answer.body if one["type"] != "BOOKMARK" or "initial-events-end" in str(one)]
        self._note(name, "GET", path, None, None, replace(answer, body=events))  # other bookmarks come by the clock


async def record_exchanges(api: Api) -> list[Json]:
    """Return all exchanges. What they create is gone afterwards."""
    do = Exchanges(api)
    await _slices(do)
    await _lists(do)
    await _claims(do)
    for name, body in BAD_CLAIMS.items():
        await do(f"bad claim: {name}", "POST", CLAIMS + STRICT, body)
        await api.delete(f"{CLAIMS}/bad")
    for name, body in BAD_SLICES.items():
        await do(f"bad slice: {name}", "POST", SLICES + STRICT, body)
        await api.delete(f"{SLICES}/bad")
    for name, body in WITH_GATES.items():
        await do(f"gate: {name}", "POST", SLICES, body)
        await api.delete(f"{SLICES}/{body['metadata']['name']}")
    await do("gate: extended resource", "POST", CLASSES, CLASS_WITH_GATE)
    await api.delete(f"{CLASSES}/gate-class")
    await do("gate: claim", "POST", CLAIMS, CLAIM_WITH_GATES)
    await api.delete(f"{CLAIMS}/gate-claim")
    return do.found


async def _slices(do: Exchanges) -> None:
    await do("create", "POST", SLICES, slice_of("h1"))
    await do("create again: already exists", "POST", SLICES, slice_of("h1"))
    await do("create with generateName", "POST", SLICES, slice_of("", metadata={"generateName": "node-a-http-"}))
    stored = await do("get", "GET", f"{SLICES}/h1")
    await do("get: not found", "GET", f"{SLICES}/nope")
    changed = copy.deepcopy(stored)
    changed["spec"]["pool"]["generation"] = 2
    newer = await do("update", "PUT", f"{SLICES}/h1", changed)
    await do("update with a stale resourceVersion: conflict", "PUT", f"{SLICES}/h1", changed)
    newer["spec"]["nodeName"] = "node-b"
    await do("update of an immutable field", "PUT", f"{SLICES}/h1", newer)
    await do("update under another name", "PUT", f"{SLICES}/h2", newer)
    apply = f"{SLICES}/h2?fieldManager=agent-a&force=true"
    await do("server-side apply, create", "PATCH", apply, slice_of("h2"), APPLY_TYPE)
    await do("server-side apply, no change", "PATCH", apply, slice_of("h2"), APPLY_TYPE)
    other = slice_of("h2", pool={"name": "node-a", "generation": 9, "resourceSliceCount": 1})
    await do(
        "server-side apply by another manager without force: conflict",
        "PATCH",
        f"{SLICES}/h2?fieldManager=agent-b",
        other,
        APPLY_TYPE,
    )
    unknown = slice_of("h3") | {"nonsense": True}
    strict = f"{SLICES}/h3?fieldManager=agent-a&force=true&fieldValidation=Strict"
    await do("server-side apply with an unknown field", "PATCH", strict, unknown, APPLY_TYPE)
    devices = [{"name": "GPU"}, {"name": "ok", "attributes": {"v": {"version": "1.2"}}}]
    await do("invalid: two errors", "POST", SLICES, slice_of("h4", devices=devices))
    await do("another kind", "POST", SLICES, claim_of("h4"))


async def _lists(do: Exchanges) -> None:
    ours = f"fieldSelector=spec.nodeName%3Dnode-a,spec.driver%3D{DRIVER}"
    await do("list by node and driver", "GET", f"{SLICES}?{ours}")
    await do("list by pool", "GET", f"{SLICES}?fieldSelector=spec.pool.name%3Dnode-a,spec.driver%3D{DRIVER}")
    await do("list by an unsupported field", "GET", f"{SLICES}?fieldSelector=spec.colour%3Dred")
    await do("list, first page", "GET", f"{SLICES}?limit=1")
    await do("list from nowhere", "GET", f"{SLICES}?continue=nonsense")
    path = (
        f"{SLICES}?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
        f"&timeoutSeconds=4&fieldSelector=spec.driver%3D{DRIVER}"
    )
    async with do.watching("watch: initial events, bookmark, then add, modify, delete", path):
        stored = await do("create (seen by the watch)", "POST", SLICES, slice_of("h5"))
        stored["spec"]["pool"]["generation"] = 2
        await do("update (seen by the watch)", "PUT", f"{SLICES}/h5", stored)
        await do("delete: answer", "DELETE", f"{SLICES}/h5")
    stale = {"uid": "00000000-0000-0000-0000-000000000000"}
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": stale}
    await do("delete with a stale uid precondition", "DELETE", f"{SLICES}/h2", options)
    await do("delete what is not there", "DELETE", f"{SLICES}/nope")
    await do("deletecollection by node and driver", "DELETE", f"{SLICES}?{ours}")
    await do("a version that is not served", "GET", f"{GROUP}/v9/resourceslices")


async def _claims(do: Exchanges) -> None:
    stored = await do("create a claim", "POST", CLAIMS, claim_of("hc"))
    device = {"driver": DRIVER, "pool": "node-a", "device": "gpu-0"}
    ready = {"type": "Ready", "status": "True", "reason": "x", "message": "", "lastTransitionTime": _TIME}
    report = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "hc", "uid": stored["metadata"]["uid"]},
        "status": {"devices": [device | {"conditions": [ready]}]},
    }
    status = f"{CLAIMS}/hc/status?fieldManager=agent-a&force=true"
    await do("status.devices for a device that is not allocated", "PATCH", status, report, APPLY_TYPE)
    changed = copy.deepcopy(stored)
    changed["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2
    await do("change of a claim's spec", "PUT", f"{CLAIMS}/hc", changed)
    await do("delete the claim", "DELETE", f"{CLAIMS}/hc")


_TIME = "2026-01-01T00:00:00Z"
