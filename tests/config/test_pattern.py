"""Globs mean what udevd's fnmatch(3) says, in time linear in the value."""

from __future__ import annotations

import ctypes
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from drabridge.config.pattern import Glob, Patterns, check_id_width
from drabridge.config.problems import Problems
from drabridge.config.regex import Regex
from tests.support.waiting import PATIENCE

_libc = ctypes.CDLL(None)
ALPHABET = "ab-]!^[*?\\."


def libc_fnmatch(pattern: str, value: str) -> bool:
    """The very function that udevd calls, with its flags (none)."""
    return bool(_libc.fnmatch(pattern.encode(), value.encode(), 0) == 0)


@given(st.text(ALPHABET, max_size=9), st.text("ab-]!^[.", max_size=6))
def test_globs_are_fnmatch_of_libc(pattern: str, value: str) -> None:
    try:
        glob = Glob.compile(pattern)
    except Problems:
        assume(False)
    assert glob.matches(value) == libc_fnmatch(pattern, value)


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_stars_take_the_fit_that_leaves_most(pattern: str, value: str) -> None:
    assert Glob.compile(pattern).matches(value) == libc_fnmatch(pattern, value)


@given(st.lists(st.text("ab*", max_size=4), min_size=1, max_size=4), st.text("ab", max_size=4))
def test_alternatives_are_a_union(parts: list[str], value: str) -> None:
    assert Glob.compile("|".join(parts)).matches(value) == any(Glob.compile(part).matches(value) for part in parts)


@pytest.mark.parametrize(
    ("pattern", "value", "expected"),
    [
        ("video*", "video0", True),
        ("video*|vbi*", "vbi1", True),  # libudev's own enumerate finds nothing for this
        ("video*|vbi*", "radio0", False),
        ("*", "", True),
        ("?*", "", False),
        ("*", "a/b", True),
        ("ttyUSB[0-9]", "ttyUSB10", False),
        ("[!a]", "b", True),
        ("[^a]", "a", False),
        (r"a\*", "a*", True),
        (r"a\*", "ab", False),
        (r"\[", "[", True),
        ("ttyS*", "TTYS0", False),  # case matters, except in ids
        ("*a*b*", "aba", True),
        ("*ab*c", "abcabc", True),
        ("x", "x\n", False),
        ("a*b", "a\n\nb", True),
    ],
)
def test_glob_cases(pattern: str, value: str, expected: bool) -> None:
    assert Glob.compile(pattern).matches(value) is expected


@pytest.mark.parametrize(
    "pattern", ["[a|b]", "a\\|b", "[[:digit:]]", "abc\\", "[z-a]", "[", "a[b", "[]", "a" * 1025, r"[\d]"]
)
def test_globs_that_udevd_would_misread_are_refused(pattern: str) -> None:
    with pytest.raises(Problems):
        Glob.compile(pattern)


@pytest.mark.parametrize(
    ("pattern", "value"),
    [("0x10de", "0x10DE"), ("10de", "0x10de"), ("0X10DE", "10de"), ("0x0302*|0x0300*", "0x030200"), ("0bda", "0BDA")],
)
def test_hex_ids_ignore_case_and_prefix(pattern: str, value: str) -> None:
    assert Glob.compile(pattern).matches(value, hex_id=True)
    assert not Glob.compile(pattern).matches(value + "0", hex_id=True) or "*" in pattern


@pytest.mark.parametrize("pattern", ["259", "0x103", "2838b", "ftdi", "0403|67"])
def test_usb_ids_have_four_digits(pattern: str) -> None:
    with pytest.raises(Problems, match="YAML reads 0403 as the number 259"):
        check_id_width("idVendor", Glob.compile(pattern))


@pytest.mark.parametrize("pattern", ["0403", "0x0403", "04*", "0403|10c4", ""])
def test_usb_ids_that_can_match_are_accepted(pattern: str) -> None:
    check_id_width("idVendor", Glob.compile(pattern))


def test_a_megabyte_costs_milliseconds() -> None:
    value = "ab" * (1 << 19)
    glob, regex = Glob.compile("*a*b*a*b*a*b*c"), Regex.compile("(a+b+)+c")
    started = time.process_time()
    assert not glob.matches(value)
    assert time.process_time() - started < 1 * PATIENCE
    assert not regex.matches("a" * 16_000)
    assert not Regex.compile(".*").matches(value)  # longer than any value of udev's
    assert time.process_time() - started < 3 * PATIENCE  # a backtracking engine would need longer than the universe has


def test_empty_pattern_stands_for_missing() -> None:
    assert Patterns.of("").accepts_missing
    assert Patterns.of("a|").accepts_missing
    assert not Patterns.of("*", "a").accepts_missing
