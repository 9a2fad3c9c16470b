"""The table of metrics: names, labels and help follow the guidelines, and every metric is on the page."""

from __future__ import annotations

import re

import pytest

from drabridge.telemetry import metrics
from drabridge.telemetry.metrics import COORDINATOR_TABLE, TABLE, Definition, Metrics


def test_every_metric_follows_the_guidelines() -> None:
    for definition in (*TABLE.values(), *COORDINATOR_TABLE.values()):
        assert re.fullmatch(r"drabridge_[a-z_]+", definition.full_name)
        assert definition.help.endswith(".")
        assert (definition.kind == "counter") == definition.full_name.endswith("_total")
        assert not {"pod_name", "container_name", "pod_namespace"} & set(definition.labels)


@pytest.mark.parametrize("table", [TABLE, COORDINATOR_TABLE])
def test_all_gauges_are_there_even_without_samples(table: dict[str, Definition]) -> None:
    page = Metrics(lambda: (), table).exposition().decode()
    typed = {f"# TYPE {definition.full_name} {definition.kind}" for definition in table.values()}
    assert {line for line in page.splitlines() if line.startswith("# TYPE ")} == typed
    assert metrics.reference(table).count("\n") == len(table) + 1
