"""Regular expressions: the answers of Python's where both exist, refusals at load time, linear time, a late import."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drabridge.config.problems import Problems
from drabridge.config.regex import REGEX_MAX, VALUE_MAX, Regex

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", r"\.", "-", "0", "[]a]", "[a-c0]"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        ),
        inner.map(lambda text: f"({text}|)"),
    ),
    max_leaves=6,
)


@given(PATTERNS, st.text("abc0.-\n", max_size=7))
def test_same_answer_as_python(pattern: str, value: str) -> None:
    assert Regex.compile(pattern).matches(value) == (re.fullmatch(pattern, value, re.DOTALL) is not None)


@given(PATTERNS, st.text("aé٣\u00a0\N{OLD ITALIC LETTER A}", max_size=5))
def test_classes_are_ascii_as_python_has_them_with_its_ascii_flag(pattern: str, value: str) -> None:
    expected = re.fullmatch(pattern, value, re.DOTALL | re.ASCII) is not None
    assert Regex.compile(pattern).matches(value) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("(a", "missing )"),
        ("a)", "unexpected )"),
        ("*a", "no argument for repetition"),
        ("a**", "bad repetition operator"),
        ("a*+", "bad repetition operator"),
        ("a{3,1}", "invalid repetition size"),
        ("a{1001}", "invalid repetition size"),
        ("((a{99}){99}){99}", "invalid repetition size"),
        ("[^a]{1000}[^a]{1000}", "instructions"),
        ("(?=a)", "plain groups"),
        ("(?<!a)b", "plain groups"),
        ("(?P<x>a)", "plain groups"),
        ("(?i)a", "plain groups"),
        (r"(a)\1", "not supported"),
        (r"\b", "not supported"),
        (r"\pL", "not supported"),
        (r"\x41", "not supported"),
        ("^a", "no anchors"),
        ("a$", "no anchors"),
        ("[a", "missing ]"),
        ("a\\", "after the backslash"),
        ("[b-a]", "invalid character class"),
        ("x" * (REGEX_MAX + 1), "at most 512 characters"),
    ],
)
def test_what_is_not_supported_is_refused_at_load(pattern: str, expected: str) -> None:
    with pytest.raises(Problems, match=re.escape(expected)):
        Regex.compile(pattern)


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        (r"\^\$", "^$"),
        ("[$^]+", "^$"),
        (r"\(\?i\)", "(?i)"),
        ("[(?]+", "(?"),
        (r"a\|b", "a|b"),
        (r"\t", "\t"),
        ("é+", "éé"),
    ],
)
def test_signs_that_are_quoted_stand_for_themselves(pattern: str, value: str) -> None:
    assert Regex.compile(pattern).matches(value)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(.*a){500}b", "(a?){900}b", r"(?:(?:\w{0,30}){30}-?)c"])
def test_a_hostile_value_of_the_greatest_length_costs_no_time(pattern: str) -> None:
    regex = Regex.compile(pattern)
    start = time.process_time()
    assert not regex.matches("a" * VALUE_MAX)
    assert time.process_time() - start < 2.0


def test_the_greatest_length_of_a_value() -> None:
    assert Regex.compile("a*").matches("a" * VALUE_MAX)
    assert not Regex.compile("a*").matches("a" * (VALUE_MAX + 1))


def test_a_value_that_is_no_text_raises_nothing() -> None:
    assert not Regex.compile("a").matches("\udc80")


def test_re2_is_loaded_by_the_first_regex_alone() -> None:
    program = """
import sys
from drabridge.config import load
import drabridge.inventory.inventory
HEAD = "apiVersion: drabridge/v1alpha1\\nkind: AgentConfig\\nresources: [{name: a.com/b, match: {sysname: "
load(HEAD + "tty*}}]")
assert "re2" not in sys.modules
load(HEAD + "{regex: tty.*}}}]")
assert "re2" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@given(st.text(max_size=30))
def test_any_text_compiles_or_is_refused(pattern: str) -> None:
    try:
        regex = Regex.compile(pattern)
    except Problems:
        return
    regex.matches("abc")
