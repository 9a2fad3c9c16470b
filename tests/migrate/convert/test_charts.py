"""Values of charts: written where the chart takes claims, and said what is lacking where it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from drabridge.cli import main
from drabridge.migrate.convert.charts import CHARTS, GPU, Chart
from drabridge.migrate.convert.conversion import Source, convert, convert_group
from drabridge.migrate.convert.left_over import State
from drabridge.migrate.convert.settings import Level
from tests.deploy.kubectl import KubectlRefusedError, kubectl
from tests.migrate.convert.chart_values import patches_of, release, values_for
from tests.migrate.convert.checks import CONVERT, RESOURCE, SETTINGS, check

LIMITS = "{resources: {limits: {nvidia.com/gpu: 1}}}"
AT_LIMIT = "/spec/template/spec/containers/0/resources/limits/nvidia.com~1gpu"
Json = dict[str, Any]


def test_each_row_has_its_source_and_either_keys_or_a_hint() -> None:
    assert len({chart.name for chart in CHARTS}) == len(CHARTS)
    for chart in CHARTS:
        assert chart.source.count("/") >= 2
        assert bool(chart.hint) is not bool(chart.pods or chart.gpu)
        assert not (chart.tried and chart.hint)


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
    "more", ["resources: {limits: {nvidia.com/gpu: 1}}", "knative: {enabled: true}"], ids=["limits", "knative"]
)
def test_ollama_stays_where_its_limits_would_stay_beside_the_claim(more: str) -> None:
    text = release("ollama", f"{{ollama: {{gpu: {{enabled: true}}}}, {more}}}")
    found = check(text)
    assert found.text == text
    assert found.unfinished


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


# --- charts whose values stay, and a patch says the claims ---------------------------------------------------------


BY_PATCH = [chart for chart in CHARTS if any(pod.claims is None for pod in chart.pods)]


@pytest.mark.parametrize("chart", BY_PATCH, ids=lambda chart: chart.name)
def test_a_patch_takes_out_what_the_values_ask_for_and_nothing_else(chart: Chart) -> None:
    values = values_for(chart)
    found = check(release(chart.name, json.dumps(values)))
    assert not [one for one in found.findings if one.level is not Level.NOTE]
    assert yaml.safe_load(found.text.partition("---")[0])["spec"]["values"] == values, "the values stay"
    (patch,) = patches_of(found.text)
    operations = yaml.safe_load(patch["patch"])
    tests = {one["path"]: one["value"] for one in operations if one["op"] == "test"}
    removed = [one["path"] for one in operations if one["op"] == "remove"]
    assert set(tests) == set(removed), "nothing goes that was not tested"
    assert {str(value) for value in tests.values()} == {"2"}
    assert {one["path"].rpartition("/")[2] for one in operations if one["op"] == "add"} == {"claims", "resourceClaims"}
    assert patch["target"]["kind"]
    assert "=" in patch["target"]["labelSelector"]
    assert State.LEFT not in {one.state for one in found.places}


@pytest.mark.parametrize("chart", BY_PATCH, ids=lambda chart: chart.name)
def test_what_a_chart_asks_for_by_itself_is_in_the_patch(chart: Chart) -> None:
    (pod,) = chart.pods
    if not pod.default:
        return
    found = check(release(chart.name, "{replicas: 1}"))
    (patch,) = patches_of(found.text)
    assert {"op": "test", "path": AT_LIMIT, "value": pod.default} in yaml.safe_load(patch["patch"])


@pytest.mark.kubectl
def test_other_limits_than_the_values_say_let_the_patch_fail(tmp_path: Path) -> None:
    """Values from elsewhere come on top: then nothing is changed, and Kustomize says why."""
    found = check(release("jellyfin", LIMITS))
    pod = kustomized(tmp_path, found.text, {GPU: 1, "memory": "1Gi"})["spec"]["template"]["spec"]
    assert pod["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "nvidia-gpu-1"}]
    assert pod["containers"][0]["resources"] == {"claims": [{"name": "gpu"}], "limits": {"memory": "1Gi"}}
    with pytest.raises(KubectlRefusedError, match="test failed"):
        kustomized(tmp_path, found.text, {GPU: 4})
    with pytest.raises(KubectlRefusedError):
        kustomized(tmp_path, found.text, {"cpu": 1})


def kustomized(folder: Path, release: str, limits: Json) -> Json:
    """What Kustomize makes of a Deployment with these limits by the patches of a release."""
    container = {"name": "jellyfin", "image": "i", "resources": {"limits": limits}}
    rendered = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "r-jellyfin", "labels": {"app.kubernetes.io/name": "jellyfin"}},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    (folder / "rendered.yaml").write_text(yaml.safe_dump(rendered))
    kustomization = {"resources": ["rendered.yaml"], "patches": patches_of(release)}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    found: Json = yaml.safe_load(kubectl("kustomize", str(folder)))
    return found


@pytest.mark.parametrize(
    ("chart", "values", "why"),
    [
        ("frigate", "{gpu: {nvidia: {enabled: true}}}", "NVIDIA_VISIBLE_DEVICES"),
        ("plex-media-server", "{pms: {gpu: {nvidia: {enabled: true}}}}", "NVIDIA_VISIBLE_DEVICES"),
        ("vllm-stack", "{servingEngineSpec: {modelSpec: [{name: m, requestGPU: 1, raySpec: {enabled: true}}]}}", "Ray"),
        ("vllm-stack", "{servingEngineSpec: {modelSpec: [{name: m, requestGPU: 1, requestGPUMem: 8}]}}", "part"),
        ("vllm-stack", "{servingEngineSpec: {modelSpec: [{requestGPU: 1}]}}", "no name"),
        ("nim-llm", "{multiNode: {enabled: true}}", "LeaderWorkerSet"),
        ("jellyfin", "{resources: {limits: {nvidia.com/gpu: half}}}", "no whole number"),
        (
            "app-template",
            f"{{defaultPodOptions: {{resourceClaims: [a]}}, controllers: {{m: {{containers: {{a: {LIMITS}}}}}}}}}",
            "instead of these",
        ),
    ],
)
def test_what_no_patch_can_say_is_left_with_its_reason(chart: str, values: str, why: str) -> None:
    text = release(chart, values)
    found = check(text)
    assert found.text == text
    assert [one for one in found.findings if one.level is Level.LEFT and why in one.message], found.findings


def test_a_version_without_the_key_is_left() -> None:
    values = f"{{controllers: {{m: {{containers: {{a: {LIMITS}}}}}}}}}"
    old = release("app-template, version: 3.5.1", values)
    (finding,) = check(old).findings
    assert "4.3 is the first" in finding.message
    found = check(old.replace("3.5.1", "4.3.0"))
    controller = yaml.safe_load(found.text.partition("---")[0])["spec"]["values"]["controllers"]["m"]
    assert controller["pod"] == {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "nvidia-gpu-1"}]}
    assert controller["containers"]["a"]["resources"] == {"claims": [{"name": "gpu"}]}


def test_patches_of_others_stay_and_claims_of_others_are_not_overwritten() -> None:
    text = release("jellyfin", LIMITS)
    other = "  postRenderers:\n  - kustomize:\n      patches:\n      - patch: '[{op: add, path: /a, value: 1}]'\n"
    found = check(text + other)
    first, second = patches_of(found.text)
    assert first == {"patch": "[{op: add, path: /a, value: 1}]"}
    assert "resourceClaims" in second["patch"]
    (finding,) = check(text + other.replace("/a", "/spec/template/spec/resourceClaims")).findings
    assert "speak of resourceClaims already" in finding.message


def test_a_patch_of_other_limits_is_not_taken_for_done() -> None:
    """Somebody changed the limits since: the patch that is there would fail, and says no word of the new ones."""
    found = check(release("jellyfin", "\n    resources:\n      limits:\n        nvidia.com/gpu: 1"))
    changed = found.text.replace("        nvidia.com/gpu: 1\n", "        nvidia.com/gpu: 2\n")
    assert changed != found.text
    again = convert(changed, SETTINGS)
    assert again.text == changed
    assert again.unfinished


def test_requests_go_with_the_limits() -> None:
    values = "{resources: {limits: {nvidia.com/gpu: 1}, requests: {nvidia.com/gpu: 1, cpu: 1}}}"
    (patch,) = patches_of(check(release("jellyfin", values)).text)
    removed = [one["path"] for one in yaml.safe_load(patch["patch"]) if one["op"] == "remove"]
    assert removed == [AT_LIMIT, AT_LIMIT.replace("limits", "requests")]


def test_two_models_are_two_patches_in_one_place() -> None:
    models = "[{name: a, requestGPU: 1}, {name: b, requestGPU: 2}, {name: c}]"
    found = check(release("vllm-stack", f"{{servingEngineSpec: {{modelSpec: {models}}}}}"))
    assert [one["target"]["labelSelector"] for one in patches_of(found.text)] == ["model=a", "model=b"]
    assert len(found.pods) == 2


def test_the_name_of_a_source_is_not_taken_for_the_chart() -> None:
    """Home labs name an OCIRepository after the application, and its chart is another one."""
    text = release("x", f"{{controllers: {{m: {{containers: {{a: {{image: {{tag: x}}, {LIMITS[1:-1]}}}}}}}}}}}")
    text = text.replace("  chart: {spec: {chart: x}}\n", "  chartRef: {kind: OCIRepository, name: jellyfin}\n")
    found = check(text)
    assert len(found.pods) == 1
    assert not patches_of(found.text)
    assert [one for one in found.findings if "app-template 4.3 or later" in one.message]


def test_a_chart_within_a_chart_is_found() -> None:
    found = check(release("open-webui", "{ollama: {ollama: {gpu: {enabled: true}}}}"))
    gpu = yaml.safe_load(found.text)["spec"]["values"]["ollama"]["ollama"]["gpu"]
    assert gpu["draEnabled"] is True


def test_ray_is_told_of_the_number_that_it_no_longer_sees() -> None:
    found = check(release("ray-cluster", f"{{worker: {LIMITS}}}"))
    assert [one for one in found.findings if "num-gpus" in one.message]


def test_values_from_elsewhere_are_spoken_of() -> None:
    text = release("jellyfin", LIMITS) + "  valuesFrom: [{kind: ConfigMap, name: more}]\n"
    assert [one for one in check(text).findings if "valuesFrom is not read" in one.message]


# --- values in a file of their own, and Argo CD ---------------------------------------------------------------------

NIM = "model:\n  ngcAPISecret: s\nresources:\n  limits:\n    nvidia.com/gpu: 4   # all\n"
RAY = "head:\n  rayStartParams: {}\nworker:\n  resources:\n    limits:\n      nvidia.com/gpu: 2\n"


def run(*arguments: object) -> int:
    return main([*CONVERT, *RESOURCE, *map(str, arguments)])


def tree(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def test_a_file_of_values_gets_what_it_needs_beside_it_and_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nim.yaml").write_text(NIM)
    (tmp_path / "ray.yaml").write_text(RAY)
    before = tree(tmp_path)
    assert run("--check", tmp_path) == 1
    assert run("--in-place", "--backup", ".b", tmp_path) == 0
    after = tree(tmp_path)
    assert after["nim.yaml"] == NIM.encode(), "a patch takes its limits out"
    assert b"claims:" in after["ray.yaml"]
    assert b"kind: ResourceClaimTemplate" not in after["ray.yaml"], "Helm reads one document of values"
    assert sorted(after) == [
        "nim.yaml",
        "nim.yaml.claims/kustomization.yaml",
        "nim.yaml.claims/resourceclaimtemplates.yaml",
        "ray.yaml",
        "ray.yaml.b",
        "ray.yaml.claims/resourceclaimtemplates.yaml",
    ]
    assert run("--check", tmp_path) == 0, "nothing is left to do"
    assert run("--in-place", "--backup", ".c", tmp_path) == 0
    assert tree(tmp_path) == after, "twice gives the same"
    capsys.readouterr()
    assert main([*CONVERT, "--reverse", "--in-place", str(tmp_path)]) == 0
    assert {name: text for name, text in tree(tmp_path).items() if name != "ray.yaml.b"} == before


def test_what_somebody_put_beside_values_stays(tmp_path: Path) -> None:
    values, folder = tmp_path / "nim.yaml", tmp_path / "nim.yaml.claims"
    values.write_text(NIM)
    assert run("--in-place", values) == 0
    (folder / "rendered.yaml").write_text("# mine\n")
    assert main([*CONVERT, "--reverse", "--in-place", str(values)]) == 0
    assert tree(folder) == {"rendered.yaml": b"# mine\n"}


def test_templates_of_an_earlier_conversion_stay(tmp_path: Path) -> None:
    values = tmp_path / "ray.yaml"
    values.write_text(RAY)
    assert run("--in-place", values) == 0
    text = values.read_text().replace("head:\n", "head:\n  resources: {limits: {nvidia.com/gpu: 1}}\n")
    values.write_text(text)
    assert run("--in-place", "--backup", ".2", values) == 0
    templates = [*yaml.safe_load_all((tmp_path / "ray.yaml.claims" / "resourceclaimtemplates.yaml").read_text())]
    assert [one["metadata"]["name"] for one in templates] == ["nvidia-gpu-2", "nvidia-gpu-1"]


def test_values_that_name_no_resource_are_seen_without_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "values.yaml").write_text("ollama:\n  gpu:\n    enabled: true\n")
    assert main([*CONVERT, "--check", str(tmp_path)]) == 1
    assert "1 pod template to convert" in capsys.readouterr().out


ARGO = """\
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: NAME, namespace: argocd}
spec:
  destination: {namespace: media}
  source:
    repoURL: https://example.com/charts
    chart: jellyfin
    targetRevision: 3.3.0
    helm:
      valuesObject:
        image: {tag: "10"}
        resources:
          limits:
            nvidia.com/gpu: 1   # one
"""


def test_applications_with_one_release_name_get_a_folder_each(tmp_path: Path) -> None:
    for space in ("media", "guests"):
        text = ARGO.replace("NAME", "tv").replace("namespace: media", f"namespace: {space}")
        (tmp_path / f"{space}.yaml").write_text(text)
    assert run("-o", "kustomize", "--to", tmp_path / "k", tmp_path / "media.yaml", tmp_path / "guests.yaml") == 1
    found = sorted((tmp_path / "k").glob("tv*/kustomization.yaml"))
    charts = [yaml.safe_load(file.read_text())["helmCharts"][0] for file in found]
    assert {chart["namespace"] for chart in charts} == {"media", "guests"}


def test_argo_cd_gets_a_folder_with_chart_values_and_patch(tmp_path: Path) -> None:
    (tmp_path / "app.yaml").write_text(ARGO.replace("NAME", "tv"))
    assert run("-o", "kustomize", "--to", tmp_path / "k", tmp_path / "app.yaml") == 1, (
        "the Application is still as it was"
    )
    folder = tmp_path / "k" / "tv"
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    (chart,) = kustomization["helmCharts"]
    assert chart == {
        "name": "jellyfin",
        "repo": "https://example.com/charts",
        "version": "3.3.0",
        "releaseName": "tv",
        "namespace": "media",
        "valuesFile": "values.yaml",
    }
    assert (folder / "values.yaml").read_text().endswith("    nvidia.com/gpu: 1   # one\n")
    (template,) = yaml.safe_load_all((folder / "resourceclaimtemplates.yaml").read_text())
    assert template["metadata"] == {"name": "nvidia-gpu-1", "namespace": "media"}
    assert kustomization["patches"][0]["target"]["kind"] == "Deployment"


def test_an_application_names_no_folder_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "app.yaml").write_text(ARGO.replace("NAME", "../../up"))
    assert run("-o", "kustomize", "--to", tmp_path / "a" / "b" / "k", tmp_path / "app.yaml") == 1
    assert sorted(tree(tmp_path)) == ["app.yaml"]


# --- values that are a text, and values of several files ------------------------------------------------------------

RAY_VALUES = """\
# ours
head:
  rayStartParams: {}
worker:
  replicas: 2   # two
  resources:
    limits:
      nvidia.com/gpu: 2
"""
K3S = """\
apiVersion: helm.cattle.io/v1
kind: HelmChart
metadata: {name: r, namespace: kube-system}
spec:
  chart: CHART
  targetNamespace: media
  valuesContent: |-
"""


def indented(text: str, spaces: int) -> str:
    return "".join(f"{' ' * spaces}{line}\n" for line in text.splitlines())


def test_an_application_has_its_values_as_a_text() -> None:
    """The same is written as where they stand without the bar, and no other line changes."""
    head = (
        ARGO.replace("NAME", "a").replace("chart: jellyfin", "chart: ray-cluster").partition("      valuesObject:")[0]
    )
    tail = "  project: default\n"
    text = f"{head}      values: |\n{indented(RAY_VALUES, 8)}{tail}"
    plain = f"{head}      valuesObject:\n{indented(RAY_VALUES, 8)}{tail}"
    found = check(text)
    assert found.text.replace("values: |", "valuesObject:") == check(plain).text
    said = next(yaml.safe_load_all(found.text))["spec"]["source"]["helm"]["values"]
    assert yaml.safe_load(said)["worker"]["resources"] == {"claims": [{"name": "gpu"}]}
    assert "replicas: 2   # two\n" in said
    windows = check(text.replace("\n", "\r\n")).text.replace("\r\n", "\n")
    assert windows.partition("# drabridge")[0] == found.text.partition("# drabridge")[0]
    assert [template.namespace for template in found.templates] == ["media"]


def test_a_folder_for_argo_cd_has_the_text_of_the_values(tmp_path: Path) -> None:
    head, _, values = ARGO.replace("NAME", "tv").partition("      valuesObject:\n")
    (tmp_path / "app.yaml").write_text(f"{head}      values: |\n{values}")
    assert run("-o", "kustomize", "--to", tmp_path / "k", tmp_path / "app.yaml") == 1
    assert (tmp_path / "k/tv/values.yaml").read_text().endswith("    nvidia.com/gpu: 1   # one\n")


@pytest.mark.parametrize(
    "text", ["not a mapping\n", "a: {{ .x }}\n", "{worker: {resources: {limits: {nvidia.com/gpu: 1}}}}\n", "a: [\n"]
)
def test_a_text_that_is_no_block_of_values_stays_a_text(text: str) -> None:
    head = ARGO.replace("NAME", "a").partition("      valuesObject:")[0]
    whole = f"{head}      values: |\n{indented(text, 8)}"
    assert check(whole).text == whole


def test_a_chart_of_k3s_takes_claims_in_its_values_or_is_left_with_the_reason() -> None:
    found = check(K3S.replace("CHART", "ray-cluster") + indented(RAY_VALUES, 4))
    assert [template.namespace for template in found.templates] == ["media"]
    assert len(found.pods) == 1
    text = K3S.replace("CHART", "jellyfin") + "    resources: {limits: {nvidia.com/gpu: 1}}\n"
    left = check(text)
    assert left.text == text
    assert [one for one in left.findings if one.level is Level.LEFT and "k3s patches nothing" in one.message]


def test_values_that_come_on_top_of_others_are_of_the_same_chart() -> None:
    """Helm merges them: limits that stayed in one of the files would come beside the claims of the other."""
    on_top = "worker:\n  resources:\n    limits:\n      nvidia.com/gpu: 4\n"
    files = {"a/values.yaml": RAY_VALUES, "a/values-prod.yaml": on_top, "a/other-values.yaml": on_top}
    outcomes = convert_group([Source(name, text) for name, text in files.items()], SETTINGS)
    texts = {one.source.name: one.conversion.text for one in outcomes}
    assert yaml.safe_load(texts["a/values-prod.yaml"])["worker"]["resources"] == {"claims": [{"name": "gpu"}]}
    assert texts["a/other-values.yaml"] == on_top, "nothing says that these are the same chart's"
    assert outcomes[2].conversion.unfinished
    notes = [str(one) for outcome in outcomes for one in outcome.findings()]
    assert sum("values of other files, or of --set, come on top" in note for note in notes) == 2


def test_what_a_chart_asks_for_by_itself_is_not_asked_for_twice() -> None:
    files = {"values.yaml": NIM, "values-prod.yaml": "replicaCount: 2\n"}
    outcomes = convert_group([Source(name, text) for name, text in files.items()], SETTINGS)
    assert [bool(one.beside) for one in outcomes] == [True, False]


@pytest.mark.parametrize(
    ("more", "state"), [("number: 2", State.CONVERTED), ("draDriverClass: x", State.LEFT), ("enabled: false", None)]
)
def test_keys_that_name_no_resource_are_in_the_list(more: str, state: State | None) -> None:
    enabled = "" if "enabled" in more else "    enabled: true\n"
    found = convert(f"ollama:\n  gpu:\n{enabled}    {more}\n", SETTINGS)
    assert [(one.line, one.state, one.path) for one in found.places if one.name == "devices"] == (
        [(2, state, "ollama.gpu")] if state else []
    )


def test_what_a_chart_asks_for_without_any_key_is_in_the_list() -> None:
    found = check(release("nim-llm", "{replicas: 1}"))
    assert [(one.state, one.path) for one in found.places] == [(State.CONVERTED, "spec.values")]
