"""JSON of an API server with anything that users may write: reading ends, and readable objects are read."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drabridge.kube.json_reader import (
    MOST_DEPTH,
    ClaimFields,
    ObjectView,
    decode,
    event_of,
    identity_of,
    page_of,
    shallow,
)

LEAVES = st.none() | st.booleans() | st.integers() | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30)
DEEP = "[" * 20_000 + "]" * 20_000


def nested(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [1, value, "]"]
    return value


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(VALUES, st.integers(0, MOST_DEPTH - 40))
@settings(max_examples=40)
def test_what_is_not_deep_is_left_as_it_is(value: Any, levels: int) -> None:
    value = nested(value, levels)
    if depth(value) <= MOST_DEPTH:
        assert json.loads(shallow(json.dumps(value).encode())) == value


@given(VALUES)
@settings(max_examples=40)
def test_what_is_too_deep_is_null_and_all_around_it_stays(value: Any) -> None:
    found = json.loads(shallow(json.dumps({"a": value, "deep": nested(value, 200), "z": value}).encode()))
    if depth(value) < MOST_DEPTH - 1:
        assert (found["a"], found["z"]) == (value, value)
    assert depth(found) <= MOST_DEPTH + 1


@pytest.mark.parametrize("torn", ["[" * 5_000, '{"a":' * 5_000, DEEP[:-1], f'"{DEEP}', f'[{DEEP}"'])
def test_truncated_text_is_a_value_error(torn: str) -> None:
    with pytest.raises(ValueError):
        decode(torn)


@pytest.mark.parametrize("raw", [b'"\\ud800"', b'"\xff\xfe"', b'"\\udc00\\ud800"'])
def test_text_that_no_parser_takes_leaves_the_objects_beside_it_readable(raw: bytes) -> None:
    """An API server passes opaque parameters on as they came."""
    sound = '{"metadata":{"name":"\\ud83d\\ude00 \\\\ud800"}}'
    page = page_of(b'{"items":[{"metadata":{"name":"a"},"spec":%b},%b]}' % (raw, sound.encode()))
    view = ObjectView(lambda obj: obj["metadata"]["name"], ClaimFields)
    assert [view(one) for one in page.items] == ["a", "\U0001f600 \\ud800"]
    assert isinstance(decode(b'{"a":%b}' % raw)["a"], str)


@pytest.mark.parametrize(
    "text", [b'\\"', b"\\ud800", b"\xff", b"\\ud83d\\ude00"], ids=["escape", "half", "no text", "pair"]
)
def test_reading_text_that_the_parser_refuses_costs_a_few_times_its_size(text: bytes) -> None:
    """A page of claims has megabytes, and the agent 256 MiB for all that it does."""
    data = b'["%b",%b]' % (text * ((1 << 20) // len(text)), DEEP.encode())
    tracemalloc.start()
    try:
        assert isinstance(decode(data)[0], str)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * len(data)


def test_objects_beside_a_deep_one_are_read_and_so_is_the_deep_one() -> None:
    claim = '{"metadata":{"name":"%s","uid":"u"},"spec":%s,"status":{"allocation":{"devices":{"results":[]}}}}'
    page = page_of(f'{{"metadata":{{"continue":"c"}},"items":[{claim % ("a", DEEP)},{claim % ("b", 1)}]}}'.encode())
    view = ObjectView(lambda obj: (obj["metadata"]["name"], obj["status"]), ClaimFields)
    allocation: dict[str, Any] = {"allocation": {"devices": {"results": []}}}
    assert [view(one) for one in page.items] == [("a", allocation), ("b", allocation)]
    assert page.following == "c"
    event = event_of(f'{{"type":"ADDED","object":{claim % ("a", DEEP)}}}'.encode())
    assert view(event.object) == ("a", allocation)
    assert str(identity_of(event.object)) == "a"
