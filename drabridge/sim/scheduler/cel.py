"""Evaluate CEL selectors over devices.

The language comes from celpy. This module adds the variable ``device`` (``driver``, ``attributes``, ``capacity``), and
Kubernetes' extension types: semver and quantities. celpy lacks ``cel.bind`` and optional field syntax (``.?``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, total_ordering
from typing import Any, Protocol

from drabridge.errors import HostError
from drabridge.sim.apiserver.quantity import Quantity
from drabridge.sim.apiserver.status import JSON
from drabridge.sim.scheduler.pools import Device


class SelectorError(ValueError):
    """The expression does not compile, fails on this device, or does not give a bool.

    The pod cannot be scheduled.
    """


class _Program(Protocol):
    def evaluate(self, context: Mapping[str, Any]) -> Any: ...


@total_ordering
class Semver:
    """semver.org 2.0.0 with its precedence; build metadata does not count."""

    def __init__(self, text: str) -> None:
        match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?", str(text), re.ASCII)
        if match is None:
            raise ValueError(f"not a semantic version: {text}")
        self.text = str(text)
        self.numbers = (int(match[1]), int(match[2]), int(match[3]))
        self._pre = match[4]

    @property
    def _order(self) -> tuple[Any, ...]:
        parts = tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in (self._pre or "").split("."))
        return (self.numbers, self._pre is None, parts if self._pre is not None else ())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Semver) and self._order == other._order

    def __lt__(self, other: Semver) -> bool:
        return bool(self._order < other._order)

    def __hash__(self) -> int:
        return hash(self._order)


def _celpy() -> Any:
    """Import CEL at first use: only clusters whose classes or claims select pay for it."""
    try:
        import celpy
    except ImportError as error:
        raise HostError("CEL selectors need the cel-python package", hint="pip install 'drabridge[demo]'") from error
    return celpy


@lru_cache(maxsize=1)
def _functions() -> Mapping[str, Callable[..., Any]]:
    """Kubernetes' CEL extensions (k8s.io/apiserver/pkg/cel/library) that selectors of devices use."""
    types = _celpy().celtypes
    text, number, boolean = types.StringType, types.IntType, types.BoolType

    def is_a(parse: Callable[[str], object]) -> Callable[[object], Any]:
        def check(value: object) -> Any:
            try:
                parse(str(value))
            except ValueError:
                return boolean(False)
            return boolean(True)

        return check

    def compare(left: Any, right: Any) -> Any:
        return number((left > right) - (left < right))

    return {
        "semver": lambda value: Semver(str(value)),
        "isSemver": is_a(Semver),
        "major": lambda value: number(value.numbers[0]),
        "minor": lambda value: number(value.numbers[1]),
        "patch": lambda value: number(value.numbers[2]),
        "quantity": lambda value: Quantity.parse(str(value)),
        "isQuantity": is_a(Quantity.parse),
        "isGreaterThan": lambda left, right: boolean(left > right),
        "isLessThan": lambda left, right: boolean(left < right),
        "compareTo": compare,
        "lowerAscii": lambda value: text(str(value).lower()),
    }


@lru_cache(maxsize=512)
def compiled(expression: str) -> _Program:
    """Compile an expression. Raises SelectorError for what does not parse."""
    celpy = _celpy()
    try:
        environment = celpy.Environment()
        program: _Program = environment.program(environment.compile(expression), functions=dict(_functions()))
    except celpy.CELParseError as error:
        raise SelectorError(f"compile error in {expression!r}: {error.args[0]}") from error
    return program


def device_value(driver: str, device: JSON) -> Any:
    """Return the ``device`` variable.

    Attributes and capacities by domain, the driver's own where a name has none.
    """
    types = _celpy().celtypes

    class Domains(types.MapType):  # type: ignore[misc, name-defined]
        """A domain that the device does not use is an empty map, as in Kubernetes."""

        def __getitem__(self, key: Any) -> Any:
            return super().__getitem__(key) if key in self else types.MapType()

    def grouped(values: Mapping[str, Any], convert: Callable[[Any], Any]) -> Any:
        domains = Domains()
        for name, value in values.items():
            domain, slash, short = name.rpartition("/")
            inside = types.StringType(domain if slash else driver)
            if inside not in domains:
                domains[inside] = types.MapType()
            dict.__getitem__(domains, inside)[types.StringType(short)] = convert(value)
        return domains

    return types.MapType(
        {
            types.StringType("driver"): types.StringType(driver),
            types.StringType("attributes"): grouped(device.get("attributes", {}), _attribute),
            types.StringType("capacity"): grouped(
                device.get("capacity", {}), lambda value: Quantity.parse(value.get("value", "0"))
            ),
            types.StringType("allowMultipleAllocations"): types.BoolType(device.get("allowMultipleAllocations", False)),
        }
    )


def _attribute(value: JSON) -> Any:
    types = _celpy().celtypes
    match value:
        case {"int": number}:
            return types.IntType(number)
        case {"bool": flag}:
            return types.BoolType(flag)
        case {"version": version}:
            return Semver(version)
        case {"string": text}:
            return types.StringType(text)
    (listed,) = value.values()
    return types.ListType([types.StringType(str(one)) for one in listed])


def matches(expression: str, device: Any) -> bool:
    """Evaluate on what :func:`device_value` made.

    Raises SelectorError, which stops the scheduling of the pod.
    """
    celpy = _celpy()
    try:
        answer = compiled(expression).evaluate({"device": device})
    except celpy.CELEvalError as error:
        raise SelectorError(f"runtime error in {expression!r}: {_reason(error)}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise SelectorError(f"runtime error in {expression!r}: {error}") from error
    if not isinstance(answer, celpy.celtypes.BoolType | bool):
        raise SelectorError(f"{expression!r} must evaluate to bool, got {type(answer).__name__}")
    return bool(answer)


def _reason(error: Exception) -> str:
    missing = re.search(r"no such member in mapping: '([^']*)'", str(error.args[0]))
    return f"no such key: {missing[1]}" if missing else str(error.args[0])


# --- answers, remembered per expression and device as it stands in its slice ------------------------------------------


_LIMIT = 50_000
"""At most so many answers are kept; beyond that all are dropped."""


class Selectors:
    """Evaluates each expression once on each revision of each device."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str, str], bool] = {}
        self._values: dict[tuple[str, str], Any] = {}

    def match(self, expression: str, device: Device) -> bool:
        """Tell whether a device matches. Raises SelectorError."""
        key = (expression, device.revision, device.name)
        if key not in self._answers:
            if len(self._answers) > _LIMIT:
                self._answers.clear()
                self._values.clear()
            self._answers[key] = matches(expression, self._value(device))
        return self._answers[key]

    def _value(self, device: Device) -> Any:
        key = (device.revision, device.name)
        if key not in self._values:
            self._values[key] = device_value(device.driver, device.spec)
        return self._values[key]
