"""Structural schemas: a kind's fields, their types, how lists merge (``x-kubernetes-list-type``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Schema:
    """One node of a schema.

    Exactly one of ``type``, ``fields``, ``values``, ``items`` is set, unless ``open``.
    """

    type: str = ""
    """string, int64, bool or quantity for a scalar; empty otherwise."""
    fields: Mapping[str, Schema] = field(default_factory=dict)
    values: Schema | None = None
    """Map with free keys."""
    items: Schema | None = None
    keys: tuple[str, ...] = ()
    """Keys of a list that merges by key; a list without keys is replaced as a whole."""
    unique: bool = False
    """A list of scalars that merges as a set."""
    open: bool = False
    """Fields beyond the declared ones are kept as they come (kinds that this server does not know in full)."""
    atomic: bool = False
    """Whether apply replaces the value as a whole."""
    gate: str = ""
    """The feature gate that guards this field: where it is off, the server drops the field in silence."""

    def child(self, name: str) -> Schema | None:
        """Return the schema of one field or map value; None means undeclared."""
        if name in self.fields:
            return self.fields[name]
        if self.values is not None:
            return self.values
        return ANY if self.open else None

    @property
    def is_list(self) -> bool:
        return self.items is not None

    @property
    def merges(self) -> bool:
        """Whether apply looks inside: a struct, a map, or a list with keys."""
        return not self.atomic and bool(self.fields or self.values or self.open or self.keys or self.unique)


STRING, INT, BOOL, QUANTITY = (Schema(type=name) for name in ("string", "int64", "bool", "quantity"))
ANY = Schema(open=True)
OPAQUE = Schema(open=True, atomic=True)


def struct(**fields: Schema) -> Schema:
    """Return a closed object: unknown fields are dropped, or refused by strict clients and by apply."""
    return Schema(fields=MappingProxyType(fields))


def partly(**fields: Schema) -> Schema:
    """Return an object with only those fields declared that merging needs."""
    return Schema(fields=MappingProxyType(fields), open=True)


def mapping(values: Schema) -> Schema:
    return Schema(values=values)


def listed(items: Schema) -> Schema:
    return Schema(items=items)


def keyed(items: Schema, *keys: str) -> Schema:
    return Schema(items=items, keys=keys)


def atomic(schema: Schema) -> Schema:
    return replace(schema, atomic=True)


def gated(gate: str, **fields: Schema) -> dict[str, Schema]:
    """Return fields that a feature gate guards."""
    return {name: replace(schema, gate=gate) for name, schema in fields.items()}


OWNER = struct(apiVersion=STRING, kind=STRING, name=STRING, uid=STRING, controller=BOOL, blockOwnerDeletion=BOOL)
METADATA = struct(
    name=STRING,
    generateName=STRING,
    namespace=STRING,
    selfLink=STRING,
    uid=STRING,
    resourceVersion=STRING,
    generation=INT,
    creationTimestamp=STRING,
    deletionTimestamp=STRING,
    deletionGracePeriodSeconds=INT,
    labels=mapping(STRING),
    annotations=mapping(STRING),
    ownerReferences=keyed(OWNER, "uid"),
    finalizers=Schema(items=STRING, unique=True),
    managedFields=listed(ANY),
)


def kind(**fields: Schema) -> Schema:
    return struct(apiVersion=STRING, kind=STRING, metadata=METADATA, **fields)


CONDITION = struct(
    type=STRING,
    status=STRING,
    reason=STRING,
    message=STRING,
    lastTransitionTime=STRING,
    observedGeneration=INT,
)
CONDITIONS = keyed(CONDITION, "type")
OPEN_CONDITIONS = keyed(ANY, "type")

# A device agent reads little of these kinds. Only what merging needs is declared; the rest is kept as it comes.
_CONTAINERS = keyed(
    partly(resources=partly(limits=mapping(QUANTITY), requests=mapping(QUANTITY), claims=keyed(ANY, "name"))),
    "name",
)
_POD_SPEC = partly(containers=_CONTAINERS, initContainers=_CONTAINERS, resourceClaims=keyed(ANY, "name"))
POD = kind(
    spec=_POD_SPEC,
    status=partly(conditions=OPEN_CONDITIONS, resourceClaimStatuses=keyed(ANY, "name"), podIPs=keyed(ANY, "ip")),
)
NODE = kind(
    spec=ANY,
    status=partly(
        conditions=OPEN_CONDITIONS,
        addresses=keyed(ANY, "type"),
        capacity=mapping(QUANTITY),
        allocatable=mapping(QUANTITY),
    ),
)
JOB = kind(spec=ANY, status=ANY)
OPEN_KIND = Schema(fields=MappingProxyType({"apiVersion": STRING, "kind": STRING, "metadata": METADATA}), open=True)
