"""Runs the chart's admission policies on requests, by two CEL implementations that must agree.

One is Google's C++ implementation, the sibling of the Go one in API servers; the other is celpy, which shares no code
with it. Types are checked in ``test_policy_types.py``. What only an API server can say is what an expression costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import celpy
from cel_expr_python import cel

from deploy.helm import manifests
from drabridge.sim.apiserver.auth import User

Json = dict[str, Any]
EXTRA = "authentication.kubernetes.io"


class EvaluationError(Exception):
    """The expression has no value for this request. An API server counts it as a no (failurePolicy Fail)."""


@dataclass(frozen=True, slots=True)
class Request:
    """What an admission request says. ``resource`` is ``plural`` or ``plural/subresource``."""

    operation: str
    resource: str
    user: User
    new: Json | None
    old: Json | None
    old_token: bool = False
    """From a Secret: such a token says nothing in ``extra``; one that was asked for has an id there at least."""

    @property
    def context(self) -> Json:
        """The variables of an expression, as an API server fills them in (apiserver plugin/cel/condition.go)."""
        plural, _, subresource = self.resource.partition("/")
        group = GROUPS.get(plural, "resource.k8s.io")
        resource = {"group": group, "version": "v1", "resource": plural}
        kind = {"group": group, "version": "v1", "kind": KINDS[plural]}
        metadata = (self.new or self.old or {})["metadata"]
        request = {
            "kind": kind,
            "resource": resource,
            "subResource": subresource,
            "requestKind": kind,
            "requestResource": resource,
            "requestSubResource": subresource,
            "name": metadata["name"],
            "operation": self.operation,
            "userInfo": self._user_info(),
            "dryRun": False,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": f"{self.operation.title()}Options"},
        }
        if "namespace" in metadata:
            request["namespace"] = metadata["namespace"]
        return {"request": request, "object": self.new, "oldObject": self.old}

    def _user_info(self) -> Json:
        """Of a service account's token (apiserver serviceaccount/util.go): what it is bound to is in ``extra``."""
        info = {**self.user.info, "uid": "7a1c6a52-9a0f-4f6a-a9a8-3f4f4f4f0001"}
        if self.old_token:
            return info
        of_pod = {"pod-name": "drabridge-x7x7x", "pod-uid": "9b4f", "node-uid": "1c2d"} if self.user.node else {}
        more = {f"{EXTRA}/{key}": [value] for key, value in {"credential-id": "JTI=1", **of_pod}.items()}
        return {**info, "extra": more | info.get("extra", {})}


ENOUGH = 3
_compared: Counter[tuple[str, str]] = Counter()

KINDS = {
    "resourceslices": "ResourceSlice",
    "resourceclaims": "ResourceClaim",
    "events": "Event",
    "configmaps": "ConfigMap",
    "leases": "Lease",
    "nodes": "Node",
}
GROUPS = {
    "events": "",
    "nodes": "",
    "configmaps": "",
    "leases": "coordination.k8s.io",
}  # of those that are not in resource.k8s.io


@cache
def by_google(expression: str, names: frozenset[str]) -> Any:
    """The expression over these variables. Alone where there is very much to look at: celpy needs seconds."""
    return cel.NewEnv(variables=dict.fromkeys(names, cel.Type.DYN)).compile(expression)


@cache
def _by_celpy(expression: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(expression))


def evaluate(expression: str, context: Json) -> Any:
    """The value that both implementations find. Raises EvaluationError when both find none.

    Celpy takes a hundred times as long, so it is asked for the first few contexts with the same value.
    """
    value = by_google(expression, frozenset(context)).eval(data=context)
    found, failed = value.plain_value(), value.type() == cel.Type.ERROR
    compared = (expression, "error" if failed else repr(found))
    if _compared[compared] < ENOUGH:
        _compared[compared] += 1
        _compare(expression, context, found, failed)
    if failed:
        raise EvaluationError(f"{expression}: {found}")
    return found


def _compare(expression: str, context: Json, found: Any, failed: bool) -> None:
    other: Any
    try:
        other = _by_celpy(expression).evaluate({name: celpy.json_to_cel(one) for name, one in context.items()})
    except celpy.CELEvalError as error:
        other = error
    agree = isinstance(other, celpy.CELEvalError) if failed else found == other
    assert agree, f"{expression}: {found!r}, but celpy: {other!r}"


def matches(policy: Json, request: Request) -> bool:
    """Whether the policy is about this request: its rules and its conditions."""
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    about = any(request.operation in rule["operations"] and request.resource in rule["resources"] for rule in rules)
    return about and all(evaluate(one["expression"], request.context) for one in policy["spec"]["matchConditions"])


def refusals(policies: Sequence[Json], request: Request) -> list[str]:
    """The messages of every validation that says no."""
    found = []
    for policy in policies:
        if not matches(policy, request):
            continue
        variables: Json = {}
        for variable in policy["spec"]["variables"]:
            variables[variable["name"]] = evaluate(variable["expression"], {**request.context, "variables": variables})
        context = {**request.context, "variables": variables}
        for validation in policy["spec"]["validations"]:
            try:
                holds = evaluate(validation["expression"], context)
            except EvaluationError as error:
                found.append(str(error))
                continue
            if holds is not True:
                spoken = validation.get("messageExpression")
                found.append(str(evaluate(spoken, context)) if spoken else validation["message"])
    return found


POLICIES = [obj for obj in manifests() if obj["kind"] == "ValidatingAdmissionPolicy"]
