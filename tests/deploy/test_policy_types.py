"""The admission policies' expressions against the types of what they read, as an API server checks them.

It compiles each twice: with ``object`` of any type, and then an error rejects the policy; and with the types of every
matched kind, and then an error is a warning in the policy's status (not for subresources; here for these as well).
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.deploy.policy import POLICIES
from tests.deploy.policy_types import complaints
from tests.deploy.renders import VERSIONS

Json = dict[str, Any]
CLAIMS, EVENTS, SLICES = sorted(POLICIES, key=lambda policy: str(policy["metadata"]["name"]))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("policy", [SLICES, CLAIMS, EVENTS], ids=["slices", "claims", "events"])
def test_every_expression_has_the_types_of_what_it_reads(policy: Json, version: str) -> None:
    assert complaints(policy, version) == []


@pytest.mark.parametrize(
    ("policy", "old", "new", "said"),
    [
        (SLICES, "slice.spec.nodeName", "slice.spec.node", "undefined field 'node'"),
        (SLICES, "slice.spec.driver ==", "slice.spec.pool ==", "no matching overload for '_==_'"),
        (SLICES, "[object, oldObject].all(", "[object, oldObject].filter(", "not BOOL"),
        (SLICES, "variables.node", "variables.nod", "undeclared reference"),
        (SLICES, '" + variables.node + "', '" + 1 + "', "no matching overload for '_+_'"),
        (SLICES, "request.userInfo.username", "request.userInfo.name", "undefined field 'name'"),
        (SLICES, "request.userInfo.username ==", "variables.node ==", "undeclared reference"),
        (SLICES, "request.userInfo.extra", "request.userinfo.extra", "undefined field 'userinfo'"),
        (CLAIMS, "oldObject.status.allocation.nodeSelector)", "oldObject.status.nodeSelector)", "undefined field"),
        (CLAIMS, "field.values == [", "field.value == [", "undefined field 'value'"),
        (CLAIMS, "field.operator ==", "field.values ==", "no matching overload"),
        (CLAIMS, "term.matchFields.exists(", "term.matchFields.exist(", "undeclared reference to 'exist'"),
        (CLAIMS, "device.driver !=", "device.request !=", "undefined field 'request'"),
        (SLICES, "oldObject.spec.pool.name", "oldObject.spec.pool.generation", "no matching overload for '_==_'"),
        (EVENTS, "object.source.host ==", "object.source.node ==", "undefined field 'node'"),
        (EVENTS, "object.involvedObject.name ==", "object.regarding.name ==", "undefined field 'regarding'"),
        (CLAIMS, "object.status.allocation ==", "object.status.reservedFor ==", "no matching overload"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_expression_is_seen(policy: Json, old: str, new: str, said: str) -> None:
    changed = copy.deepcopy(policy)
    spec, times = changed["spec"], 0
    for one in (*spec["matchConditions"], *spec["variables"], *spec["validations"]):
        for key in ("expression", "messageExpression"):
            times += one.get(key, "").count(old)
            one |= {key: one[key].replace(old, new)} if key in one else {}
    assert times, "the chart no longer has what is broken here"
    try:
        found = complaints(changed)
    except RuntimeError as error:  # a variable that does not compile has no type for the others
        found = [str(error)]
    assert any(said in text for text in found), found
