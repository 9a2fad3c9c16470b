"""The dashboard and the rules: complete, valid, about metrics that exist, and joined as described."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from podresources import KubeletFeatures, Support
from podresources.exporter import Exposition
from podresources.model import SocketIdentity
from podresources.normalise import allocatable, snapshot
from podresources.resolve.resolver import Resolved
from podresources.transport import Attempt, Rpc
from tests.podresources.sample_vectors import (
    AMD,
    DCGM,
    DCGM_MIG,
    GPU0,
    GPU1,
    INTEL,
    KUBE_POD_INFO,
    held,
    joined,
    resolved,
)
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
from tests.support.promql import Vector, evaluate, named_labels, parse, selectors

FOLDER = Path(__file__).resolve().parents[2] / "deploy/dashboards"
DASHBOARDS: dict[str, dict[str, Any]] = {
    name: json.loads((FOLDER / f"{name}-grafana.json").read_text())
    for name in ("podresources", "podresources-exporters")
}
RULES: dict[str, Any] = yaml.safe_load((FOLDER / "podresources-rules.yaml").read_text())
ALL_RULES: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
PANELS: list[dict[str, Any]] = [panel for dashboard in DASHBOARDS.values() for panel in dashboard["panels"]]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]] + [rule["expr"] for rule in ALL_RULES]
VARIABLES = [entry for dashboard in DASHBOARDS.values() for entry in dashboard["templating"]["list"]]

TARGET_LABELS = {"instance", "job", "node"}
DCGM_LABELS = {"UUID", "gpu", "pci_bus_id", "modelName", "device", "Hostname"}
"""Labels of every series of NVIDIA/dcgm-exporter (internal/pkg/rendermetrics/render_metrics.go)."""
AMD_LABELS = {"gpu_id", "serial_number", "card_model", "hostname", "pod", "namespace", "container", "gpu_partition_id"}
"""Labels that ROCm/device-metrics-exporter always sets (docs/configuration/configmap.md); gpu_uuid is optional."""
INTEL_LABELS = {"hw_id", "hw_name", "hw_gpu_task", "pci_bdf"}
"""Of intel/xpumanager (receiver/sysman/metadata.yaml), as Prometheus writes OpenTelemetry's names."""
POD_INFO_LABELS = {"namespace", "pod", "uid", "node", "created_by_kind", "created_by_name", "host_ip", "pod_ip"}
"""Of kubernetes/kube-state-metrics (docs/metrics/workload/pod-metrics.md)."""
OTHERS = {
    "DCGM_FI_DEV_GPU_UTIL": DCGM_LABELS,
    "DCGM_FI_DEV_FB_USED": DCGM_LABELS,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": DCGM_LABELS | {"GPU_I_ID", "GPU_I_PROFILE"},
    "gpu_gfx_activity": AMD_LABELS,
    "hw_gpu_utilization_ratio": INTEL_LABELS,
    "kube_pod_info": POD_INFO_LABELS,
}
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
    listed = snapshot(response, SOCKET)
    found_nothing = Resolved(asked=("agent", "cdi"))
    exposition.update(listed, allocatable(node, SOCKET), KubeletFeatures(get=Support.YES), found_nothing)
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
        if metric in RECORDED:
            joined_with = set().union(*OTHERS.values())
            held = EXPORTED["podresources_device_allocation_info"] | EXPORTED["podresources_device_resolved_info"]
            labels = joined_with | held
        else:
            labels = OTHERS.get(metric) or EXPORTED[metric]
        assert matched <= labels | TARGET_LABELS, metric
        known |= labels | set(re.findall(r'label_replace\(.*?,\s*"(\w+)", "\$1"', expression, re.DOTALL))
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


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_dashboard_has_the_shape_that_grafana_imports(name: str) -> None:
    dashboard = DASHBOARDS[name]
    assert dashboard["schemaVersion"] >= 36
    assert dashboard["title"]
    assert "id" not in dashboard, "an id of another Grafana would overwrite a dashboard there"
    assert dashboard["uid"] == name
    variables = {entry["name"]: entry["type"] for entry in dashboard["templating"]["list"]}
    assert variables == {"datasource": "datasource", "instance": "query", "namespace": "query"}
    assert_panels_are_laid_out(dashboard["panels"])
    for panel in dashboard["panels"]:
        assert {"defaults", "overrides"} <= panel["fieldConfig"].keys()


@pytest.mark.parametrize("entry", [entry for entry in VARIABLES if entry["type"] == "query"])
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


def recorded(name: str, samples: Vector) -> Vector:
    """What a rule makes of the samples, under the rule's name."""
    found = evaluate(parse(rule(name)), samples)
    return {frozenset({**dict(labels), "__name__": name}.items()): value for labels, value in found.items()}


def by_pod(name: str, samples: Vector, *brought: str) -> dict[tuple[str, ...], float]:
    """``(pod, values of the labels that the join brought)`` to value; a pod that is there twice is a failure."""
    found: dict[tuple[str, ...], float] = {}
    for labels, value in recorded(name, samples).items():
        key = (dict(labels)["pod"], *(dict(labels).get(label, "") for label in brought))
        assert key not in found, f"twice: {key}"
        found[key] = value
    return found


def test_the_join_has_claims_once_they_are_resolved_and_every_holder_once() -> None:
    """A device with limits is resolved too, and must not be counted twice."""
    samples = held("limits", GPU0) | resolved("limits", api="deviceplugin", device=GPU0, UUID=GPU0, source="id")
    samples |= resolved("claim", api="dra", driver="gpu.nvidia.com", device="gpu-1", UUID=GPU1)
    samples |= resolved("fpga", api="dra", driver="a.example.com", device="fpga-1", pci_bus_id="0000:c1:00.0") | DCGM
    samples |= recorded("podresources:gpu_allocation_info", samples)
    assert by_pod("namespace_pod_container:dcgm_gpu_utilization:percent", samples, "gpu", "modelName") == {
        ("limits", "0", "H200"): 80,
        ("claim", "1", "H200"): 15,
    }


def test_the_join_keeps_the_mig_instances_of_a_gpu_apart() -> None:
    samples = resolved("whole", UUID=GPU0) | resolved("part", UUID=GPU1, GPU_I_ID="5") | DCGM_MIG
    samples |= resolved("unknown-part", UUID=GPU1, mig_uuid="MIG-1")
    assert by_pod("namespace_pod_container:dcgm_gr_engine_active:ratio", samples, "GPU_I_PROFILE") == {
        ("whole", ""): 0.8,
        ("part", "1g.18gb"): 0.25,
    }


def test_the_join_with_amds_exporter_is_by_serial_number() -> None:
    samples = resolved("a", serial_number="692409005408", pci_bus_id="0000:c1:00.0") | AMD
    samples |= resolved("nvidia", UUID=GPU0) | resolved("not-seen-by-amd", serial_number="7")
    assert by_pod("namespace_pod_container:amd_gfx_activity:percent", samples, "card_model") == {
        ("a", "102-G30211-0C"): 61
    }, "the busiest partition of the GPU"


def test_the_join_with_intels_exporter_is_by_node_and_pci_address() -> None:
    samples = resolved("here", pci_bus_id="0000:83:00.0", node="n1") | INTEL
    samples |= resolved("there", pci_bus_id="0000:83:00.0", node="n2") | resolved("no-node", pci_bus_id="0000:83:00.0")
    assert by_pod("namespace_pod_container:intel_gpu_utilization:ratio", samples) == {
        ("here",): 0.52,
        ("there",): 0.07,
    }


def test_the_join_with_kube_state_metrics_is_by_the_pods_uid() -> None:
    samples = resolved("web-0", uid="u-2") | resolved("old-0", uid="u-9") | resolved("unknown-0") | KUBE_POD_INFO
    assert by_pod("podresources:device_owner:info", samples, "created_by_kind", "created_by_name") == {
        ("web-0", "StatefulSet", "web"): 1
    }
