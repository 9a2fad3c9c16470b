"""Check an admission policy's expressions against the types of what they read, as an API server does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cel_expr_python import cel

from tests.deploy.celtypes import declared
from tests.deploy.policy import GROUPS, KINDS

Json = dict[str, Any]


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
