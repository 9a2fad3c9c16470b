"""The base of everything that a file may say: frozen structs, and marks on their fields that say more than a type can.

A model is declared like any ``msgspec.Struct``: types, defaults, ``Annotated[int, Meta(ge=1)]``, ``field(name="from")``
for a key that is no Python name. ``checker.py`` reads a document into it, ``json_schema.py`` describes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, ClassVar

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from drabridge.config.problems import Problem, refuse_if_any, unmet


class Model(Struct, frozen=True, rename="camel"):
    """Base of all models. Python names are snake_case, the file has camelCase; keys that are not declared are refused.

    ``one_of``: keys of the file of which exactly one must be given. ``schema_rules``: what else its JSON Schema says.
    ``raw_keys``, of the model of a file or of a part: below these keys every scalar is text, as it is written.
    """

    one_of: ClassVar[tuple[str, ...]] = ()
    schema_rules: ClassVar[Mapping[str, Any]] = {}
    raw_keys: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        """Raise Problems for fields that are right one by one but do not fit together."""
        fields = dict(zip(self.__struct_encode_fields__, self.__struct_fields__, strict=True))
        if self.one_of and sum(getattr(self, fields[key]) not in (None, {}) for key in self.one_of) != 1:
            raise unmet(f"exactly one of {', '.join(self.one_of)}")
        refuse_if_any(self._problems())

    def _problems(self) -> Iterator[Problem]:
        yield from ()

    @classmethod
    def whole_file_problems(cls, data: object) -> Iterator[Problem]:
        """Yield problems between parts of the file, found on plain data: even when other parts are wrong."""
        yield from ()


# --- marks of a field, inside Annotated ------------------------------------------------------------------------------


class OneOrMany(Struct, frozen=True):
    """A list that may be written as its only item."""


class Parse(Struct, frozen=True, eq=False):
    """Makes the value from the file's data, in place of the type's own check. ``make`` raises Problems.

    ``schema``: the JSON Schema of the value, in place of its type's; ``x-type`` is the type in words for the reference.
    """

    make: Callable[[Any], Any]
    schema: Mapping[str, Any] | None = None


class Check(Struct, frozen=True, eq=False):
    """Checks a value of the right type, and may return another one. ``check`` raises Problems.

    ``schema``: as in :class:`Parse`.
    """

    check: Callable[[Any], Any]
    schema: Mapping[str, Any] | None = None


def form(kind: str, pattern: str, expected: str, hint: str = "", max_length: int | None = None) -> Check:
    """Return the check of a text that must match a pattern from end to end, with the same in its JSON Schema."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text) or (max_length is not None and len(text) > max_length):
            raise unmet(expected, hint)
        return text

    limit = {} if max_length is None else {"maxLength": max_length}
    return Check(check, {"type": "string", "minLength": 1, "x-type": kind, "pattern": f"^({pattern})$", **limit})


# --- back to plain data ----------------------------------------------------------------------------------------------


def to_data(value: Any) -> Any:
    """Return a model, or a value of one, as plain data of a file. Defaults are left out.

    Values of other types have a method ``to_data`` for this.
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
