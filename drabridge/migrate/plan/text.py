"""Describe in words what a plan does, and afterwards which workloads are on claims. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from drabridge.migrate.plan.document import ALL, How, Move, Plan, Step, Way
from drabridge.migrate.report.document import Report, Workload, number

COLUMNS = ("step", "way", "workloads", "pods", "devices", "lanes", "fits")
HOW = {
    How.ROLLOUT: "rolled out",
    How.NEXT: "no pods now; the next ones have claims",
    How.ENDS: "its pods end by themselves; new ones have claims",
    How.BY_HAND: "its pods keep their limits until somebody makes them anew",
}
_NODES_SHOWN = 3


def rows(plan: Plan) -> list[dict[str, Any]]:
    """Return a row for each step."""
    return [
        {
            "step": step.name,
            "way": step.way.value,
            "workloads": len(step.moves),
            "pods": sum(move.pods for move in step.moves),
            "devices": sum(move.pods * move.devices for move in step.moves),
            "lanes": lanes_words(step.lanes),
            "fits": "no" if step.missing else "yes",
        }
        for step in plan.steps
    ]


def remarks(plan: Plan) -> Iterator[str]:
    """Yield remarks that are not in the rows."""
    for step in plan.steps:
        yield from (f"missing: {step.name}: {words}" for words in step.missing)
        yield from (f"note: {step.name}: {words}" for words in step.notes)
    yield from (f"left: {one.object}: {one.why}" for one in plan.left)


def explained(plan: Plan, step: Step) -> Iterator[str]:
    """Yield the lines that say what a step does, in order, and why it fits or does not."""
    place = next(index for index, one in enumerate(plan.steps, 1) if one.name == step.name)
    yield f"Step {step.name}, {place} of {len(plan.steps)}"
    before: dict[str, int | str] = {}
    for earlier in plan.steps[: place - 1]:
        before |= earlier.lanes
    actions = [*_actions(plan, step, before)]
    yield from (f"  {index}. {words}" for index, words in enumerate(actions, 1))
    if step.missing:
        yield "It does not fit. It lacks:"
        yield from (f"  - {words}" for words in step.missing)
    else:
        yield "It fits: each new pod finds its devices before or when an old one ends."
    yield from (f"note: {words}" for words in step.notes)


def _actions(plan: Plan, step: Step, before: Mapping[str, int | str]) -> Iterator[str]:
    for node, claims in step.lanes.items():
        of = f" of {plan.devices[node]}" if node in plan.devices else ""
        then = before.get(node)
        was = "as many as now" if then is None else f"{then}"
        what = f"all{of} devices" if claims == ALL else f"{claims}{of} devices"
        yield f"{node}: {what} are for claims (before: {was})"
    if step.way is Way.SWITCH:
        yield f"namespace {step.namespace}: new pods get claims of DeviceClass {plan.device_class}"
    for move in step.moves:
        if step.way is Way.MANIFESTS:
            yield f"{move.object}: its manifest is converted and applied"
        yield f"{move.object}: {_pods(move)}: {HOW[move.how]}"


def _pods(move: Move) -> str:
    return f"{number(move.pods, 'pod')} with {number(move.devices, 'device')} each"


def lanes_words(lanes: Mapping[str, int | str]) -> str:
    """Return how many devices of each node are for claims: of a few nodes, and the number of the others."""
    shown = ", ".join(f"{node}: {claims}" for node, claims in list(lanes.items())[:_NODES_SHOWN])
    more = len(lanes) - _NODES_SHOWN
    return f"{shown} and {more:,} more" if more > 0 else shown or "as they are"


# --- who is on claims -----------------------------------------------------------------------------------------------

CLAIMS = "on claims"
DRA = "limits, served by DRA"
LIMITS = "on limits"
BACK = "fell back to limits"
PENDING = "pending"
IDLE = "no pods"


def verified(report: Report, done: Set[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return a row for each workload with devices, first those that fell back.

    ``done``: (namespace, ``Deployment/chat``) of workloads that steps of a plan moved to claims. A workload fell back
    if it has pods with limits although its step is done, or beside its pods with claims.
    """
    rows = [
        {
            "namespace": one.namespace,
            "workload": f"{one.kind}/{one.name}",
            "resource": one.resource,
            "limits": one.pods.kubelet,
            "claims": one.pods.claims,
            "state": _state(one, (one.namespace, f"{one.kind}/{one.name}") in done),
        }
        for one in report.workloads
    ]
    return sorted(rows, key=lambda row: (row["state"] != BACK, row["namespace"], row["workload"], row["resource"]))


def _state(one: Workload, done: bool) -> str:
    pods = one.pods
    if pods.kubelet:
        return BACK if done or pods.claims else LIMITS
    if pods.claims:
        return CLAIMS
    if pods.dra:
        return DRA
    return PENDING if pods.pending else IDLE


def gone(done: Iterable[tuple[str, str]], rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the workloads that steps moved to claims and that now have no devices, or are gone."""
    there = {(row["namespace"], row["workload"]) for row in rows}
    yield from sorted(set(done) - there)
