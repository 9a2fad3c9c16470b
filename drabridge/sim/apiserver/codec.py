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


def _go_type(value: object) -> str:
    match value:
        case bool():
            return "bool"
        case str():
            return "string"
        case int() | float():
            return "number"
        case list():
            return "array"
        case _:
            return "object"


@dataclass(slots=True)
class Decoder:
    """One pass over one object. ``unknown`` and ``mistyped`` collect what was wrong, as ``(path, text)``."""

    unknown: list[str] = field(default_factory=list)
    mistyped: list[tuple[str, str, str]] = field(default_factory=list)

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
        self.mistyped.append((path, _go_type(value), "array" if schema.is_list else "object"))
        return value

    def _scalar(self, schema: Schema, value: Any, path: str) -> Any:
        if not _PYTHON[schema.type](value):
            self.mistyped.append((path, _go_type(value), schema.type))
            return value
        if schema.type != "quantity":
            return value
        try:
            return canonical(value)
        except ValueError as error:
            self.mistyped.append((path, str(error), schema.type))
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
                if not self._omitted(child, inner):
                    decoded[name] = inner
        return decoded

    @staticmethod
    def _omitted(schema: Schema, value: Any) -> bool:
        """Empty lists and maps vanish (Go's omitempty); structs and declared scalars stay."""
        return (schema.is_list or schema.values is not None) and not value


def decode(schema: Schema, kind: str, version: str, body: JSON, *, strict: bool = False) -> JSON:
    """Return a client's object in stored form.

    Raises ApiError 400 for wrong types, and for unknown fields when ``strict``.
    """
    decoder = Decoder()
    decoded: JSON = decoder.decode(schema, body)
    if decoder.mistyped:
        path, got, want = decoder.mistyped[0]
        what = got if want == "quantity" else f"json: cannot unmarshal {got} into Go struct field {path} of type {want}"
        raise bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {what}')
    if strict and decoder.unknown:
        fields = ", ".join(f'unknown field "{path}"' for path in decoder.unknown)
        raise bad_request(
            f'{kind} in version "{version}" cannot be handled as a {kind}: strict decoding error: {fields}'
        )
    return decoded


def check_typed(schema: Schema, body: JSON, where: str) -> None:
    """Check the types of an applied configuration.

    Raises ApiError 500, as recorded, where other writes answer 400.
    """
    decoder = Decoder()
    decoder.decode(schema, body)
    problems = [f".{path}: field not declared in schema" for path in decoder.unknown]
    problems += [f".{path}: expected {want}, got {got}" for path, got, want in decoder.mistyped]
    if problems:
        text = problems[0] if len(problems) == 1 else "errors:\n" + "\n".join(f"  {one}" for one in problems)
        raise ApiError(500, f"failed to create typed patch object ({where}): {text}")
