"""Quantities in canonical form, as apimachinery prints them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drabridge.sim.apiserver.quantity import Quantity, canonical


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("65536Mi", "64Gi"),
        ("64Gi", "64Gi"),
        ("1536Mi", "1536Mi"),
        ("1.5Gi", "1536Mi"),
        ("0.5Mi", "512Ki"),
        ("1023", "1023"),
        ("1024", "1024"),
        ("1024Ki", "1Mi"),
        ("0.5Ki", "512"),
        ("1000", "1k"),
        ("1000k", "1M"),
        ("1500", "1500"),
        ("1.5", "1500m"),
        ("0.1", "100m"),
        ("100m", "100m"),
        ("1000m", "1"),
        ("1234567890", "1234567890"),
        ("0", "0"),
        ("0Gi", "0"),
        ("-1Gi", "-1Gi"),
        ("+5", "5"),
        (".5", "500m"),
        ("5.", "5"),
        ("1E", "1E"),
        ("1024Pi", "1Ei"),
        ("3u", "3u"),
        ("1n", "1n"),
        ("0.1n", "1n"),
        ("007", "7"),
        (5, "5"),
        ("1.0000000001Ki", "1025"),
    ],
)
def test_canonical(text: str | int, expected: str) -> None:
    assert canonical(text) == expected


@pytest.mark.parametrize(
    "text", ["", "Gi", "1 Gi", "1GI", "1ki", "one", "1..5", "1.2.3", "1Mi5", "--1", "1e", "1e3", "0x10"]
)
def test_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"quantities must match|unable to parse quantity's suffix"):
        canonical(text)


@given(st.integers(-(2**62), 2**62), st.sampled_from(["", "Ki", "Mi", "Gi", "k", "M", "G", "m", "u", "n"]))
def test_canonical_form_is_stable_and_keeps_the_value(number: int, suffix: str) -> None:
    first = Quantity.parse(f"{number}{suffix}")
    again = Quantity.parse(str(first))
    assert again == first
    assert str(again) == str(first)


@given(st.fractions(min_value=0, max_value=10**12, max_denominator=10**6))
def test_rounding_never_shrinks(value: Fraction) -> None:
    text = f"{float(value):.12f}"
    assert Quantity.parse(text).value >= Fraction(text)
    assert Quantity.parse(text).value - Fraction(text) < Fraction(1, 10**9)
