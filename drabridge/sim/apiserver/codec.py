"""Decode client objects: check types, find unknown fields, omit empty ones, write quantities canonically."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from drabridge.sim.apiserver.quantity import canonical
from drabridge.sim.apiserver.schema import Schema
from drabridge.sim.apiserver.status import JSON, ApiError, bad_request, clone

_PYTHON: dict[str, Callable[[object], bool]] = {
    "string": lambda value: isinstance(value, str),
    # bool is an int subclass: test it first, as every reader of JSON must.
    "int64": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "bool": lambda value: isinstance(value, bool),
    "quantity": lambda value: isinstance(value, str | int) and not isinstance(value, bool),
}


_GO_TYPES = {bool: "bool", str: "string", int: "number", float: "number", list: "array"}


def _unreadable(value: object, path: str, wanted: str) -> str:
    return f"json: cannot unmarshal {_GO_TYPES.get(type(value), 'object')} into Go struct field {path} of type {wanted}"


@dataclass(slots=True)
class Decoder:
    """One pass over one object. ``unknown`` collects paths; ``mistyped`` collects the wrong types, in words."""

    unknown: list[str] = field(default_factory=list)
    mistyped: list[str] = field(default_factory=list)

    def decode(self, schema: Schema, value: Any, path: str = "") -> Any:
        """Return the value as Go stores it: no undeclared fields, ``omitempty`` applied, quantities canonical."""
        if schema.open and (schema.atomic or not isinstance(value, dict)):
            return clone(value)
        if schema.type:
            return self._scalar(schema, value, path)
        if schema.is_list and isinstance(value, list):
            assert schema.items is not None
            return [self.decode(schema.items, item, f"{path}[{index}]") for index, item in enumerate(value)]
        if isinstance(value, dict) and not schema.is_list:
            return self._object(schema, value, path)
        self.mistyped.append(_unreadable(value, path, "array" if schema.is_list else "object"))
        return value

    def _scalar(self, schema: Schema, value: Any, path: str) -> Any:
        if not _PYTHON[schema.type](value):
            self.mistyped.append(_unreadable(value, path, schema.type))
            return value
        try:
            return canonical(value) if schema.type == "quantity" else value
        except ValueError as error:
            self.mistyped.append(str(error))
            return value

    def _object(self, schema: Schema, value: JSON, path: str) -> JSON:
        decoded: JSON = {}
        for name, item in value.items():
            child = schema.child(name)
            where = f"{path}.{name}" if path else name
            if child is None:
                self.unknown.append(where)
            elif item is not None:
                inner = self.decode(child, item, where)
                if inner or not (child.is_list or child.values is not None):  # Go's omitempty: structs, scalars stay
                    decoded[name] = inner
        return decoded


def decode(schema: Schema, kind: str, version: str, body: JSON, *, strict: bool = False) -> JSON:
    """Return a client's object in stored form.

    Raises ApiError 400 for wrong types, and for unknown fields when ``strict``.
    """
    decoder = Decoder()
    decoded: JSON = decoder.decode(schema, body)
    problem = decoder.mistyped[0] if decoder.mistyped else ""
    if strict and not problem and decoder.unknown:
        problem = "strict decoding error: " + ", ".join(f'unknown field "{path}"' for path in decoder.unknown)
    if problem:
        raise bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {problem}')
    return decoded


def check_typed(schema: Schema, body: JSON, where: str) -> None:
    """Check the types of an applied configuration.

    Raises ApiError 500, as recorded, where other writes answer 400.
    """
    decoder = Decoder()
    decoder.decode(schema, body)
    if problems := [f".{path}: field not declared in schema" for path in decoder.unknown] + decoder.mistyped:
        raise ApiError(500, f"failed to create typed patch object ({where}): {', '.join(problems)}")
