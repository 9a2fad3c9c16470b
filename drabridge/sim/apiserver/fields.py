"""Sets of field paths: what ``metadata.managedFields`` stores, and how two versions of an object differ.

A path is a tuple of elements in FieldsV1 spelling: ``f:name`` for a field, ``k:{...}`` for an item of a keyed list,
``v:...`` for an item of a set.
"""

from __future__ import annotations

import json
from typing import Any

from drabridge.sim.apiserver.schema import ANY, Schema
from drabridge.sim.apiserver.status import JSON

Path = tuple[str, ...]
Fields = frozenset[Path]

# structured-merge-diff never tracks these: they are identity, or the server's own.
_OWN = "name namespace uid resourceVersion generation managedFields creationTimestamp deletionTimestamp"
UNTRACKED = (
    *(("f:apiVersion",), ("f:kind",)),
    *(("f:metadata", f"f:{name}") for name in (*_OWN.split(), "deletionGracePeriodSeconds")),
)


def item_key(schema: Schema, item: Any) -> str:
    """Identity of a list item: its key fields (those present), or itself in a set."""
    if schema.unique:
        return "v:" + json.dumps(item, separators=(",", ":"))
    key = {name: item[name] for name in sorted(schema.keys) if name in item}
    return "k:" + json.dumps(key, separators=(",", ":"))


def entries(schema: Schema, value: Any) -> dict[str, tuple[Schema, Any]] | None:
    """Return the children that apply looks into, by path element; None when the value is a leaf to it."""
    if not schema.merges:
        return None
    if schema.is_list:
        if not isinstance(value, list) or not (schema.keys or schema.unique):
            return None
        assert schema.items is not None
        return {item_key(schema, item): (schema.items, item) for item in value}
    if not isinstance(value, dict):
        return None
    return {f"f:{name}": (schema.child(name) or ANY, item) for name, item in value.items()}


def tracked(path: Path) -> bool:
    return not any(path[: len(prefix)] == prefix for prefix in UNTRACKED)


def flat(schema: Schema, value: Any, path: Path = ()) -> dict[Path, Any]:
    """Return every tracked field with its value; what apply looks into has ``...`` beside its own fields."""
    children = entries(schema, value)
    if not children and path:
        return {path: value} if tracked(path) else {}
    found = {path: ...} if path and tracked(path) else {}
    for element, (child, item) in (children or {}).items():
        found |= flat(child, item, (*path, element))
    return found


def owned(schema: Schema, config: Any) -> set[Path]:
    """Return every field that an applied configuration sets; items of lists count beside their fields."""
    return {path for path, value in flat(schema, config).items() if value is not ... or not path[-1].startswith("f:")}


def changed(schema: Schema, old: Any, new: Any) -> tuple[set[Path], set[Path]]:
    """(set or modified, removed) between two versions. A map or item that is new counts itself as well."""
    before, after = flat(schema, old), flat(schema, new)
    written = {path for path, value in after.items() if path not in before or value not in (..., before[path])}
    return written, before.keys() - after.keys()


def to_fields_v1(paths: Fields | set[Path]) -> JSON:
    """Return the nested form that goes over the wire."""
    root: JSON = {}
    for path in sorted(paths):
        node = root
        for element in path:
            node = node.setdefault(element, {})
    for path in paths:
        node = root
        for element in path:
            node = node[element]
        if node:
            node["."] = {}
    return root


def from_fields_v1(fields: JSON, path: Path = ()) -> set[Path]:
    found: set[Path] = set()
    for element, inner in fields.items():
        if element == ".":
            found.add(path)
        elif inner:
            found |= from_fields_v1(inner, (*path, element))
        else:
            found.add((*path, element))
    return found


def shown(path: Path) -> str:
    """Return the spelling of conflicts: ``.status.devices[device="gpu-0",driver="d"].conditions``."""
    out = ""
    for element in path:
        kind, rest = element.split(":", 1)
        inner = [f"{name}={json.dumps(value)}" for name, value in json.loads(rest).items()] if kind == "k" else [rest]
        out += f".{rest}" if kind == "f" else f"[{','.join(inner)}]"
    return out
