"""Attributes and capacity of a device, as ResourceSlices publish them and claims select on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Literal

from msgspec import Meta, field

from drabridge.config import names, quantity
from drabridge.config.declaration import Check, Model
from drabridge.config.field_types import FieldText, PatternsText
from drabridge.config.problems import Problem, unmet

INT64 = 2**63
AttributeType = Literal["string", "int", "bool", "version"]

UNITS = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
Unit = Literal["B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"]

_QUANTITY = re.compile(r"\d{1,19}(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?", re.ASCII)


def parse_quantity(text: str) -> int:
    """Return the number of a whole Kubernetes quantity, ``40Gi`` -> 42949672960. Raises Problems, for fractions too."""
    if not _QUANTITY.fullmatch(text):
        raise unmet("a whole number, with or without a suffix: 40Gi, 500M, 8")
    value = int(quantity.parse(text))
    if value >= INT64:
        raise unmet("a quantity below 2^63")
    return value


def _quantity(value: int | str) -> int | str:
    if isinstance(value, str):
        parse_quantity(value)
    elif not 0 <= value < INT64:
        raise unmet("a whole number from 0 to 2^63-1")
    return value


Quantity = Annotated[
    int | str,
    Check(
        _quantity,
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": r"^\d{1,19}(k|[KMGTPE]i|[MGTPE])?$"},
            ],
            "x-type": "quantity",
        },
    ),
]


def quantity_value(value: int | str) -> int:
    """Return the number of a quantity of the configuration."""
    return parse_quantity(value) if isinstance(value, str) else value


class Attribute(Model, frozen=True):
    """An attribute that claims can select on. Give `from` or `value`."""

    one_of = ("from", "value")
    raw_keys = frozenset({"map"})

    source: FieldText | None = field(default=None, name="from")
    """Where it comes from: `attr:NAME`, `property:NAME`, `link:NAME`, `file:/PATH`, `driver`, `nvidia.model`, ... While
    the source has no value, the attribute keeps its last one; before the first value it is left out."""
    value: str | int | bool | None = None
    """A constant."""
    map: Mapping[str, PatternsText] = {}
    """Values to publish, each with patterns for the value of `from`: `{Arc: "0x56a?"}`. The first that matches counts;
    the empty pattern `""` matches a source without a value. Without a match the attribute is left out."""
    type: AttributeType | None = None
    """`string`, `int`, `bool` or `version` (semver). Left out: the constant's own type, else string."""

    @property
    def kind(self) -> AttributeType:
        """The type that is published."""
        if self.type is not None:
            return self.type
        return "bool" if isinstance(self.value, bool) else "int" if isinstance(self.value, int) else "string"

    def _problems(self) -> Iterator[Problem]:
        if self.value is None:
            yield from self._map_problems()
            return
        if self.map:
            yield Problem("no map beside a constant", "write what is published into the value", ("map",))
        wanted = {"string": str, "int": int, "bool": bool, "version": str}[self.kind]
        if type(self.value) is not wanted:
            yield Problem(f"a constant of type {self.kind}", "quote text, leave numbers and booleans bare", ("value",))
        elif self.kind == "int" and not -INT64 <= self.value < INT64:  # type: ignore[operator]
            yield Problem("a number that fits in 64 bits", path=("value",))
        elif self.kind == "version" and not names.is_semver(str(self.value)):
            yield Problem("a semantic version with three parts, such as 580.95.5", "no leading zeros", ("value",))
        elif self.kind == "string" and not 1 <= len(str(self.value)) <= names.ATTRIBUTE_VALUE_MAX:
            yield Problem(f"1 to {names.ATTRIBUTE_VALUE_MAX} characters", "the API's limit", ("value",))

    def _map_problems(self) -> Iterator[Problem]:
        for text in self.map:
            if not _READABLE[self.kind](text):
                yield Problem(f"a text that is a value of type {self.kind}", path=("map", text), found=text)


_READABLE: Mapping[AttributeType, Callable[[str], object]] = {
    "string": lambda text: 1 <= len(text.encode()) <= names.ATTRIBUTE_VALUE_MAX,
    "int": re.compile(r"-?\d{1,18}", re.ASCII).fullmatch,
    "bool": re.compile("true|false").fullmatch,
    "version": names.is_semver,
}


ALL: Literal["all"] = "all"


class ValidRange(Model, frozen=True):
    """Amounts that a claim may ask for: from `min`, in steps of `step`, up to `max`."""

    min: Quantity
    """The least; smaller requests are rounded up to it."""
    max: Quantity | None = None
    """The most; the whole capacity when left out."""
    step: Quantity | None = None
    """Requests are rounded up to `min` plus a multiple of this."""


class RequestPolicy(Model, frozen=True):
    """How much of a shared device's capacity a claim may ask for (resource.k8s.io CapacityRequestPolicy)."""

    default: Literal["all"] | Quantity
    """What a claim gets if it does not ask for an amount. `all`: as much of the device's capacity as `validRange`
    allows."""
    valid_values: Annotated[tuple[Quantity, ...], Meta(max_length=names.VALID_VALUES_MAX)] = ()
    """The only amounts that are allowed, ascending, with the default among them."""
    valid_range: ValidRange | None = None
    """A range instead of single values."""

    def _problems(self) -> Iterator[Problem]:
        default = None if self.default == ALL else quantity_value(self.default)
        values = [quantity_value(value) for value in self.valid_values]
        if values and self.valid_range is not None:
            yield Problem("either validValues or validRange", "give at most one of them")
        if values != sorted(set(values)):
            yield Problem("ascending values without repetition", path=("validValues",))
        if values and default not in values:
            yield Problem("one of validValues", "add it there; `all` is for ranges", ("default",))
        if (limits := self.valid_range) is None:
            return
        low = quantity_value(limits.min)
        high = None if limits.max is None else quantity_value(limits.max)
        step = 0 if limits.step is None else quantity_value(limits.step)
        if high is not None and high < low:
            yield Problem("at least min", path=("validRange", "max"))
        if limits.step is not None and step == 0:
            yield Problem("more than 0", path=("validRange", "step"))
        if default is None:
            return
        if default < low or (high is not None and default > high) or (step and (default - low) % step):
            yield Problem("an amount that validRange allows", path=("default",))


class Capacity(Model, frozen=True):
    """An amount that a device has, for claims to compare with or to consume. Give `from` or `value`."""

    one_of = ("from", "value")

    source: FieldText | None = field(default=None, name="from")
    """Where the number comes from, as for attributes."""
    value: Quantity | None = None
    """A constant: 8, `40Gi`."""
    unit: Unit = "B"
    """What the number of `from` counts: B, kB, MB, GB, TB, KiB, MiB, GiB, TiB. B for plain counts."""
    request_policy: RequestPolicy | None = None
    """How much one claim may take; needs `sharing.allowMultipleAllocations`. When left out there, a claim takes what it
    asks for, else nothing."""

    def _problems(self) -> Iterator[Problem]:
        if self.value is not None and self.unit != "B":
            yield Problem("no unit beside a constant", "write it into the value: 40Gi", ("unit",))


# Published of every device: type, resource, numaNode, and those of STANDARD in inventory/topology.py.
RESERVED_ATTRIBUTES = 5
_REPLACEABLE = frozenset({"type", "resource"})  # a configured attribute of this name takes its place


def published_problems(
    attributes: Mapping[str, Attribute], capacity: Mapping[str, Capacity], *, shared: bool
) -> Iterator[Problem]:
    """Yield what the API would refuse of one device. ``shared``: several claims may hold it."""
    reserved = RESERVED_ATTRIBUTES - len(attributes.keys() & _REPLACEABLE)
    limit = names.ATTRIBUTES_AND_CAPACITY_MAX - reserved
    if (total := len(attributes) + len(capacity)) > limit:
        yield Problem(
            f"at most {limit} attributes and capacities together",
            f"the API's limit is {names.ATTRIBUTES_AND_CAPACITY_MAX}; {reserved} others are always published",
            ("attributes",),
            f"{total}",
        )
    for name, one in capacity.items():
        if name in attributes:
            yield Problem("a name that is not an attribute as well", path=("capacity", name), found=name)
        if one.request_policy is not None and not shared:
            hint = "set sharing.allowMultipleAllocations: true"
            yield Problem("no requestPolicy on an exclusive device", hint, ("capacity", name, "requestPolicy"))
