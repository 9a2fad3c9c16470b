"""The base of everything that a file may say: frozen structs, and marks on their fields that say more than a type can.

A model is declared like any ``msgspec.Struct``: types, defaults, ``Annotated[int, Meta(ge=1)]``, ``field(name="from")``
for a key that is no Python name. ``checker.py`` reads a document into it, ``json_schema.py`` describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, ClassVar

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from drabridge.config.problems import Problem, refuse_if_any


class Model(Struct, frozen=True, rename="camel"):
    """Base of all models. Python names are snake_case, the file has camelCase; keys that are not declared are refused.

    ``schema_rules``: what its JSON Schema says besides its fields.
    """

    schema_rules: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        """Raise Problems for fields that are right one by one and do not fit together."""
        refuse_if_any(self._problems())

    def _problems(self) -> Iterator[Problem]:
        yield from ()

    @classmethod
    def whole_file_problems(cls, data: object) -> Iterator[Problem]:
        """Problems between parts of the file, found on plain data: even when other parts are wrong."""
        yield from ()


def exactly_one_of(*keys: str) -> Mapping[str, Any]:
    """A JSON Schema rule for what a model's ``_problems`` says: exactly one of these keys is given."""
    return {"oneOf": [{"required": [key]} for key in keys]}


# --- marks of a field, inside Annotated ------------------------------------------------------------------------------


class Prepare(Struct, frozen=True):
    """What is done to a value before it is looked at: one mapping becomes a list of it."""

    change: Callable[[Any], Any]


class Parse(Struct, frozen=True):
    """How the value is made of what the file says, in place of the type's own check. Raises Problems."""

    make: Callable[[Any], Any]


class Check(Struct, frozen=True):
    """What a value of the right type is checked with; it may return another. Raises Problems."""

    check: Callable[[Any], Any]


class Schema(Struct, frozen=True, eq=False):
    """The JSON Schema of the value, in place of its type's. ``x-type``: the type in words, for the reference."""

    schema: Mapping[str, Any]


class OrOne(Struct, frozen=True):
    """In the JSON Schema: a list that may be written as its only item."""


# --- back to plain data ----------------------------------------------------------------------------------------------


def to_data(value: Any) -> Any:
    """Return a model, or a value of one, as a file would have it. What is as by default is left out.

    Values of other types say it by their method ``to_data``.
    """
    if isinstance(value, Model):
        return {
            one.encode_name: to_data(found)
            for one in fields(value)
            if not is_default(found := getattr(value, one.name), one.default, one.default_factory)
        }
    if isinstance(value, tuple | list):
        return [to_data(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_data(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return value.value
    return value if value is None or isinstance(value, str | int | float) else value.to_data()


def is_default(value: Any, default: Any, factory: Any) -> bool:
    """Whether a field has its default, of the same type: ``1`` is not ``True``."""
    if factory is not NODEFAULT:
        default = factory()
    return default is not NODEFAULT and type(value) is type(default) and bool(value == default)
