"""Values of charts: written where the chart takes claims, and said what is lacking where it does not."""

from __future__ import annotations

import pytest
import yaml

from drabridge.migrate.convert.charts import CHARTS
from drabridge.migrate.convert.settings import Level
from tests.migrate.convert.checks import check

RELEASE = """\
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: r, namespace: flux}
spec:
  targetNamespace: ml
  chart: {spec: {chart: CHART}}
  values: VALUES
"""
LIMITS = "{resources: {limits: {nvidia.com/gpu: 1}}}"


def release(chart: str, values: str) -> str:
    return RELEASE.replace("CHART", chart).replace("VALUES", values)


def test_each_row_has_its_source_and_either_keys_or_a_hint() -> None:
    assert len({name for chart in CHARTS for name in chart.names}) == sum(len(chart.names) for chart in CHARTS)
    for chart in CHARTS:
        assert chart.source.count("/") >= 2
        assert bool(chart.hint) is not bool(chart.pods or chart.gpu)


def test_the_template_is_where_the_release_installs() -> None:
    found = check(release("ray-cluster", f"{{worker: {LIMITS}}}"))
    converted, template = [one for one in yaml.safe_load_all(found.text) if one]
    assert converted["spec"]["values"]["worker"] == {
        "resources": {"claims": [{"name": "gpu"}]},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "nvidia-gpu-1"}],
    }
    assert template["metadata"] == {"name": "nvidia-gpu-1", "namespace": "ml"}


def test_the_chart_that_makes_the_claim_is_told_the_class() -> None:
    found = check(release("ollama", "{ollama: {gpu: {enabled: true, type: amd, number: 2}}}"))
    gpu = yaml.safe_load(found.text)["spec"]["values"]["ollama"]["gpu"]
    assert gpu == {
        "enabled": True,
        "type": "amd",
        "number": 2,
        "draEnabled": True,
        "draDriverClass": "amd.example.com",
    }


def test_values_alone_get_no_second_document() -> None:
    found = check("ollama:\n  gpu:\n    enabled: true   # yes\n  models: {pull: [x]}\n")
    assert yaml.safe_load(found.text)["ollama"]["gpu"]["draEnabled"] is True
    assert "---" not in found.text
    assert len(found.pods) == 1


@pytest.mark.parametrize("more", ["draDriverClass: x", "draEnabled: false", "mig: {enabled: true}"])
def test_what_the_charts_claim_cannot_say_is_left(more: str) -> None:
    (finding,) = check(release("ollama", f"{{ollama: {{gpu: {{enabled: true, {more}}}}}}}")).findings
    assert finding.level is Level.LEFT
    assert more.partition(":")[0] in finding.message


@pytest.mark.parametrize(
    "values", ["{ollama: {gpu: {enabled: false}}}", "{ollama: {gpu: {enabled: true, draEnabled: true}}}"]
)
def test_nothing_is_written_where_nothing_is_asked_for(values: str) -> None:
    assert not check(release("ollama", f"{{ollama: {{gpu: {{{values}}}}}}}")).pods


@pytest.mark.parametrize(
    ("chart", "said"),
    [("jupyterhub", "singleuser.extraPodConfig takes"), ("our-own", "its templates would need resources.claims")],
)
def test_a_chart_that_takes_no_claims_is_named_with_what_it_lacks(chart: str, said: str) -> None:
    (finding,) = check(release(chart, LIMITS)).findings
    assert (finding.level, finding.line) == (Level.LEFT, 7)
    assert said.lower() in finding.hint.lower()
    assert "spec.postRenderers" in finding.hint


def test_an_application_of_argo_cd_with_several_sources() -> None:
    text = (
        "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: a, namespace: argocd}\nspec:\n"
        "  destination: {namespace: ml}\n  sources:\n  - chart: ray-cluster\n    helm:\n      valuesObject:\n"
        "        head:\n          resources: {limits: {nvidia.com/gpu: 1}}\n"
    )
    found = check(text)
    assert [one.namespace for one in found.templates] == ["ml"]
    assert len(found.pods) == 1
