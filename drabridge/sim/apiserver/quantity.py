"""``resource.Quantity`` of apimachinery: parse, compare, print in the form that the server stores.

Exponents (``1e3``) are not supported: nothing here writes them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

# apimachinery pkg/api/resource/suffix.go, in ascending order
_BINARY: Sequence[str] = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL: Sequence[str] = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_NANOS = 10**9


def _away(value: Fraction) -> int:
    """Round away from zero: a request must never shrink."""
    return math.ceil(value) if value >= 0 else math.floor(value)


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An exact number, and whether it is printed with binary suffixes.

    Equality and order look at the number alone.
    """

    value: Fraction
    binary: bool = field(default=False, compare=False)

    @classmethod
    def parse(cls, text: str | int) -> Quantity:
        """Read it. Raises ValueError with the server's words. Finer than a nano is rounded away from zero."""
        match = re.fullmatch(r"([+-]?(?:\d+\.?\d*|\.\d+))([A-Za-z]*)", str(text), re.ASCII)
        if match is None:
            raise ValueError("quantities must match the regular expression '^([+-]?[0-9.]+)([numkKMGTPEi]*)$'")
        number, suffix = match.groups()
        binary = suffix.endswith("i")
        if suffix not in (_BINARY if binary else _DECIMAL):
            raise ValueError("unable to parse quantity's suffix")
        factor = 1024 ** _BINARY.index(suffix) if binary else Fraction(1000 ** _DECIMAL.index(suffix), _NANOS)
        return cls(Fraction(_away(Fraction(number.rstrip(".")) * factor * _NANOS), _NANOS), binary)

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.value + other.value, self.binary)

    def __str__(self) -> str:
        """``CanonicalizeBytes``: no fraction, the largest suffix that keeps the number exact."""
        binary = self.binary and abs(self.value) >= 1024
        base, suffixes = (1024, _BINARY) if binary else (1000, _DECIMAL)
        number, power = _away(self.value if binary else self.value * _NANOS), 0
        while number % base == 0 and power < len(suffixes) - 1:
            number, power = number // base, power + 1
        return f"{number}{suffixes[power]}" if number else "0"


@lru_cache(maxsize=4096)
def canonical(text: str | int) -> str:
    """``"65536Mi"`` is stored as ``"64Gi"`` (recorded from 1.36.2). Raises ValueError."""
    return str(Quantity.parse(text))
