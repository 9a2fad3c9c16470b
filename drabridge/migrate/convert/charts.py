"""Which keys of well-known charts' values become claims: a table, each row with the source that was read for it.

A chart whose values go into its pods as they are is converted as a pod is. One that makes a claim itself is told to.
Of the others the row says what its templates lack.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from drabridge.migrate.convert.kinds import Form, Manifest, PodSpec, at, matching, text_at
from drabridge.migrate.convert.yaml_nodes import Value
from drabridge.yaml_reader import Path

_PATCH = "patch its {} with resourceClaims, as -o kustomize writes it for what Helm makes of the chart"
_WHERE = {
    "HelmRelease": "Flux takes the patches in spec.postRenderers",
    "Application": "Argo CD takes them in a kustomization with helmCharts",
}


class Chart(Struct, frozen=True):
    """One chart. ``pods``: where its values have the ``resources`` and ``resourceClaims`` of a pod with one container.

    ``gpu``: where they have ollama's keys, which let the chart make a claim. ``hint``: what to do otherwise.
    ``source``: what was read; ``tried``: whether the real chart was rendered with such values, too.
    """

    names: tuple[str, ...]
    source: str
    hint: str = ""
    pods: tuple[str, ...] = ()
    gpu: str = ""
    tried: bool = False


CHARTS = (
    Chart(
        ("ray-cluster",),
        "ray-project/kuberay helm-chart/ray-cluster/templates/raycluster-cluster.yaml",
        pods=("head", "worker", "additionalWorkerGroups.*"),
        tried=True,
    ),
    Chart(
        ("ollama",),
        "otwld/ollama-helm templates/deployment.yaml and resourceclaimtemplate.yaml",
        gpu="ollama.gpu",
        tried=True,
    ),
    Chart(
        ("vllm-stack",),
        "vllm-project/production-stack helm/templates/deployment-vllm-multi.yaml and _helpers.tpl",
        f"modelSpec.requestGPU makes limits only; {_PATCH.format('Deployments RELEASE-MODEL-deployment-vllm')}",
    ),
    Chart(
        ("jupyterhub",),
        "jupyterhub/zero-to-jupyterhub-k8s jupyterhub/files/hub/jupyterhub_config.py",
        "singleuser.extraPodConfig takes resourceClaims; modify_pod_hook of KubeSpawner can name it in the container",
    ),
    Chart(
        ("app-template",),
        "bjw-s-labs/helm-charts charts/library/common/templates/lib/pod/_spec.tpl",
        f"resources of a container take claims, but pods have no resourceClaims; {_PATCH.format('Deployment')}",
    ),
    Chart(
        ("frigate",),
        "blakeblackshear/blakeshome-charts charts/frigate/templates/deployment.yaml",
        f"resources take claims, but the pod has no resourceClaims; {_PATCH.format('Deployment')}",
    ),
    Chart(
        ("jellyfin",),
        "jellyfin/jellyfin-helm charts/jellyfin/templates/deployment.yaml",
        f"resources take claims, but the pod has no resourceClaims; {_PATCH.format('Deployment')}",
    ),
)
_BY_NAME = {name: chart for chart in CHARTS for name in chart.names}
_IN_VALUES = ("spec", "values")  # of a HelmRelease
UNKNOWN = (
    "its templates would need resources.claims in the container and resourceClaims in the pod: see whether its values "
    f"take these; else {_PATCH.format('workloads')}"
)


class Release(Struct, frozen=True):
    """Values of a chart in an object, or alone (an empty path): which chart, and where."""

    chart: str
    values: Path
    kind: str = ""

    @property
    def row(self) -> Chart | None:
        """Return what is known of the chart."""
        return _BY_NAME.get(self.chart)

    @property
    def hint(self) -> str:
        """Return what to do where limits are left in the values."""
        found = self.row
        said = f"chart {self.chart}: {found.hint}" if found and found.hint else UNKNOWN
        return f"{said}; {_WHERE[self.kind]}" if self.kind in _WHERE else said


def releases(manifest: Manifest) -> Iterator[Release]:
    """Yield the values of charts in an object of Flux or Argo CD."""
    body = manifest.body
    if manifest.kind == "HelmRelease" and isinstance(at(body, _IN_VALUES), dict):
        chart = text_at(at(body, ("spec", "chart", "spec")), "chart") or text_at(at(body, ("spec", "chartRef")), "name")
        yield Release(_last(chart), _IN_VALUES, manifest.kind)
    elif manifest.kind in ("Application", "ApplicationSet"):
        for pattern in ("spec.source", "spec.sources.*", "spec.template.spec.source", "spec.template.spec.sources.*"):
            for path in matching(body, tuple(pattern.split("."))):
                if isinstance(at(body, (*path, "helm", "valuesObject")), dict):
                    chart = text_at(at(body, path), "chart") or text_at(at(body, path), "path")
                    yield Release(_last(chart), (*path, "helm", "valuesObject"), "Application")


def values_alone(document: Value) -> Release | None:
    """Return the values of a chart that is known by its keys; None for other documents."""
    gpu = at(document, ("ollama", "gpu"))
    return Release("ollama", ()) if isinstance(gpu, dict) and "enabled" in gpu else None


def pods_in(release: Release, document: Value, start: Path = ()) -> Iterator[PodSpec]:
    """Yield what a chart makes pods of. ``document``: the object of the release; ``start``: its path."""
    chart = release.row
    if chart is None:
        return
    for pattern in chart.pods:
        for path in matching(at(document, release.values) or {}, tuple(pattern.split("."))):
            if isinstance(at(document, (*release.values, *path, "resources")), dict):
                yield PodSpec((*start, *release.values, *path), form=Form.VALUES)
    if chart.gpu and isinstance(at(document, (*release.values, *chart.gpu.split("."))), dict):
        yield PodSpec((*start, *release.values, *chart.gpu.split(".")), form=Form.OLLAMA)


def _last(chart: str) -> str:
    return chart.rstrip("/").rpartition("/")[2]
