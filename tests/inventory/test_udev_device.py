"""Values of udev and sysfs become one printable line, whatever their bytes are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drabridge.inventory.udev_device import VALUE_LIMIT_CHARS, clean


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"0403\n", "0403"),
        (b"\xff\xfeUSB", "\\xff\\xfeUSB"),
        (b"two\nlines", "two\\nlines"),
        (b"nul\x00byte\x1b[31m", "nul\\x00byte\\x1b[31m"),
        ("gr\u00fcn", "gr\u00fcn"),
        ("\u202eevil", "\\u202eevil"),
        (None, ""),
    ],
)
def test_hostile_values_become_one_printable_line(raw: bytes | None, text: str) -> None:
    assert clean(raw) == text


def test_a_mebibyte_is_cut_and_stays_distinguishable() -> None:
    one, other = clean(b"x" * (1 << 20)), clean(b"x" * (1 << 20) + b"y")
    assert len(one) <= VALUE_LIMIT_CHARS
    assert one != other
    assert clean(b"x" * (1 << 20)) == one


@given(st.binary(max_size=300))
def test_clean_never_raises_and_settles(raw: bytes) -> None:
    text = clean(raw)
    assert text.isprintable()
    assert clean(text) == text.strip()
