"""Read feature gates from a program's metrics."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families


def gates_of(text: str) -> dict[str, dict[str, Any]]:
    """Return stage and state by gate, from ``kubernetes_feature_enabled``. The stage of a general one is empty."""
    lines = [line for line in text.splitlines() if line.startswith("kubernetes_feature_enabled{")]
    samples = [one for family in text_string_to_metric_families("\n".join(lines)) for one in family.samples]
    return {
        one.labels["name"]: {"stage": one.labels["stage"], "enabled": one.value == 1.0}
        for one in sorted(samples, key=lambda one: one.labels["name"])
    }
