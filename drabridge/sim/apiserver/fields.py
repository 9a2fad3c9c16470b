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
UNTRACKED = (
    ("f:apiVersion",),
    ("f:kind",),
    *(
        ("f:metadata", f"f:{name}")
        for name in (
            "name",
            "namespace",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
            "uid",
            "resourceVersion",
            "generation",
            "managedFields",
        )
    ),
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


def owned(schema: Schema, value: Any, path: Path = ()) -> set[Path]:
    """Return every field that an applied configuration sets.

    Items of lists count themselves (``.``) beside their fields.
    """
    children = entries(schema, value)
    if children is None or (not children and path):
        return {path} if tracked(path) else set()
    found: set[Path] = set()
    for element, (child, item) in children.items():
        if not element.startswith("f:"):
            found.add((*path, element))
        found |= owned(child, item, (*path, element))
    return {one for one in found if tracked(one)}


def changed(schema: Schema, old: Any, new: Any, path: Path = ()) -> tuple[set[Path], set[Path]]:
    """(set or modified, removed) between two versions. A map or item that is new counts itself as well."""
    before = entries(schema, old) if old is not None else {}
    after = entries(schema, new) if new is not None else {}
    if before is None or after is None or (old is None and not after) or (new is None and not before):
        differs = {path} if old != new and tracked(path) else set()
        return (differs, set()) if new is not None else (set(), differs)
    written: set[Path] = {path} if old is None and path else set()
    removed: set[Path] = {path} if new is None and path else set()
    for element in before.keys() | after.keys():
        child = (after.get(element) or before[element])[0]
        one = changed(
            child,
            before[element][1] if element in before else None,
            after[element][1] if element in after else None,
            (*path, element),
        )
        written |= one[0]
        removed |= one[1]
    return {one for one in written if tracked(one)}, {one for one in removed if tracked(one)}


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
        if kind == "f":
            out += f".{rest}"
        elif kind == "k":
            inner = ",".join(f"{name}={json.dumps(value)}" for name, value in json.loads(rest).items())
            out += f"[{inner}]"
        else:
            out += f"[={rest}]"
    return out
