"""PromQL about the metrics of agent and coordinator: which series it has, and what is wrong with an expression."""

from __future__ import annotations

from typing import Any

from drabridge.telemetry.metrics import COORDINATOR_TABLE, TABLE
from tests.support import promql
from tests.support.promql import named_labels, selectors

VARIABLES = {**promql.GRAFANA, "$resource": "example.com/mem"}
TARGET_LABELS = {"instance", "job"}
SUFFIXES = {"gauge": ("",), "counter": ("",), "histogram": ("_bucket", "_sum", "_count")}


def exported() -> dict[str, set[str]]:
    """Every series name of agent and coordinator, with its labels."""
    return {
        definition.full_name + suffix: {*definition.labels, *(("le",) if suffix == "_bucket" else ())}
        for definition in (*TABLE.values(), *COORDINATOR_TABLE.values())
        for suffix in SUFFIXES[definition.kind]
    }


EXPORTED = exported()


def parse(expression: str) -> Any:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return promql.parse(expression)


def faults(expression: str) -> list[str]:
    """What is wrong with an expression, in words."""
    tree = parse(expression)
    found, known = [], set(TARGET_LABELS)
    for metric, matched in selectors(tree):
        if metric not in EXPORTED:
            found.append(f"there is no metric {metric}")
            continue
        known |= EXPORTED[metric]
        found += [f"{metric} has no label {label}" for label in matched - EXPORTED[metric] - TARGET_LABELS]
    return found + [f"no metric here has the label {label}" for label in named_labels(tree) - known]
