"""The simulated API server's schemas beside those of the real one's OpenAPI document.

The package ``kubernetes-validate`` ships that document for each release. It knows fields, types and how lists
merge.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

import pytest

from drabridge.sim.apiserver.kinds import RESOURCES, STORED, Resource
from drabridge.sim.apiserver.schema import Schema
from drabridge.sim.releases import DEFAULT, RELEASES

pytest.importorskip("kubernetes_validate", reason="the API's schemas are not installed")

SCHEMAS = files("kubernetes_validate") / "kubernetes-json-schema"
JSON_TYPES = {"string": "string", "int64": "integer", "bool": "boolean"}
Json = dict[str, Any]


# --- schemas, field by field ----------------------------------------------------------------------------------------


class OpenApi:
    """The release's schema of one kind, with its references resolved."""

    def __init__(self, resource: Resource) -> None:
        group = resource.group.partition(".")[0]
        name = "-".join(filter(None, (resource.kind.lower(), group, STORED)))
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
