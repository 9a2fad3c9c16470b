"""Server-side apply: merge a configuration into an object, with ownership of fields and conflicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from drabridge.sim.apiserver.fields import (
    Fields,
    Path,
    changed,
    entries,
    from_fields_v1,
    item_key,
    owned,
    shown,
    to_fields_v1,
)
from drabridge.sim.apiserver.schema import ANY, Schema
from drabridge.sim.apiserver.status import JSON, ApiError, clone


@dataclass(frozen=True, slots=True)
class Manager:
    """One entry of ``metadata.managedFields``."""

    name: str
    operation: str
    version: str
    fields: Fields
    time: str
    subresource: str = ""

    @property
    def identity(self) -> tuple[str, str, str, str]:
        return (self.name, self.operation, self.version, self.subresource)

    @classmethod
    def read(cls, entry: JSON) -> Manager:
        return cls(
            entry.get("manager", ""),
            entry.get("operation", ""),
            entry.get("apiVersion", ""),
            frozenset(from_fields_v1(entry.get("fieldsV1", {}))),
            entry.get("time", ""),
            entry.get("subresource", ""),
        )

    def write(self) -> JSON:
        entry: JSON = {"manager": self.name, "operation": self.operation, "apiVersion": self.version}
        entry |= {"time": self.time, "fieldsType": "FieldsV1", "fieldsV1": to_fields_v1(self.fields)}
        return entry | ({"subresource": self.subresource} if self.subresource else {})

    def __str__(self) -> str:
        if self.operation == "Apply":
            return f'"{self.name}"'
        within = f' with subresource "{self.subresource}"' if self.subresource else ""
        return f'"{self.name}"{within} using {self.version}'


def managers_of(obj: JSON) -> list[Manager]:
    return [Manager.read(entry) for entry in obj.get("metadata", {}).get("managedFields", [])]


def owners(managers: Sequence[Manager]) -> dict[tuple[str, str, str, str], Fields]:
    """Return who owns what, whenever it was written."""
    return {manager.identity: manager.fields for manager in managers if manager.fields}


def write_managers(managers: Sequence[Manager]) -> list[JSON]:
    """Return the managers in wire form: appliers first, then by age. Managers that own nothing are left out."""
    kept = [manager for manager in managers if manager.fields]
    return [one.write() for one in sorted(kept, key=lambda one: (one.operation != "Apply", one.time, one.name))]


def after_update(managers: Sequence[Manager], writer: Manager, schema: Schema, old: JSON, new: JSON) -> list[Manager]:
    """Return the managers after an Update: the writer owns what it changed; nobody owns what it removed."""
    written, removed = changed(schema, old, new)
    if not written and not removed:
        return list(managers)
    gone = written | removed
    mine: set[Path] = set(written)
    rest: list[Manager] = []
    for manager in managers:
        if manager.identity == writer.identity:
            mine |= manager.fields - removed
        else:
            rest.append(replace(manager, fields=manager.fields - gone))
    return [*rest, replace(writer, fields=frozenset(mine))]


def apply(
    schema: Schema, live: JSON, config: JSON, writer: Manager, managers: Sequence[Manager], *, force: bool
) -> tuple[JSON, list[Manager]]:
    """Return the merged object and its new managers.

    Raises ApiError 409 if others own fields that differ, unless ``force``. Fields that this manager applied before, and
    does not apply now, are removed unless somebody else owns them.
    """
    mine = frozenset(owned(schema, config))
    others = [manager for manager in managers if manager.identity != writer.identity]
    before = next((manager.fields for manager in managers if manager.identity == writer.identity), frozenset())
    merged = merge(schema, live, config)
    written, _ = changed(schema, live, merged)
    taken = written & mine
    conflicts = [(manager, path) for manager in others for path in sorted(manager.fields & taken)]
    if conflicts and not force:
        raise _conflict(conflicts)
    others = [replace(manager, fields=manager.fields - taken) for manager in others]
    held = frozenset[Path]().union(*(manager.fields for manager in others)) | mine
    # Remove whole items before their fields: an item without its key fields would not be found.
    for path in sorted(before - held, key=len):
        if not any(one[: len(path)] == path for one in held):
            _remove(schema, merged, path)
    return merged, [*others, replace(writer, fields=mine)]


def merge(schema: Schema, live: Any, config: Any) -> Any:
    """Lay ``config`` over ``live``.

    Lists with keys merge by key: live order first, new items at the end.
    """
    if live is None or entries(schema, live) is None or entries(schema, config) is None:
        return clone(config)
    if schema.is_list:
        assert schema.items is not None
        wanted = {item_key(schema, item): item for item in config}
        merged = []
        for item in live:
            key = item_key(schema, item)
            merged.append(merge(schema.items, item, wanted.pop(key)) if key in wanted else clone(item))
        return merged + [clone(item) for item in wanted.values()]
    out = {name: clone(item) for name, item in live.items() if name not in config}
    for name, item in config.items():
        out[name] = merge(schema.child(name) or ANY, live.get(name), item)
    return out


def _remove(schema: Schema, value: Any, path: Path) -> None:
    """Delete one path where it still exists."""
    element, rest = path[0], path[1:]
    if isinstance(value, dict):
        name = element.removeprefix("f:")
        if name not in value:
            return
        if rest:
            _remove(schema.child(name) or ANY, value[name], rest)
        else:
            del value[name]
        return
    if not isinstance(value, list):
        return
    for index, item in enumerate(value):
        if item_key(schema, item) == element:
            if rest:
                assert schema.items is not None
                _remove(schema.items, item, rest)
            else:
                del value[index]
            return


def _conflict(conflicts: Sequence[tuple[Manager, Path]]) -> ApiError:
    """Return the error with the text of apimachinery's ``getConflictMessage``, recorded for two conflicts."""
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager}", "field": shown(path)}
        for manager, path in conflicts
    ]
    if len(conflicts) == 1:
        text = f"Apply failed with 1 conflict: conflict with {conflicts[0][0]}: {shown(conflicts[0][1])}"
    else:
        lines = []
        for name in sorted({str(manager) for manager, _ in conflicts}):
            lines.append(f"conflicts with {name}:")
            lines += [f"- {shown(path)}" for manager, path in conflicts if str(manager) == name]
        text = f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)
    return ApiError(409, text, "Conflict", {"causes": causes})
