"""Every manifest against the API's own schema, and the kustomize base against the chart.

The schemas are those of the API servers' OpenAPI documents, as the package ``kubernetes-validate`` ships them, strict:
a field that the API does not know is an error. They say nothing of what the server's code checks beyond them; CEL of
the policies is run in ``test_policy.py``. PodMonitor is no part of Kubernetes: its few fields are written down here.
"""

from __future__ import annotations

import copy

import pytest
import yaml

from deploy.generate import ABOUT, KUSTOMIZE, SCHEMA, SWITCH, files, without_helm
from deploy.helm import ROOT, hooks, manifests, one
from drabridge import __version__
from podresources.cli.parser import parse
from tests.deploy.renders import (
    EVERYTHING,
    LEGACY_ONLY,
    NETWORK_POLICY,
    UDEV,
    VARIANTS,
    VERSIONS,
    Json,
    by_identity,
    default_render,
)
from tests.support.api_schemas import ValidationError, validate

POD_MONITOR_ENDPOINT = {"port", "path", "interval", "honorLabels", "relabelings"}
"""Of monitoring.coreos.com/v1 PodMetricsEndpoint; seen in the Prometheus operator's API reference."""


def check(obj: Json, version: str) -> None:
    """Raises for an object that the API of that version does not take."""
    if obj["kind"] == "PrometheusRule":
        rules = [rule for group in obj["spec"]["groups"] for rule in group["rules"]]
        assert {"alert", "expr"} <= set.intersection(*({*rule} for rule in rules))
        return
    if obj["apiVersion"] == "monitoring.coreos.com/v1":
        assert obj["spec"].keys() == {"selector", "podMetricsEndpoints"}
        assert all(endpoint.keys() <= POD_MONITOR_ENDPOINT for endpoint in obj["spec"]["podMetricsEndpoints"])
        return
    validate(obj, version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_the_api_takes_every_manifest(values: Json, version: str) -> None:
    for obj in [*manifests(values), *hooks(values), *hooks(values, when="test")]:
        check(obj, version)


EXPORTER = [
    obj
    for name in ("exporter", "podmonitor")
    for obj in yaml.safe_load_all((ROOT / f"deploy/podresources/{name}.yaml").read_text())
]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_api_takes_the_exporters_manifests(version: str) -> None:
    assert [obj["kind"] for obj in EXPORTER] == ["DaemonSet", "Service", "PodMonitor"]
    for obj in EXPORTER:
        check(obj, version)


def test_the_exporter_is_found_by_its_service_and_monitor() -> None:
    daemon_set, service, monitor = EXPORTER
    ports = {service["spec"]["ports"][0]["targetPort"], monitor["spec"]["podMetricsEndpoints"][0]["port"]}
    pod = daemon_set["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    labels = pod["metadata"]["labels"].items()
    assert daemon_set["spec"]["selector"]["matchLabels"].items() <= labels
    assert service["spec"]["selector"].items() <= labels
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels
    (port,) = container["ports"]
    assert ports == {port["name"]}
    program, *words = container["command"]
    assert (program, container["image"].rpartition(":")[2]) == ("podresources", __version__)
    assert parse(words).listen[1] == port["containerPort"]
    assert {obj["metadata"]["namespace"] for obj in EXPORTER} == {"kube-system"}


def test_the_variants_render_every_kind_that_the_chart_has() -> None:
    kinds = {obj["kind"] for values in (EVERYTHING, NETWORK_POLICY) for obj in manifests(values)}
    assert kinds == {
        *("ConfigMap", "ClusterRole", "ClusterRoleBinding", "DaemonSet", "DeviceClass", "NetworkPolicy", "PodMonitor"),
        *("PrometheusRule", "ServiceAccount", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    }


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("DaemonSet", ("spec", "template", "spec", "hostNetwrk"), True),
        ("DaemonSet", ("spec", "updateStrategy", "rollingUpdate", "maxSurge"), []),
        ("ClusterRole", ("rules",), [{"apiGroups": [""], "resources": ["nodes"]}]),
        ("ValidatingAdmissionPolicy", ("spec", "validations"), [{"message": "no expression"}]),
        ("DeviceClass", ("spec", "extendedResourceNme"), "a/b"),
    ],
)
def test_a_broken_manifest_is_not_taken(kind: str, path: tuple[str, ...], value: object) -> None:
    obj = copy.deepcopy(next(obj for obj in manifests(EVERYTHING) if obj["kind"] == kind))
    place = obj
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValidationError):
        check(obj, "1.36")


def test_selectors_and_references_meet() -> None:
    objects = manifests({**NETWORK_POLICY, "podMonitor": {"enabled": True}})
    daemon_set = one(objects, "DaemonSet")
    labels = daemon_set["spec"]["template"]["metadata"]["labels"].items()
    assert daemon_set["spec"]["selector"]["matchLabels"].items() <= labels
    assert one(objects, "PodMonitor")["spec"]["selector"]["matchLabels"].items() <= labels
    assert one(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items() <= labels
    account = one(objects, "ServiceAccount")["metadata"]["name"]
    assert daemon_set["spec"]["template"]["spec"]["serviceAccountName"] == account
    binding = one(objects, "ClusterRoleBinding")
    assert binding["roleRef"]["name"] == one(objects, "ClusterRole")["metadata"]["name"]
    assert binding["subjects"][0]["name"] == account
    policies = {obj["metadata"]["name"] for obj in objects if obj["kind"] == "ValidatingAdmissionPolicy"}
    bound = {obj["spec"]["policyName"] for obj in objects if obj["kind"] == "ValidatingAdmissionPolicyBinding"}
    assert policies == bound
    configured = {
        volume["configMap"]["name"]
        for volume in daemon_set["spec"]["template"]["spec"]["volumes"]
        if "configMap" in volume
    }
    assert configured == {one(objects, "ConfigMap")["metadata"]["name"]}
    ports = {port["name"] for port in daemon_set["spec"]["template"]["spec"]["containers"][0].get("ports", ())}
    endpoints = one(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert {endpoint["port"] for endpoint in endpoints if "port" in endpoint} == ports  # none on the host's network


# --- generated files ------------------------------------------------------------------------------------------------


def test_generated_files_are_current() -> None:
    """``python -m deploy.generate`` after a change of the chart or of the configuration model."""
    wanted = dict(files())
    assert {ABOUT, SCHEMA, SWITCH, *KUSTOMIZE.glob("*")} <= wanted.keys()
    for path, text in wanted.items():
        assert path.read_text() == text, f"{path.name} is not current: python -m deploy.generate"


def test_the_kustomize_base_is_the_chart_with_its_defaults() -> None:
    """Read as kustomize reads it, without kubectl (``test_kubectl.py``): the base names resources, nothing else."""
    kustomization = yaml.safe_load((KUSTOMIZE / "kustomization.yaml").read_text())
    assert kustomization.keys() == {"apiVersion", "kind", "resources"}
    objects = [yaml.safe_load((KUSTOMIZE / name).read_text()) for name in kustomization["resources"]]
    namespace = one(objects, "Namespace")
    check(namespace, "1.36")
    objects.remove(namespace)
    assert by_identity(objects) == by_identity(default_render())


@pytest.mark.parametrize("values", [UDEV, LEGACY_ONLY], ids=["udev", "legacy only"])
def test_the_comparison_sees_a_difference(values: Json) -> None:
    other = [without_helm(obj) for obj in manifests(values, name="drabridge", namespace="drabridge")]
    assert by_identity(other) != by_identity(default_render())
