"""Linear-time regular expressions give the answers of Python's, where both exist."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drabridge.config.problem import Problems
from drabridge.config.regex import STATES_MAX, Regex

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


@pytest.mark.parametrize(
    "pattern",
    ["(a", "a)", "*a", "a**", "a{3,1}", "(?=a)", "(?P<x>a)", r"(a)\1", "^a", "a$", "[a", "a\\", "[b-a]", "x" * 513,
     f"a{{{STATES_MAX + 1}}}", "((a{99}){99}){99}", "(" * 60 + ")" * 60, r"\b"],
)  # fmt: skip
def test_what_is_not_supported_is_refused_at_load(pattern: str) -> None:
    with pytest.raises(Problems):
        Regex.compile(pattern)


@given(st.text(max_size=30))
def test_any_text_compiles_or_is_refused(pattern: str) -> None:
    try:
        regex = Regex.compile(pattern)
    except Problems:
        return
    regex.matches("abc")


def test_equality_and_text() -> None:
    assert Regex.compile("a+") == Regex.compile("a+")
    assert Regex.compile("a+") != Regex.compile("a*")
    assert str(Regex.compile("a+")) == "/a+/"
