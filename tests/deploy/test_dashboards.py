"""The agent's dashboard and alerts: PromQL that parses, about metrics and labels that the agent has."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from deploy.helm import ROOT
from drabridge.telemetry.metrics import COORDINATOR_TABLE, TABLE
from tests.support import promql
from tests.support.agent_promql import EXPORTED, SUFFIXES, TARGET_LABELS, faults, parse
from tests.support.dashboards import assert_panels_are_laid_out
from tests.support.promql import named_labels, selectors

FOLDER = ROOT / "deploy/dashboards"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "drabridge-grafana.json").read_text())
RULES: dict[str, Any] = yaml.safe_load((FOLDER / "drabridge-alerts.yaml").read_text())
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]] + [rule["expr"] for rule in ALERTS]


# Metrics for people who look closer; everything else is on the dashboard or behind an alert.
FOR_PEOPLE = {
    "drabridge_standby",
    "drabridge_evictions_total",
    "drabridge_device_info",
    "drabridge_device_use_unknown",
    "drabridge_udev_events_total",
    "drabridge_inventory_reconcile_duration_seconds",
    "drabridge_inventory_monitor_restarts_total",
    "drabridge_nvml_failures_total",
    "drabridge_nvml_xids_total",
    "drabridge_podresources_request_duration_seconds",
    "drabridge_unreadable_objects_total",
    "drabridge_claim_status_writes_total",
}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_expression_is_promql_about_metrics_and_labels_that_exist(expression: str) -> None:
    assert list(selectors(parse(expression)))
    assert faults(expression) == []


def test_wrong_expressions_are_seen() -> None:
    assert faults("drabridge_registred == 0") == ["there is no metric drabridge_registred"]
    assert faults('drabridge_registered{lane="dra"}') == ["drabridge_registered has no label lane"]
    assert faults("sum by (pod) (drabridge_registered)") == ["no metric here has the label pod"]
    with pytest.raises(ValueError):
        parse("sum by (api drabridge_registered)")
    with pytest.raises(ValueError):
        parse('drabridge_registered{api="$unknown"}')


def test_every_metric_is_on_the_dashboard_or_in_an_alert() -> None:
    used = {metric for expression in EXPRESSIONS for metric, _ in selectors(parse(expression))}
    unused = {
        definition.full_name
        for definition in (*TABLE.values(), *COORDINATOR_TABLE.values())
        if used.isdisjoint(definition.full_name + suffix for suffix in SUFFIXES[definition.kind])
    }
    assert unused == FOR_PEOPLE


def test_label_values_that_expressions_compare_with_exist() -> None:
    """A matcher on a value that the agent never writes makes an alert that never fires."""
    from drabridge.dra.observer import LeaseOutcome
    from drabridge.ledger.entries import Lane, Owner

    lanes, owners = {str(lane) for lane in Lane}, {str(owner) for owner in Owner}
    results = {"failed", "OK", *map(str, LeaseOutcome)}
    compared = 0
    for expression in EXPRESSIONS:
        for node in promql.nodes(parse(expression)):
            for matcher in getattr(getattr(node, "matchers", None), "matchers", ()):
                known = {"lane": lanes, "owner": owners, "api": {"dra", "deviceplugin"}, "result": results}
                if matcher.name in known:
                    compared += 1
                    assert set(matcher.value.split("|")) <= known[matcher.name], expression
    assert compared >= 5


def test_alerts_have_a_severity_a_summary_and_a_runbook() -> None:
    assert {group["name"] for group in RULES["groups"]} == {"drabridge"}
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)
    for rule in ALERTS:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["alert"].startswith("Drabridge")
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"].keys() == {"summary", "runbook"}
        assert all(len(text) > 20 and "\n" not in text.strip() for text in rule["annotations"].values())


def test_summaries_name_labels_that_the_alert_keeps() -> None:
    for rule in ALERTS:
        tree = parse(rule["expr"])
        kept = named_labels(tree) or {label for metric, _ in selectors(tree) for label in EXPORTED[metric]}
        named = {word.partition("}")[0].strip() for word in rule["annotations"]["summary"].split("$labels.")[1:]}
        assert named <= kept | {"instance"}, rule["alert"]


def test_the_dashboard_has_the_shape_that_grafana_imports() -> None:
    assert DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD["uid"] != "podresources"
    assert "id" not in DASHBOARD
    variables = {entry["name"]: entry["type"] for entry in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource": "datasource", "instance": "query", "resource": "query", "namespace": "query"}
    assert_panels_are_laid_out(PANELS)


@pytest.mark.parametrize(
    "entry", [entry for entry in DASHBOARD["templating"]["list"] if entry["type"] == "query"], ids=lambda e: e["name"]
)
def test_variables_ask_for_labels_that_exist(entry: dict[str, Any]) -> None:
    metric, label = entry["definition"].removeprefix("label_values(").removesuffix(")").split(", ")
    assert label in EXPORTED[metric] | TARGET_LABELS
