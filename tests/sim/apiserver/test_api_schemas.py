"""The simulated API server's schemas and verdicts beside those of the real one's OpenAPI document.

The package ``kubernetes-validate`` ships that document for each release. It knows fields, types, required fields and
how lists merge. It does not know what the server's code checks beyond them (formats, limits, references).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

import pytest

from drabridge.sim.apiserver.kinds import RESOURCES, Resource
from drabridge.sim.apiserver.objects import Objects, Writer
from drabridge.sim.apiserver.schema import Schema
from drabridge.sim.apiserver.status import ApiError
from drabridge.sim.apiserver.store import Store
from drabridge.sim.releases import DEFAULT, RELEASES
from tests.support.api_client import claim_body, slice_body

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="the API's schemas are not installed")

SCHEMAS = files("kubernetes_validate") / "kubernetes-json-schema"
JSON_TYPES = {"string": "string", "int64": "integer", "bool": "boolean"}
Json = dict[str, Any]


# --- schemas, field by field ----------------------------------------------------------------------------------------


class OpenApi:
    """The release's schema of one kind, with its references resolved."""

    def __init__(self, resource: Resource) -> None:
        group = resource.group.partition(".")[0]
        name = "-".join(filter(None, (resource.kind.lower(), group, resource.version)))
        names = [DEFAULT, *reversed([*RELEASES])]
        release = next(one for one in names if not resource.optional or resource.plural in RELEASES[one].kinds)
        folder = SCHEMAS / f"v{release}.0-local"
        self.root: Json = json.loads((folder / f"{name}.json").read_text())
        self._definitions: Json = json.loads((folder / "_definitions.json").read_text())["$defs"]

    def resolve(self, node: Json) -> Json:
        while "$ref" in node:
            node = self._definitions[node["$ref"].rpartition("/")[2]]
        return node

    def differences(self, ours: Schema, node: Json | None, path: str) -> Iterator[str]:
        """One line for each field, type or way of merging that is not the same. Open parts declare nothing more."""
        if node is None:
            yield f"{path}: the API has no such field"
            return
        quantity = node.get("$ref", "").endswith("resource.Quantity")
        there = self.resolve(node)
        if ours.type:
            names = there.get("type")
            types = {names} if isinstance(names, str) else set(names or ())
            fits = quantity if ours.type == "quantity" else not quantity and types - {"null"} == {JSON_TYPES[ours.type]}
            if not fits:
                yield f"{path}: {ours.type} here, {'quantity' if quantity else sorted(types)} in the API"
        elif ours.items is not None:
            yield from self._list(ours, ours.items, there, path)
        elif ours.values is not None:
            yield from self.differences(ours.values, there.get("additionalProperties"), f"{path}{{}}")
        else:
            known: Mapping[str, Json] = there.get("properties", {})
            for name, schema in ours.fields.items():
                yield from self.differences(schema, known.get(name), f"{path}.{name}")
            if not ours.open:
                yield from (f"{path}.{name}: not known here" for name in sorted(known.keys() - ours.fields.keys()))

    def _list(self, ours: Schema, items: Schema, there: Json, path: str) -> Iterator[str]:
        merges = "map" if ours.keys else "set" if ours.unique else "atomic"
        said = there.get("x-kubernetes-list-type", "atomic"), set(there.get("x-kubernetes-list-map-keys", ()))
        if said != (merges, set(ours.keys)):
            yield f"{path}: merges as {merges} {sorted(ours.keys)} here, as {said[0]} {sorted(said[1])} in the API"
        yield from self.differences(items, there.get("items"), f"{path}[]")


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda one: one.kind)
def test_every_declared_field_is_the_apis(resource: Resource) -> None:
    api = OpenApi(resource)
    assert list(api.differences(resource.schema, api.root, resource.kind)) == []


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (Schema(type="int64"), "int64 here, ['string'] in the API"),
        (Schema(items=Schema(type="string")), "X[]: the API has no such field"),
        (Schema(fields={"nme": Schema(type="string")}), "X.nme: the API has no such field"),
        (None, "X.driver: not known here"),
    ],
)
def test_the_comparison_finds_what_differs(schema: Schema | None, said: str) -> None:
    api = OpenApi(next(one for one in RESOURCES if one.plural == "resourceslices"))
    spec = api.resolve(api.root["properties"]["spec"])
    node = spec["properties"]["driver"] if schema is not None else spec
    assert said in "\n".join(api.differences(schema or Schema(fields={"x": Schema(open=True)}), node, "X"))


# --- verdicts, object by object -------------------------------------------------------------------------------------


def device(**fields: Any) -> Json:
    found: Json = slice_body("s", {"name": "d0", **fields})
    return found


def claim(**spec: Any) -> Json:
    found: Json = claim_body("c")
    found["spec"]["devices"] |= spec
    return found


def template(spec: Json) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "t"},
        "spec": {"spec": spec},
    }


def device_class(**spec: Any) -> Json:
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": spec}


def pod(**spec: Any) -> Json:
    containers = [{"name": "main", "image": "busybox"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers, **spec}}


def without(obj: Json, *path: str) -> Json:
    place = obj
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return obj


CEL = [{"cel": {"expression": "device.driver == 'd.example.com'"}}]
TAINT = {"key": "a.example.com/b", "effect": "NoSchedule"}
NODE_TERM = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
REQUEST = {"name": "one", "exactly": {"deviceClassName": "gpu"}}

ALTERNATIVE = {"name": "a", "deviceClassName": "gpu"}
NO_SLICES = {"name": "p", "generation": 1, "resourceSliceCount": 0}
UNKNOWN_REQUEST = {"requests": ["two"], "matchAttribute": "d/a"}

GOOD: dict[str, Json] = {
    "slice": slice_body("s", "d0", "d1"),
    "slice without devices": slice_body("s"),
    "attributes of every type": device(
        attributes={"i": {"int": 1}, "b": {"bool": False}, "s": {"string": "x"}, "v": {"version": "1.2.3"}}
    ),
    "capacity": device(capacity={"memory": {"value": "40Gi"}, "cores": {"value": "12"}}),
    "taints": device(taints=[TAINT, {"key": "c", "value": "v", "effect": "NoExecute"}]),
    "slice with a node selector": without(slice_body("s", "d0", nodeSelector=NODE_TERM), "spec", "nodeName"),
    "claim": claim_body("c"),
    "claim with a selector": claim_body("c", selectors=CEL),
    "claim for two": claim_body("c", allocationMode="ExactCount", count=2),
    "claim for all": claim_body("c", allocationMode="All"),
    "claim with alternatives": claim(requests=[{"name": "r", "firstAvailable": [ALTERNATIVE]}]),
    "claim with a constraint": claim(constraints=[{"matchAttribute": "d.example.com/numa"}]),
    "claim with configuration": claim(config=[{"opaque": {"driver": "d.example.com", "parameters": {"a": 1}}}]),
    "template": template({"devices": {"requests": [REQUEST]}}),
    "class": device_class(selectors=CEL),
    "class that selects everything": device_class(),
    "class of an extended resource": device_class(selectors=CEL, extendedResourceName="example.com/gpu"),
    "pod": pod(),
    "pod with a claim": pod(resourceClaims=[{"name": "d", "resourceClaimName": "c"}]),
    "namespace": {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n", "labels": {"a": "b"}}},
}  # fmt: skip
BAD: dict[str, Json] = {
    "unknown field": slice_body("s", "d0", nodeNme="node-a"),
    "unknown field of a device": device(attribute={}),
    "unknown field of metadata": {**claim_body("c"), "metadata": {"name": "c", "label": {}}},
    "number for a name": slice_body("s", "d0", driver=7),  # type: ignore[arg-type]
    "object for the devices": slice_body("s", devices={}),
    "text for a count": claim_body("c", count="2"),
    "text for a boolean": claim_body("c", adminAccess="true"),
    "text for an attribute's int": device(attributes={"i": {"int": "1"}}),
    "boolean for a quantity": device(capacity={"memory": {"value": True}}),
    "list for the labels": {**claim_body("c"), "metadata": {"name": "c", "labels": ["a"]}},
    "number for a label": {**claim_body("c"), "metadata": {"name": "c", "labels": {"a": 1}}},
    "slice without a driver": without(slice_body("s", "d0"), "spec", "driver"),
    "slice without a pool": without(slice_body("s", "d0"), "spec", "pool"),
    "pool without a name": without(slice_body("s", "d0"), "spec", "pool", "name"),
    "device without a name": slice_body("s", {"attributes": {}}),
    "taint without an effect": device(taints=[{"key": "a"}]),
    "request without a name": claim(requests=[{"exactly": {"deviceClassName": "gpu"}}]),
    "request without a class": claim(requests=[{"name": "one", "exactly": {}}]),
    "configuration without a driver": claim(config=[{"opaque": {"parameters": {}}}]),
    "selector without an expression": device_class(selectors=[{"cel": {}}]),
    "unknown field of a class": device_class(selector=CEL),
}
ZERO = "Go reads a missing quantity as 0, and no code refuses 0"
CODE = "the schema cannot say it: the server's code checks it"
KEPT = "the simulation keeps this kind's fields as they come: an agent reads few of them"
DIFFERENT: dict[str, tuple[Json, bool, str]] = {
    # name: (object, whether the simulation takes it, why it differs from the schema)
    "slice of two nodes": (slice_body("s", "d0", allNodes=True), False, CODE),
    "two devices of one name": (slice_body("s", "d0", "d0"), False, CODE),
    "too many devices": (slice_body("s", *(f"d{number}" for number in range(129))), False, CODE),
    "pool of no slices": (slice_body("s", "d0", pool=NO_SLICES), False, CODE),
    "driver that is no domain": (slice_body("s", "d0", driver="No_Domain"), False, CODE),
    "attribute of two types": (device(attributes={"a": {"int": 1, "bool": True}}), False, CODE),
    "version that is none": (device(attributes={"a": {"version": "580.95"}}), False, CODE),
    "quantity that is none": (device(capacity={"memory": {"value": "lots"}}), False, CODE),
    "unknown effect": (device(taints=[{"key": "a", "effect": "Never"}]), False, CODE),
    "claim for no device": (claim_body("c", allocationMode="ExactCount", count=-1), False, CODE),
    "unknown mode": (claim_body("c", allocationMode="Some"), False, CODE),
    "request that asks nothing": (claim(requests=[{"name": "one"}]), False, CODE),
    "constraint of an unknown request": (claim(constraints=[UNKNOWN_REQUEST]), False, CODE),
    "name with capitals": ({**claim_body("c"), "metadata": {"name": "Claim"}}, False, CODE),
    "capacity without a value": (device(capacity={"memory": {}}), True, ZERO),
    "pod without containers": (without(pod(), "spec", "containers"), True, KEPT),
    "unknown field of a pod": (pod(hostNetwrk=True), True, KEPT),
    "text for a pod's priority": (pod(priority="high"), True, KEPT),
}  # fmt: skip


def schema_takes(obj: Json) -> bool:
    try:
        kubernetes_validate.validate(obj, DEFAULT, strict=True)
    except kubernetes_validate.ValidationError:
        return False
    return True


def simulation_takes(obj: Json) -> bool:
    try:
        Objects(Store(), RELEASES[DEFAULT].gates_with()).create(obj, by=Writer(strict=True))
    except ApiError as error:
        if error.code not in (400, 422):
            raise
        return False
    return True


@pytest.mark.parametrize("obj", GOOD.values(), ids=GOOD)
def test_both_take_it(obj: Json) -> None:
    assert (schema_takes(obj), simulation_takes(obj)) == (True, True)


@pytest.mark.parametrize("obj", BAD.values(), ids=BAD)
def test_both_refuse_it(obj: Json) -> None:
    assert (schema_takes(obj), simulation_takes(obj)) == (False, False)


@pytest.mark.parametrize(("obj", "simulated", "reason"), DIFFERENT.values(), ids=DIFFERENT)
def test_the_differences_are_these(obj: Json, simulated: bool, reason: str) -> None:
    assert (schema_takes(obj), simulation_takes(obj)) == (not simulated, simulated), reason
