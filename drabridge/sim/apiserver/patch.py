"""Apply patches: JSON merge patch (RFC 7386), strategic merge by list keys, JSON patch (RFC 6902).

JSON patch has no ``move`` and no ``copy`` here.
"""

from __future__ import annotations

from typing import Any

from drabridge.sim.apiserver.fields import item_key
from drabridge.sim.apiserver.schema import ANY, Schema
from drabridge.sim.apiserver.status import JSON, ApiError, bad_request, clone


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: null deletes, objects merge, everything else (lists included) replaces."""
    if not isinstance(patch, dict):
        return clone(patch)
    out = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            out.pop(name, None)
        else:
            out[name] = merge_patch(out.get(name), value)
    return out


def strategic_patch(schema: Schema, target: Any, patch: Any) -> Any:
    """Merge patch whose keyed lists merge by key; an item with ``$patch: delete`` goes."""
    if schema.keys and isinstance(patch, list):
        return _strategic_list(schema, target if isinstance(target, list) else [], patch)
    if not isinstance(patch, dict):
        return clone(patch)
    out = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if name.startswith("$"):
            continue
        if value is None:
            out.pop(name, None)
        else:
            out[name] = strategic_patch(schema.child(name) or ANY, out.get(name), value)
    return out


def _strategic_list(schema: Schema, target: list[Any], patch: list[Any]) -> list[Any]:
    assert schema.items is not None
    out = list(target)
    for item in patch:
        key = item_key(schema, item)
        found = next((index for index, one in enumerate(out) if item_key(schema, one) == key), None)
        if isinstance(item, dict) and item.get("$patch") == "delete":
            if found is not None:
                del out[found]
        elif found is None:
            out.append(clone(item))
        else:
            out[found] = strategic_patch(schema.items, out[found], item)
    return out


def json_patch(target: JSON, operations: Any) -> JSON:
    """RFC 6902 ``add``, ``remove``, ``replace``, ``test``. Raises ApiError 400 or 422."""
    if not isinstance(operations, list):
        raise bad_request("json patch must be a list of operations")
    out: Any = clone(target)
    for step in operations:
        try:
            _json_step(out, step)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise ApiError(
                422, f"the server rejected our request due to an error in our request: {error}", "Invalid"
            ) from error
    result: JSON = out
    return result


def _json_step(root: Any, step: JSON) -> None:
    names = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
    parent = root
    for name in names[:-1]:
        parent = parent[int(name) if isinstance(parent, list) else name]
    last: Any = names[-1]
    if isinstance(parent, list):
        last = len(parent) if last == "-" else int(last)
    match step["op"]:
        case "add" if isinstance(parent, list):
            parent.insert(last, step["value"])
        case "add":
            parent[last] = step["value"]
        case "replace":
            parent[last]  # must exist
            parent[last] = step["value"]
        case "remove":
            del parent[last]
        case "test":
            if parent[last] != step["value"]:
                raise ValueError(f"testing path {step['path']} failed")
        case other:
            raise ValueError(f"unexpected operation {other}")
