"""Read and write Kubernetes quantities (``64Gi``).

They are written as the API server stores them. It canonicalises ("65536Mi" comes back as "64Gi"), so a publisher that
writes another spelling always sees a difference. Rules: k8s.io/apimachinery pkg/api/resource/quantity.go,
CanonicalizeBytes.
"""

from __future__ import annotations

import re
from fractions import Fraction

_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_SMALL = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000)}
_SUFFIXES: dict[str, Fraction] = {
    **{suffix: Fraction(1024**power) for power, suffix in enumerate(_BINARY)},
    **{suffix: Fraction(1000**power) for power, suffix in enumerate(_DECIMAL)},
    **_SMALL,
}
_FORM = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:[eE]([+-]?[0-9]{1,3})|([A-Za-z]{0,2}))")


def canonical(value: int) -> str:
    """Return the shortest exact spelling: binary suffixes for multiples of 1024, decimal ones otherwise.

    >>> canonical(64 * 1024**3), canonical(1000), canonical(1500)
    ('64Gi', '1k', '1500')
    """
    base, suffixes = (1024, _BINARY) if value and value % 1024 == 0 else (1000, _DECIMAL)
    power = 0
    while value and value % base == 0 and power < len(suffixes) - 1:
        value //= base
        power += 1
    return f"{value}{suffixes[power]}"


def parse(text: str) -> Fraction:
    """Return the exact number of a quantity. Raises ValueError for text that is none."""
    match = _FORM.fullmatch(text.strip())
    if match is None or (match[3] or "") not in _SUFFIXES:
        raise ValueError(f"{text!r} is not a Kubernetes quantity such as 64Gi, 1500m or 3e6")
    number = Fraction(match[1])
    return number * Fraction(10) ** int(match[2]) if match[2] else number * _SUFFIXES[match[3] or ""]
