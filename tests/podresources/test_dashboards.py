"""The dashboard and the rules: complete, valid, about metrics that exist, and joined as described."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from podresources import KubeletFeatures, Support
from podresources.exporter import Exposition
from podresources.model import SocketIdentity
from podresources.normalise import allocatable, snapshot
from podresources.transport import Attempt, Rpc
from tests.podresources.sample_vectors import DCGM, GPU0, GPU1, held, joined
from tests.support.dashboards import assert_panels_are_laid_out
from tests.support.podresources_server import (
    capacity,
    claim,
    claim_device,
    container,
    device,
    large_listing,
    listing,
    pod,
)
from tests.support.promql import evaluate, named_labels, parse, selectors

FOLDER = Path(__file__).resolve().parents[2] / "deploy/dashboards"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "podresources-grafana.json").read_text())
RULES: dict[str, Any] = yaml.safe_load((FOLDER / "podresources-rules.yaml").read_text())
ALL_RULES: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]] + [rule["expr"] for rule in ALL_RULES]

TARGET_LABELS = {"instance", "job"}
DCGM_LABELS = {"UUID", "gpu", "modelName", "device", "Hostname"}
"""Labels of every dcgm-exporter series (its default template)."""
DCGM_METRICS = {"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"}
SOCKET = SocketIdentity(1, 2, 3)


def exported() -> dict[str, set[str]]:
    """Every series that the exporter can give, with its labels: from an exporter that has seen everything."""
    response = listing(pod("p", container("c", device("e.com/x", "1"), claims=(claim("c", claim_device("g")),))))
    response.pod_resources[0].containers[0].cpu_ids.append(1)
    response.pod_resources[0].containers[0].memory.add(memory_type="memory", size=1)
    node = capacity(device("e.com/x", "1"))
    node.memory.add(memory_type="memory", size=1)
    exposition = Exposition()
    exposition.observe(Attempt(Rpc.LIST, "INTERNAL", 0.1))
    exposition.update(snapshot(response, SOCKET), allocatable(node, SOCKET), KubeletFeatures(get=Support.YES))
    cut = Exposition(max_series=1)
    cut.update(snapshot(large_listing(2, 4), SOCKET), None, KubeletFeatures())
    registry = CollectorRegistry()
    found: dict[str, set[str]] = {}
    for collector in (exposition, cut):
        registry = CollectorRegistry()
        registry.register(collector)
        for family in registry.collect():
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


EXPORTED = exported()
RECORDED = {rule["record"] for rule in ALL_RULES if "record" in rule}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_expression_is_promql_about_metrics_and_labels_that_exist(expression: str) -> None:
    tree = parse(expression)
    found = list(selectors(tree))
    assert found
    known: set[str] = set(TARGET_LABELS)
    for metric, matched in found:
        if metric in RECORDED or metric in DCGM_METRICS:
            labels = DCGM_LABELS | EXPORTED["podresources_device_allocation_info"]
        else:
            labels = EXPORTED[metric]
        assert matched <= labels | TARGET_LABELS, metric
        known |= labels | ({"UUID"} if "label_replace" in expression else set())
    assert named_labels(tree) <= known


def test_nothing_is_exported_that_neither_dashboard_nor_rules_nor_people_need() -> None:
    """The families of kubelet's own features and of CPUs and memory are for people; every other one is used."""
    used = {metric for expression in EXPRESSIONS for metric, _ in selectors(parse(expression))}
    unused = {name for name in EXPORTED if not name.endswith(("_created", "_sum", "_count")) and name not in used}
    assert unused == {
        "podresources_last_success_timestamp_seconds",
        "podresources_pods",
        "podresources_kubelet_feature",
        "podresources_device_holders",
        "podresources_exclusive_cpus",
        "podresources_pinned_memory_bytes",
        "podresources_allocatable_cpus",
        "podresources_allocatable_memory_bytes",
    }


def test_rules_have_the_fields_of_a_rule_file() -> None:
    names = [group["name"] for group in RULES["groups"]]
    assert len(set(names)) == len(names)
    for rule in ALL_RULES:
        allowed = (
            {"record", "expr", "labels"} if "record" in rule else {"alert", "expr", "for", "labels", "annotations"}
        )
        assert rule.keys() <= allowed
        assert ("record" in rule) != ("alert" in rule)
        if "alert" in rule:
            assert rule["annotations"]["summary"]
            assert rule["labels"]["severity"] in ("info", "warning", "critical")


def test_the_dashboard_has_the_shape_that_grafana_imports() -> None:
    assert DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD["title"]
    assert "id" not in DASHBOARD, "an id of another Grafana would overwrite a dashboard there"
    variables = {entry["name"]: entry["type"] for entry in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource": "datasource", "instance": "query", "namespace": "query"}
    assert_panels_are_laid_out(PANELS)
    for panel in PANELS:
        assert {"defaults", "overrides"} <= panel["fieldConfig"].keys()


@pytest.mark.parametrize("entry", [entry for entry in DASHBOARD["templating"]["list"] if entry["type"] == "query"])
def test_variables_ask_for_labels_that_exist(entry: dict[str, Any]) -> None:
    metric, label = entry["definition"].removeprefix("label_values(").removesuffix(")").split(", ")
    assert label in EXPORTED[metric] | TARGET_LABELS


def rule(name: str) -> str:
    (expression,) = (rule["expr"] for rule in ALL_RULES if rule.get("record") == name)
    return str(expression)


def test_the_join_gives_each_holder_its_gpus_utilisation_also_when_it_is_shared() -> None:
    samples = held("solo", GPU1) | held("half-a", f"{GPU0}::0") | held("half-b", f"{GPU0}::1") | DCGM
    samples |= held("other-hardware", "card-7") | held("without-dcgm", "GPU-00000000-1111-4000-8000-000000000000")
    info = evaluate(parse(rule("podresources:gpu_allocation_info")), samples)
    recorded = {labels - {("__name__", "podresources_device_allocation_info")}: value for labels, value in info.items()}
    samples |= {
        labels | {("__name__", "podresources:gpu_allocation_info")}: value for labels, value in recorded.items()
    }
    assert joined(rule("namespace_pod_container:dcgm_gpu_utilization:percent"), samples) == {
        ("solo", GPU1, "1"): 15,
        ("half-a", f"{GPU0}::0", "0"): 80,
        ("half-b", f"{GPU0}::1", "0"): 80,
    }
