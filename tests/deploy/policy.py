"""Runs the chart's admission policies on requests, by a CEL implementation (celpy) that is not the API server's.

What that proves: the expressions parse, and say yes and no where they should. What only an API server can say (type
checks, cost limits, optional syntax) stays for the cluster tests; the expressions use nothing beyond plain CEL.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import celpy

from drabridge.sim.api.auth import User

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """What an admission request says. ``resource`` is ``plural`` or ``plural/subresource``."""

    operation: str
    resource: str
    user: User
    new: Json | None
    old: Json | None

    @property
    def context(self) -> Json:
        plural, _, subresource = self.resource.partition("/")
        info = {
            "operation": self.operation,
            "resource": {"group": "resource.k8s.io", "version": "v1", "resource": plural},
            "subResource": subresource,
            "userInfo": self.user.info,
        }
        return {"request": info, "object": self.new, "oldObject": self.old}


def _evaluate(expression: str, context: Json) -> Any:
    environment = celpy.Environment()
    program = environment.program(environment.compile(expression))
    activation = {name: celpy.json_to_cel(value) for name, value in context.items()}
    return program.evaluate(activation)


def matches(policy: Json, request: Request) -> bool:
    """Whether the policy is about this request: its rules and its conditions."""
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    about = any(request.operation in rule["operations"] and request.resource in rule["resources"] for rule in rules)
    return about and all(_evaluate(one["expression"], request.context) for one in policy["spec"]["matchConditions"])


def refusals(policies: Sequence[Json], request: Request) -> list[str]:
    """The messages of every validation that says no; an expression that fails is a no (failurePolicy Fail)."""
    found = []
    for policy in policies:
        if not matches(policy, request):
            continue
        variables: Json = {}
        for variable in policy["spec"]["variables"]:
            value = _evaluate(variable["expression"], {**request.context, "variables": variables})
            variables[variable["name"]] = json.loads(json.dumps(value))
        context = {**request.context, "variables": variables}
        for validation in policy["spec"]["validations"]:
            try:
                holds = bool(_evaluate(validation["expression"], context))
            except celpy.CELEvalError as error:
                found.append(f"{validation['expression']}: {error}")
                continue
            if not holds:
                spoken = validation.get("messageExpression")
                found.append(str(_evaluate(spoken, context)) if spoken else validation["message"])
    return found
