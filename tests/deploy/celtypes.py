"""Kubernetes' objects as types that CEL's checker knows: messages, made from the API's JSON schemas.

An API server declares the same from its OpenAPI documents (apiserver/pkg/admission/plugin/policy/validating,
typechecking.go); ``request`` it writes down by hand (plugin/cel/compile.go, BuildRequestType), and so do we.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
from cel_expr_python import cel
from google.protobuf import descriptor_pb2, descriptor_pool, struct_pb2

Json = dict[str, Any]
Field = descriptor_pb2.FieldDescriptorProto
SCHEMAS = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
PACKAGE = "kubernetes"
SCALARS = {
    "string": Field.TYPE_STRING,
    "integer": Field.TYPE_INT64,
    "number": Field.TYPE_DOUBLE,
    "boolean": Field.TYPE_BOOL,
}
DYN, LIST = "google.protobuf.Value", "google.protobuf.ListValue"

_STRING: Json = {"type": "string"}
_RESOURCE: Json = {"properties": {"group": _STRING, "version": _STRING, "resource": _STRING}}
_KIND: Json = {"properties": {"group": _STRING, "version": _STRING, "kind": _STRING}}
REQUEST: Json = {
    "properties": {
        "kind": _KIND,
        "resource": _RESOURCE,
        "subResource": _STRING,
        "requestKind": _KIND,
        "requestResource": _RESOURCE,
        "requestSubResource": _STRING,
        "name": _STRING,
        "namespace": _STRING,
        "operation": _STRING,
        "userInfo": {
            "properties": {
                "username": _STRING,
                "uid": _STRING,
                "groups": {"type": "array", "items": _STRING},
                "extra": {"additionalProperties": {"type": "array"}},  # of strings; a message has no map of lists
            }
        },
        "dryRun": {"type": "boolean"},
        "options": {},
    }
}


class Messages:
    """A file of message types that grows while schemas are added."""

    def __init__(self, definitions: Json) -> None:
        self.file = descriptor_pb2.FileDescriptorProto(name=f"{PACKAGE}.proto", package=PACKAGE, syntax="proto3")
        self.file.dependency.append(struct_pb2.DESCRIPTOR.name)
        self._definitions = definitions
        self._known: set[str] = set()

    def add(self, name: str, schema: Json) -> str:
        """The message's full name; ``properties`` become fields under their own names."""
        if name not in self._known:
            self._known.add(name)
            message = descriptor_pb2.DescriptorProto(name=name)
            for number, (key, value) in enumerate(sorted(schema["properties"].items()), start=1):
                self._field(message, key, number, value)
            self.file.message_type.append(message)
        return f"{PACKAGE}.{name}"

    def pool(self) -> descriptor_pool.DescriptorPool:
        pool = descriptor_pool.DescriptorPool()
        for file in (struct_pb2.DESCRIPTOR.serialized_pb, self.file.SerializeToString()):
            pool.AddSerializedFile(file)
        return pool

    def _field(self, message: descriptor_pb2.DescriptorProto, key: str, number: int, schema: Json) -> None:
        place = f"{message.name}_{key}"
        schema, place = self._resolved(schema, place)
        if "items" in schema:
            items, place = self._resolved(schema["items"], place)
            message.field.append(self._typed(place, items, name=key, number=number, label=Field.LABEL_REPEATED))
        elif isinstance(schema.get("additionalProperties"), dict):
            values, place = self._resolved(schema["additionalProperties"], place)
            entry = message.nested_type.add(name=f"{key[0].upper()}{key[1:]}Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
            entry.field.append(self._typed(place, values, name="value", number=2, label=Field.LABEL_OPTIONAL))
            kind = f".{PACKAGE}.{message.name}.{entry.name}"
            message.field.add(
                name=key, number=number, type=Field.TYPE_MESSAGE, type_name=kind, label=Field.LABEL_REPEATED
            )
        else:
            message.field.append(self._typed(place, schema, name=key, number=number, label=Field.LABEL_OPTIONAL))

    def _typed(self, place: str, schema: Json, **field: Any) -> Field:
        """A field of one value. What has no one type (quantities, raw extensions) is dyn."""
        if "properties" in schema:
            return Field(type=Field.TYPE_MESSAGE, type_name=f".{self.add(place, schema)}", **field)
        kind = schema.get("type")
        (name,) = [one for one in kind if one != "null"] if isinstance(kind, list) else [kind]
        if name in SCALARS:
            return Field(type=SCALARS[name], **field)
        return Field(type=Field.TYPE_MESSAGE, type_name=f".{LIST if name == 'array' else DYN}", **field)

    def _resolved(self, schema: Json, place: str) -> tuple[Json, str]:
        """The schema, and a name for it that is the same wherever it is used."""
        if "$ref" not in schema:
            return schema, place
        name = schema["$ref"].rpartition("/")[2]
        return self._definitions[name], name.replace(".", "_").replace("-", "_")


def _schemas(version: str) -> Path:
    return SCHEMAS / f"v{version}.0-local"


@cache
def _definitions(version: str) -> Json:
    found: Json = json.loads((_schemas(version) / "_definitions.json").read_text())["$defs"]
    return found


@cache
def declared(
    kind: str, api_version: str, version: str, group: str = "resource.k8s.io"
) -> tuple[descriptor_pool.DescriptorPool, Json]:
    """Types, and variables with theirs, for ``kind`` of ``<group>/<api_version>`` in Kubernetes ``version``.

    Without a kind ``object`` and ``oldObject`` are dyn: that is how an API server compiles what it will run.
    """
    messages = Messages(_definitions(version))
    request = cel.Type(messages.add("AdmissionRequest", REQUEST))
    obj = cel.Type.DYN
    if kind:
        name = "-".join(filter(None, (kind.lower(), group.partition(".")[0], api_version)))
        schema = json.loads((_schemas(version) / f"{name}.json").read_text())
        obj = cel.Type(messages.add(kind, schema))
    return messages.pool(), {"request": request, "object": obj, "oldObject": obj}
