"""``resource.Quantity`` of apimachinery: parse, compare, print in the form that the server stores."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache, total_ordering


class Format(StrEnum):
    """How the quantity was written decides how it is printed."""

    BINARY_SI = "BinarySI"
    DECIMAL_SI = "DecimalSI"
    DECIMAL_EXPONENT = "DecimalExponent"


# apimachinery pkg/api/resource/suffix.go
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIX = {0: ""} | {power: suffix for suffix, power in _BINARY.items()}
_DECIMAL_SUFFIX = {power: suffix for suffix, power in _DECIMAL.items()}
_NUMBER = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)([A-Za-z]*)([+-]?\d*)\Z", re.ASCII)
_NANO = Fraction(1, 10**9)

MALFORMED = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
BAD_SUFFIX = "unable to parse quantity's suffix"


def _ceil_away(value: Fraction) -> int:
    """Round away from zero: a request must never shrink."""
    return math.ceil(value) if value >= 0 else math.floor(value)


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """An exact number, and the family of suffixes to print it with.

    Equality and order look at the number alone.
    """

    value: Fraction
    format: Format = field(default=Format.DECIMAL_SI)

    @classmethod
    def parse(cls, text: str | int) -> Quantity:
        """Read it. Raises ValueError with the server's words. Finer than a nano is rounded away from zero."""
        match = _NUMBER.match(str(text))
        if match is None:
            raise ValueError(MALFORMED)
        sign, number, suffix, exponent = match.groups()
        value = Fraction(number.rstrip("."))
        if suffix in ("e", "E") and exponent:
            if len(exponent) > 4:
                raise ValueError(BAD_SUFFIX)
            value, form = value * Fraction(10) ** int(exponent), Format.DECIMAL_EXPONENT
        elif exponent:
            raise ValueError(BAD_SUFFIX if suffix else MALFORMED)
        elif suffix in _BINARY:
            value, form = value * 1024 ** _BINARY[suffix], Format.BINARY_SI
        elif suffix in _DECIMAL:
            value, form = value * Fraction(10) ** _DECIMAL[suffix], Format.DECIMAL_SI
        else:
            raise ValueError(BAD_SUFFIX)
        value = _ceil_away(value / _NANO) * _NANO
        return cls(-value if sign == "-" else value, form)

    def __eq__(self, other: object) -> bool:
        return self.value == other.value if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: Quantity) -> bool:
        return self.value < other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.value + other.value, self.format)

    def __str__(self) -> str:
        """``CanonicalizeBytes``: no fraction, the largest suffix that keeps the number exact."""
        if self.value == 0:
            return "0"
        if self.format is Format.BINARY_SI and abs(self.value) >= 1024:
            return self._binary()
        return self._decimal()

    def _binary(self) -> str:
        number, power = _ceil_away(self.value), 0
        while number % 1024 == 0 and power < 6:
            number, power = number // 1024, power + 1
        return f"{number}{_BINARY_SUFFIX[power]}"

    def _decimal(self) -> str:
        number, power = int(self.value / _NANO), -9
        limit = 18 if self.format is not Format.DECIMAL_EXPONENT else 10**6
        while number % 1000 == 0 and power < limit:
            number, power = number // 1000, power + 3
        if self.format is Format.DECIMAL_EXPONENT:
            return f"{number}e{power}" if power else str(number)
        return f"{number}{_DECIMAL_SUFFIX[power]}"


@lru_cache(maxsize=4096)
def canonical(text: str | int) -> str:
    """``"65536Mi"`` is stored as ``"64Gi"`` (recorded from 1.36.2). Raises ValueError."""
    return str(Quantity.parse(text))
