"""The admission policies' expressions against the types of what they read, as an API server checks them.

It compiles each twice: with ``object`` of any type, and then an error rejects the policy; and with the types of every
matched kind, and then an error is a warning in the policy's status (not for subresources; here for these as well).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from cel_expr_python import cel

from tests.deploy.celtypes import declared
from tests.deploy.policy import GROUPS, KINDS, POLICIES

Json = dict[str, Any]
VERSIONS = ("1.34", "1.36", "1.37")
CLAIMS, EVENTS, SLICES = sorted(POLICIES, key=lambda policy: str(policy["metadata"]["name"]))


def checked(policy: Json, kind: str, api_version: str, version: str, group: str) -> Iterator[str]:
    """What is wrong with each expression; empty for a good one.

    Result types: apiserver ``plugin/cel`` and ``admission/plugin/webhook/matchconditions``. A match condition sees no
    variables, a variable those before it, everything else all of them.
    """
    pool, known = declared(kind, api_version, version, group)
    spec = policy["spec"]
    for condition in spec["matchConditions"]:
        yield wrong(pool, known, condition["expression"], cel.Type.BOOL)
    for variable in spec["variables"]:
        yield wrong(pool, known, variable["expression"])
        compiled = cel.NewEnv(pool, variables=known).compile(variable["expression"])
        known = known | {f"variables.{variable['name']}": compiled.return_type()}
    for validation in spec["validations"]:
        yield wrong(pool, known, validation["expression"], cel.Type.BOOL)
        if "messageExpression" in validation:
            yield wrong(pool, known, validation["messageExpression"], cel.Type.STRING)


def wrong(pool: Any, known: Json, expression: str, wanted: cel.Type | None = None) -> str:
    try:
        found = cel.NewEnv(pool, variables=known).compile(expression).return_type()
    except RuntimeError as error:
        return f"{expression}: {error}"
    return f"{expression}: {found.name()}, not {wanted.name()}" if wanted is not None and found != wanted else ""


def complaints(policy: Json, version: str = "1.36") -> list[str]:
    """Of every compilation that an API server of this version makes of the policy."""
    found = []
    for rule in policy["spec"]["matchConstraints"]["resourceRules"]:
        for resource in rule["resources"]:
            for api_version in rule["apiVersions"]:
                plural = resource.partition("/")[0]
                group = GROUPS.get(plural, "resource.k8s.io")
                for kind in ("", KINDS[plural]):
                    found += [text for text in checked(policy, kind, api_version, version, group) if text]
    return found


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
