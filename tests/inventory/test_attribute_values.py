"""Texts become typed attributes: versions, integers, booleans, amounts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drabridge.config.field_types import as_patterns
from drabridge.inventory import attribute_values
from drabridge.inventory.devices import Semver


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("580.95", "580.95.0"),
        ("580.95.05", "580.95.5"),
        ("535.054.03", "535.54.3"),
        ("v1.2", "1.2.0"),
        ("7", "7.0.0"),
        ("1.2.3.4", "1.2.3+4"),
        ("1.2.3-rc1", "1.2.3-rc1"),
        ("6.1.0-18-amd64", "6.1.0-18-amd64"),
        ("1.2.3 beta", None),
        ("", None),
        ("latest", None),
        ("1." + "9" * 70, None),
    ],
)
def test_versions_are_made_semantic(text: str, version: str | None) -> None:
    assert attribute_values.as_semver(text) == (Semver(version) if version else None)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("0x10de", "int", 0x10DE),
        ("-3", "int", -3),
        ("9223372036854775808", "int", None),
        ("12 MB", "int", None),
        ("Y", "bool", True),
        ("0", "bool", False),
        ("maybe", "bool", None),
        ("é" * 40, "string", "é" * 32),
        ("", "string", None),
    ],
)
def test_attributes_are_typed_or_left_out(text: str, kind: str, value: object) -> None:
    assert attribute_values.attribute(text, kind) == value


@pytest.mark.parametrize(
    ("table", "text", "published"),
    [
        ({"A": "0x56a?", "B": "*"}, "0x56a0", "A"),
        ({"A": "0x56a?", "B": "*"}, "0xe20b", "B"),
        ({"B": "*", "A": "0x56a?"}, "0x56a0", "B"),  # the first that matches
        ({"A": "*"}, None, None),  # no value is not any value
        ({"A": "*"}, "", None),
        ({"none": "", "A": "*"}, None, "none"),
        ({"A": ["1", "2"]}, "3", None),
        ({"A": {"regex": "[0-9]+"}}, "12", "A"),
        ({"A": "56A0"}, "0x56a0", "A"),  # ids as in match
    ],
)
def test_a_map_publishes_another_text(table: dict[str, object], text: str | None, published: str | None) -> None:
    patterns = {name: as_patterns(value) for name, value in table.items()}
    assert attribute_values.mapped(text, patterns, hex_id=True) == published


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [("81559", "MiB", 81559 << 20), ("40Gi", "B", 40 << 30), ("7", "B", 7), ("x", "B", None), ("9" * 19, "GiB", None)],
)
def test_amounts_count_units(text: str, unit: str, value: int | None) -> None:
    assert attribute_values.amount(text, unit) == value


@given(st.text(max_size=80))
def test_types_never_raise(text: str) -> None:
    for kind in ("string", "int", "bool", "version"):
        attribute_values.attribute(text, kind)
    attribute_values.amount(text, "MiB")


@given(st.from_regex(r"v?[0-9]{1,4}(\.[0-9]{1,4}){0,4}(-[a-z0-9.]{1,8})?", fullmatch=True))
def test_versions_become_strict_semver_or_nothing(text: str) -> None:
    found = attribute_values.as_semver(text)
    if found is not None:
        head = re.split("[-+]", found.text)[0].split(".")
        assert len(head) == 3
        assert all(part == str(int(part)) for part in head)
        assert attribute_values.as_semver(found.text) == found
