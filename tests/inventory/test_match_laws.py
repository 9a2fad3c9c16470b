"""Laws of match rules, for random rules and devices."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from drabridge.config.pattern import Patterns
from drabridge.config.predicate import All, Ancestor, Any, Exists, Not, Predicate, Source, Test
from drabridge.inventory.match import explain_predicate, holds
from drabridge.inventory.udev_device import UdevDevice
from tests.support.udev_tree import udev_device

WORDS = st.sampled_from(["a", "b", "0403", "0x0403", "", "ab"])
GLOBS = st.sampled_from(["a", "b*", "*", "", "?", "0403|a", "[ab]"])
SOURCES = st.sampled_from(list(Source))
TESTS = st.builds(
    lambda source, globs, key, empty: Test(
        source, Patterns.of(*globs), key if source in (Source.ATTR, Source.PROPERTY, Source.LINK) else "", empty
    ),
    SOURCES,
    st.lists(GLOBS, min_size=1, max_size=2),
    st.sampled_from(["idVendor", "serial"]),
    st.booleans(),
)
EXISTS = st.builds(Exists, st.sampled_from([Source.ATTR, Source.PROPERTY]), st.sampled_from(["idVendor", "serial"]))
PREDICATES: st.SearchStrategy[Predicate] = st.recursive(
    TESTS | EXISTS,
    lambda inner: st.one_of(
        st.builds(All, st.lists(inner, max_size=3).map(tuple)),
        st.builds(Any, st.lists(inner, max_size=3).map(tuple)),
        st.builds(Not, inner),
        st.builds(Ancestor, inner, st.booleans()),
    ),
    max_leaves=6,
)
VALUES = st.dictionaries(st.sampled_from(["idVendor", "serial"]), WORDS, max_size=2)
ONE = st.builds(
    udev_device, WORDS, WORDS, WORDS, WORDS, WORDS, st.lists(WORDS, max_size=2), st.lists(WORDS, max_size=2), VALUES,
    VALUES, VALUES,
)  # fmt: skip


def _chain(views: list[UdevDevice]) -> UdevDevice:
    top: UdevDevice | None = None
    for view in views:
        top = replace(view, above=top)
    assert top is not None
    return top


VIEWS = st.lists(ONE, min_size=1, max_size=3).map(_chain)


@given(PREDICATES, VIEWS)
def test_the_explanation_agrees_with_the_result(predicate: Predicate, view: UdevDevice) -> None:
    assert explain_predicate(predicate, view).ok == holds(predicate, view)


@given(PREDICATES, PREDICATES, VIEWS)
def test_one_ancestor_for_both_implies_one_for_each(left: Predicate, right: Predicate, view: UdevDevice) -> None:
    if holds(Ancestor(All((left, right))), view):
        assert holds(Ancestor(left), view)
        assert holds(Ancestor(right), view)


@given(PREDICATES, VIEWS)
def test_including_the_device_is_the_device_or_above(predicate: Predicate, view: UdevDevice) -> None:
    assert holds(Ancestor(predicate, include_self=True), view) == (
        holds(predicate, view) or holds(Ancestor(predicate), view)
    )
