"""The table of metrics: names, labels and help follow the guidelines, and every metric is on the page."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

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


def test_a_parser_reads_every_value_and_label_that_was_counted() -> None:
    page = Metrics(
        lambda: [("devices", ('a "b"\n\\', "faulty"), 3.0), ("held_seconds", ("n", "k", "o", "a", "r"), 2.5)]
    )
    page.count("kubelet_restarts")
    page.count("allocations", "dra", "r", "OK")
    page.count("allocations", "dra", "r", "OK", by=2)
    for seconds in (0.0005, 0.0006, 100.0, -1.0):
        page.time("inventory_reconcile_duration_seconds", seconds)
    found = {
        (sample.name, *(text for _, text in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.exposition().decode())
        for sample in family.samples
    }
    assert found["drabridge_devices", "faulty", 'a "b"\n\\'] == 3
    assert found["drabridge_held_seconds_total", "a", "n", "k", "o", "r"] == 2.5
    assert found["drabridge_kubelet_restarts_total",] == 1
    assert found["drabridge_events_dropped_total",] == 0
    assert found["drabridge_allocations_total", "dra", "r", "OK"] == 3
    bucket = "drabridge_inventory_reconcile_duration_seconds"
    assert [found[f"{bucket}_bucket", bound] for bound in ("0.0005", "0.001", "45.0", "+Inf")] == [2, 3, 3, 4]
    assert found[f"{bucket}_count",] == 4
    assert found[f"{bucket}_sum",] == pytest.approx(100.0011)
