"""What changed between two texts of an object is brought to the live one, and nothing else."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from drabridge.migrate.apply.runner import merged

SCALARS = st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from("abc")
NAMES = st.sampled_from("pqrs")


def _objects(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    named = st.dictionaries(NAMES, st.dictionaries(st.sampled_from("xyz"), children, max_size=2), max_size=3)
    as_list = named.map(lambda items: [{**rest, "name": name} for name, rest in items.items()])
    return st.dictionaries(NAMES, children | as_list, max_size=3)


OBJECTS = st.recursive(SCALARS, _objects, max_leaves=12).filter(lambda one: isinstance(one, dict))


@given(OBJECTS, OBJECTS)
def test_a_live_object_that_is_the_text_becomes_the_new_text(before: Any, after: Any) -> None:
    found = merged(before, before, after)
    assert _sorted(found) == _sorted(after)


@given(OBJECTS, OBJECTS)
def test_the_same_text_twice_changes_nothing(live: Any, text: Any) -> None:
    assert merged(live, text, text) == live


@given(OBJECTS, OBJECTS)
def test_there_and_back_is_where_it_was(before: Any, after: Any) -> None:
    live = {**before, "status": "of the server"}
    assert _sorted(merged(merged(live, before, after), after, before)) == _sorted(live)


def _sorted(value: Any) -> Any:
    """The value, whatever the order of named items: three-way merges keep that of the live object."""
    if isinstance(value, dict):
        return {key: _sorted(one) for key, one in value.items()}
    if isinstance(value, list):
        return sorted((_sorted(one) for one in value), key=lambda one: one["name"])
    return value


def test_what_the_server_and_others_have_set_stays() -> None:
    live = {
        "metadata": {"uid": "1", "annotations": {"theirs": "x"}},
        "spec": {
            "replicas": 7,
            "containers": [
                {
                    "name": "main",
                    "image": "x",
                    "terminationMessagePath": "/dev/x",
                    "resources": {"limits": {"gpu": "1"}},
                },
                {"name": "injected", "image": "mesh"},
            ],
        },
    }
    before = {
        "spec": {"replicas": 2, "containers": [{"name": "main", "image": "x", "resources": {"limits": {"gpu": 1}}}]}
    }
    after = {
        "spec": {
            "replicas": 2,
            "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "g"}]}}],
        }
    }
    found = merged(live, before, after)
    main, injected = found["spec"]["containers"]
    assert main == {
        "name": "main",
        "image": "x",
        "terminationMessagePath": "/dev/x",
        "resources": {"claims": [{"name": "g"}]},
    }
    assert injected == live["spec"]["containers"][1]  # type: ignore[index]
    assert found["spec"]["replicas"] == 7, "an autoscaler's number stays"
    assert found["metadata"] == live["metadata"]
