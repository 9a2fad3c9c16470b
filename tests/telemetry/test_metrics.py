"""The table of metrics: names, labels and help follow the guidelines, and every metric is on the page."""

from __future__ import annotations

import re

from drabridge.telemetry import metrics
from drabridge.telemetry.metrics import TABLE, Metrics


def test_every_metric_follows_the_guidelines() -> None:
    for definition in TABLE.values():
        assert re.fullmatch(r"drabridge_[a-z_]+", definition.full_name)
        assert definition.help.endswith(".")
        assert (definition.kind == "counter") == definition.full_name.endswith("_total")
        assert not {"pod_name", "container_name", "pod_namespace"} & set(definition.labels)


def test_all_gauges_are_there_even_without_samples() -> None:
    page = Metrics(lambda: ()).exposition().decode()
    for definition in TABLE.values():
        assert f"# TYPE {definition.full_name} {definition.kind}" in page
    assert metrics.reference().count("\n") == len(TABLE) + 1
