"""What the checker makes of wrong values: problems with their paths, whatever stands where, and no other exception."""

from __future__ import annotations

import contextlib

import pytest
from msgspec.structs import fields

from drabridge.config import import_generic_device_plugin, import_nvidia_device_plugin
from drabridge.config.checker import check
from drabridge.config.declaration import Model
from drabridge.config.json_schema import all_models
from drabridge.config.problems import Problems
from drabridge.config.schema import Config
from drabridge.migrate.plan.document import Plan

VALUES: list[object] = [
    None, True, 0, -1, 10**30, 1.5, float("nan"), float("-inf"), "", "x", "a b", "(", [], [[]], [None], ["x"], {},
    {"": None}, {"x": {}}, {1: 2},
]  # fmt: skip


DOCUMENTS = (Config, Plan, import_nvidia_device_plugin._File, import_generic_device_plugin._File)
MODELS = [model for document in DOCUMENTS for model in all_models(document)]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_any_value_in_any_place_is_taken_or_is_a_problem(model: type[Model]) -> None:
    for one in fields(model):
        for value in VALUES:
            with contextlib.suppress(Problems):
                check(model, {one.encode_name: value})


def test_a_limit_is_for_values_of_the_right_kind_only() -> None:
    """Of a mapping in a number's place the kind is told, and not how many keys it has."""
    with pytest.raises(Problems) as raised:
        check(Config, {"resources": {"a": 1}, "safety": {"settleSeconds": {"a": 1, "b": 2}}})
    told = {problem.path: problem.expected for problem in raised.value.items}
    assert told["safety", "settleSeconds"] == "a number"
    assert told["resources",] == "a list"


def test_items_that_are_wrong_count_for_the_length_of_their_list() -> None:
    """Else one wrong item, the only one, would be called none as well."""
    with pytest.raises(Problems) as raised:
        check(Config, {"resources": [3]})
    assert [problem.expected for problem in raised.value.items if problem.path[:1] == ("resources",)] == ["a mapping"]
