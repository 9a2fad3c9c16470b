"""Say whether pods may run on a node, by labels and taints. Processor time and memory are not looked at. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from drabridge.migrate.report.facts import NodeFacts, Place, Requirement, Toleration

_REPELS = ("NoSchedule", "NoExecute")


def may_run(place: Place, node: NodeFacts) -> bool:
    """Whether the scheduler would let new pods with this place run there."""
    if node.cordoned or any(node.labels.get(key) != value for key, value in place.labels):
        return False
    if place.terms and not any(term and all(_met(one, node.labels) for one in term) for term in place.terms):
        return False
    return all(
        effect not in _REPELS or any(_bears(one, key, value, effect) for one in place.tolerations)
        for key, value, effect in node.taints
    )


def _met(one: Requirement, labels: Mapping[str, str]) -> bool:
    """Whether labels are as required (k8s.io/apimachinery/pkg/labels, Requirement.Matches)."""
    found = labels.get(one.key)
    match one.operator:
        case "In":
            return found in one.values
        case "NotIn":
            return found not in one.values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt":
            try:
                left, right = int(found or ""), int(one.values[0])
            except (ValueError, IndexError):
                return False
            return left > right if one.operator == "Gt" else left < right
        case _:
            return False


def _bears(one: Toleration, key: str, value: str, effect: str) -> bool:
    if one.effect and one.effect != effect:
        return False
    if not one.key:
        return one.exists
    return one.key == key and (one.exists or one.value == value)
