"""Define which values keys of well-known charts become claims: a table, each row with its source.

There are four kinds of charts. A chart with keys for claims gets claims in its values. A chart that makes a claim
itself gets the key for that. For others the values stay, and a patch of Helm's output adds the claims: templates still
read the same limits, and the patch fails if the output's limits are not those of the values. For the rest, the row says
what prevents a conversion. Values are in an object of Flux, Argo CD or k3s, or in a file of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from drabridge.migrate.convert.kinds import ARGO_SOURCES, Form, Manifest, PodSpec, Rendered
from drabridge.migrate.convert.mentions import is_extended
from drabridge.migrate.convert.yaml_nodes import Leaf, Value, at, matching, text_at
from drabridge.yaml_reader import Path


class Pod(Struct, frozen=True):
    """One part of a chart's values that makes one pod. All keys are patterns within the part; "" is the part itself.

    ``containers``: (key that has a container's ``resources``, role). ``claims``: key for ``resourceClaims``; None: no
    such key, so a patch of the object of ``kind`` and labels ``selector`` adds the claims to its first container.
    ``resources``: key that the chart copies to that container; or ``count``: key from which templates make a limit
    (with ``requests``, also a request) of the resource named by key ``count_of``. ``quoted``: they are written as text.
    ``default``: devices that the chart's own values ask for. ``adds``: key that makes the chart add a limit of one GPU.
    ``unless``: (key that prevents a conversion, why).
    """

    at: str = ""
    containers: tuple[tuple[str, str], ...] = (("", "app"),)
    claims: str | None = None
    kind: str = "Deployment"
    selector: str = "app.kubernetes.io/name={chart}"
    resources: str = "resources"
    count: str = ""
    count_of: str = ""
    requests: bool = False
    quoted: bool = False
    default: int = 0
    adds: str = ""
    unless: tuple[tuple[str, str], ...] = ()


class Chart(Struct, frozen=True):
    """One chart. ``source``: what was read; ``tried``: whether the real chart was rendered before and after, too.

    ``sign``: a key that only this chart's values have; it identifies values in a file of their own. ``gpu``: place of
    ollama's keys, which let the chart make a claim. ``hint``: what to do by hand. ``since``: the first version
    with these keys for claims. ``words``: a text with all these words may ask for a GPU without naming its resource.
    ``note``: a remark for converted values. ``unless``: as in :class:`Pod`, for ``gpu``.
    """

    name: str
    source: str
    pods: tuple[Pod, ...] = ()
    tried: bool = False
    sign: str = ""
    gpu: str = ""
    hint: str = ""
    since: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    note: str = ""
    unless: tuple[tuple[str, str], ...] = ()


GPU = "nvidia.com/gpu"  # the resource in templates if a chart's values name none
_ALL_GPUS = "it sets NVIDIA_VISIBLE_DEVICES=all as well, which gives every GPU of the node past claims"
_PART = "it asks for a part of a device, and nobody would enforce it for a claim"
_BY_PATCH = (Pod(),)

CHARTS = (
    Chart(
        "ray-cluster",
        "ray-project/kuberay helm-chart/ray-cluster/templates/raycluster-cluster.yaml (1.4.2)",
        tuple(Pod(at, claims="") for at in ("head", "worker", "additionalWorkerGroups.*")),
        tried=True,
        sign="head.rayStartParams",
        note="KubeRay counts GPUs from limits: set rayStartParams.num-gpus of each group that has claims now",
    ),
    Chart(
        "app-template",
        "bjw-s-labs/helm-charts charts/library/common/templates/lib/pod/_spec.tpl (5.3.0); notes of common-4.3.0; "
        "rendered with 4.1.1 and that file's line for resourceClaims, which is what 4.1.1 lacks",
        (
            Pod(
                "controllers.*",
                (("initContainers.*", "init"), ("containers.*", "app")),
                "pod",
                unless=(
                    ("defaultPodOptions.resourceClaims", "a pod's own resourceClaims come instead of these"),
                    ("defaultContainerOptions.resources", "the library may merge it with the container's resources"),
                ),
            ),
        ),
        sign="controllers.*.containers.*.image",
        since=(4, 3),
    ),
    Chart(
        "ollama",
        "otwld/ollama-helm templates/deployment.yaml and resourceclaimtemplate.yaml (1.77.0)",
        tried=True,
        sign="ollama.gpu.enabled",
        gpu="ollama.gpu",
        unless=(("knative.enabled", "the chart gives Knative limits in any case"),),
        words=("ollama", "gpu:"),
    ),
    Chart(
        "vllm-stack",
        "vllm-project/production-stack helm/templates/deployment-vllm-multi.yaml and _helpers.tpl (0.1.12)",
        (
            Pod(
                "servingEngineSpec.modelSpec.*",
                selector="model={name}",
                count="requestGPU",
                count_of="requestGPUType",
                requests=True,
                quoted=True,
                unless=(
                    ("raySpec.enabled", "it makes a RayCluster of the model: convert what Helm makes of the chart"),
                    *((f"{way}GPU{part}", _PART) for way in ("request", "limit") for part in ("Mem", "Cores")),
                    *((f"{way}GPUMemPercentage", _PART) for way in ("request", "limit")),
                ),
            ),
        ),
        tried=True,
        sign="servingEngineSpec.modelSpec.*.name",
        words=("requestGPU",),
    ),
    Chart(
        "triton-inference-server",
        "triton-inference-server/server deploy/gcp/templates/deployment.yaml; k8s-onprem, aws, oci alike (1.0.0)",
        (Pod(selector="app={chart}", count="image.numGpus", default=1),),
        tried=True,
        sign="image.numGpus",
        words=("numGpus",),
    ),
    Chart(
        "nim-llm",
        "NVIDIA/nim-deploy helm/nim-llm/templates/deployment.yaml (1.1.2)",
        (
            Pod(
                kind="Deployment|StatefulSet",
                default=1,
                unless=(("multiNode.enabled", "its LeaderWorkerSet has other containers"),),
            ),
        ),
        tried=True,
        sign="model.ngcAPISecret",
        words=("ngcAPISecret",),
    ),
    Chart(
        "text-generation-inference",
        "substratusai/helm charts/text-generation-inference/templates/deployment.yaml (0.1.1)",
        (Pod(default=1),),
        tried=True,
    ),
    Chart("vllm", "substratusai/helm charts/vllm/templates/deployment.yaml (0.5.5)", _BY_PATCH, tried=True),
    Chart(
        "chart-vllm",
        "vllm-project/vllm examples/online_serving/chart-helm/templates/deployment.yaml and _helpers.tpl",
        hint="its templates pass only cpu, memory and GPUs on, and set no labels of its own to aim a patch at",
    ),
    Chart(
        "jellyfin", "jellyfin/jellyfin-helm charts/jellyfin/templates/deployment.yaml (3.3.0)", _BY_PATCH, tried=True
    ),
    Chart(
        "frigate",
        "blakeblackshear/blakeshome-charts charts/frigate/templates/deployment.yaml and _helpers.tpl (7.8.0)",
        (Pod(adds="gpu.nvidia.enabled", unless=(("gpu.nvidia.enabled", _ALL_GPUS),)),),
        tried=True,
    ),
    Chart(
        "plex-media-server",
        "plexinc/pms-docker charts/plex-media-server/templates/statefulset.yaml (1.5.0)",
        (
            Pod(
                kind="StatefulSet",
                resources="pms.resources",
                adds="pms.gpu.nvidia.enabled",
                unless=(("pms.gpu.nvidia.enabled", _ALL_GPUS),),
            ),
        ),
        tried=True,
        sign="pms.configStorage",
    ),
    Chart(
        "home-assistant",
        "pajikos/home-assistant-helm-chart charts/home-assistant/templates/statefulset.yaml, deployment.yaml (0.3.72)",
        (Pod(kind="Deployment|StatefulSet"),),
        tried=True,
    ),
    Chart(
        "open-webui",
        "open-webui/helm-charts charts/open-webui/templates/workload-manager.yaml (16.0.0)",
        (Pod(kind="Deployment|StatefulSet", selector="app.kubernetes.io/component={chart}"),),
        tried=True,
    ),
    Chart(
        "local-ai",
        "go-skynet/helm-charts charts/local-ai/templates/deployment.yaml (3.4.2)",
        hint="its sidecars come before the container with the resources, so no patch can be sure of its place",
    ),
    Chart(
        "llm-d-modelservice",
        "llm-d-incubation/llm-d-modelservice charts/llm-d-modelservice/templates/_helpers-dra.tpl (0.4.12)",
        hint=(
            "it makes the claims itself: set accelerator.dra to true, the class in accelerator.resourceClaimTemplates, "
            "and take the accelerator out of limits and requests"
        ),
    ),
    Chart(
        "jupyterhub",
        "jupyterhub/zero-to-jupyterhub-k8s jupyterhub/files/hub/jupyterhub_config.py; KubeSpawner makes the pods",
        hint=(
            "singleuser.extraPodConfig takes resourceClaims; modify_pod_hook of KubeSpawner can name the claim in the "
            "container"
        ),
        sign="singleuser.image",
    ),
    Chart(
        "kubeai",
        "substratusai/kubeai charts/kubeai/templates/configmap.yaml: its operator reads resourceProfiles (0.21.0)",
        hint="its operator makes pods with the limits of resourceProfiles, and knows no claims",
        sign="resourceProfiles",
    ),
)
_BY_NAME = {chart.name: chart for chart in CHARTS}


def speaks_of_gpus(text: str) -> bool:
    """Return whether a text may have values that ask for a GPU without naming its resource."""
    return any(chart.words and all(word in text for word in chart.words) for chart in CHARTS)


def chart_of(name: str) -> Chart | None:
    """Return the row of a chart; None if it is unknown."""
    return _BY_NAME.get(name)


# --- where values are -----------------------------------------------------------------------------------------------

FLUX = "HelmRelease"
ARGO = "Application"
K3S = "HelmChart"
_IN_VALUES = ("spec", "values")  # of a HelmRelease
_IN_TEXT = ("spec", "valuesContent")  # of a HelmChart of k3s
_RENDERED = "convert what Helm makes of the chart: helm template ... | drabridge migrate convert --post-renderer"
_UNKNOWN = (
    "this chart is not known: its templates would need resources.claims in the container and resourceClaims in the "
    f"pod, so see whether its values take these; else {_RENDERED}"
)
_WHERE = {
    FLUX: "Flux takes a patch in spec.postRenderers",
    ARGO: "Argo CD takes a patch in a kustomization with helmCharts",
    K3S: "k3s and RKE2 patch nothing that Helm makes",
}
# kind -> keys with values that come together with those that are read
_BESIDE = {
    FLUX: ("valuesFrom",),
    ARGO: ("valueFiles", "values", "valuesObject", "parameters", "fileParameters"),
    K3S: ("set", "valuesSecrets"),
}
_NAME = "{name}"  # in a selector: of the part
_KEPT, _NONE = "cpu", Leaf("0", plain=True)  # the chart may add to a section, so a patch must not remove all of it
_NOT_SET = frozenset({"", "false", "null", "~"})


class Release(Struct, frozen=True):
    """Values of a chart in an object, or alone (an empty path): which chart, where, and in what kind of object.

    ``version``: the chart's, "" if unknown. ``source``: the path of Argo CD's source. ``partial``: these values are
    merged over others, so the chart's defaults do not count here.
    """

    chart: str
    values: Path
    kind: str = ""
    version: str = ""
    source: Path = ()
    partial: bool = False

    @property
    def row(self) -> Chart | None:
        """Return the chart's row; None if it is unknown."""
        return chart_of(self.chart)

    @property
    def hint(self) -> str:
        """Return what to do about limits that stay in the values."""
        found = self.row
        if found is None:
            said = _UNKNOWN
        else:
            said = f"chart {self.chart}: {found.hint or f'these are not the keys that become claims; else {_RENDERED}'}"
        return f"{said}; {_WHERE[self.kind]}" if self.kind in _WHERE else said


def releases(manifest: Manifest) -> Iterator[Release]:
    """Yield the values of charts, and of their subcharts, in an object of Flux, Argo CD or k3s."""
    for one in _releases(manifest):
        yield one
        yield from _subcharts(one, at(manifest.body, one.values) or {})


def _releases(manifest: Manifest) -> Iterator[Release]:
    body = manifest.body
    if manifest.kind == FLUX:
        values, spec = at(body, _IN_VALUES), at(body, ("spec", "chart", "spec"))
        named, other = text_at(spec, "chart"), text_at(at(body, ("spec", "chartRef")), "name")
        yield Release(_chart(named, other, values), _IN_VALUES, FLUX, text_at(spec, "version"))
    elif manifest.kind in (ARGO, "ApplicationSet"):
        for pattern in ARGO_SOURCES:
            for path in matching(body, pattern):
                source, values = at(body, path), None
                for key in ("values", "valuesObject"):  # the last one counts, where it has something
                    found_there = at(body, (*path, "helm", key))
                    if isinstance(found_there, dict) and (found_there or values is None):
                        place, values = (*path, "helm", key), found_there
                if values is not None:
                    chart = _chart(text_at(source, "chart"), text_at(source, "path"), values)
                    yield Release(chart, place, ARGO, text_at(source, "targetRevision"), path)
    elif manifest.kind in (K3S, "HelmChartConfig"):
        values, spec = at(body, _IN_TEXT), at(body, ("spec",))
        if isinstance(values, dict):
            chart = _chart(text_at(spec, "chart"), manifest.name, values)
            yield Release(chart, _IN_TEXT, K3S, text_at(spec, "version"))


def values_alone(document: Value, chart: str = "") -> Iterator[Release]:
    """Yield the values of charts, recognised by their keys. ``chart``: the chart of all other values, if known."""
    found = chart_by_keys(document)
    if found or (chart and isinstance(document, dict)):
        yield Release(found or chart, (), partial=not found)
    yield from _subcharts(Release("", ()), document)


def _subcharts(release: Release, values: Value) -> Iterator[Release]:
    """Yield the values of a chart's subcharts, which are below the subcharts' names."""
    for key, inner in values.items() if isinstance(values, dict) else ():
        chart = chart_of(key)
        if chart is not None and key != release.chart and chart.sign and any(_matching(inner, chart.sign)):
            yield Release(key, (*release.values, key), release.kind, source=release.source)


def pods_in(release: Release, document: Value, start: Path = ()) -> Iterator[PodSpec]:
    """Yield the parts of the values that make pods. ``document``: the object of the release; ``start``: its path."""
    chart = release.row
    if chart is None:
        return
    values = at(document, release.values) or {}
    root = (*start, *release.values)
    old = _too_old(release, chart)
    for pod in chart.pods:
        for path in _matching(values, pod.at):
            part = at(values, path)
            if not isinstance(part, dict):
                continue
            nameless = "it has no name to aim a patch at" if _NAME in pod.selector and not text_at(part, "name") else ""
            refused = old or nameless or _in_the_way(pod.unless, part, values)
            yield _pod(pod, part, values, (*root, *path), release, refused)
    if chart.gpu and isinstance(at(values, gpu := _keys(chart.gpu)), dict):
        yield PodSpec(
            (*root, *gpu), form=Form.OLLAMA, refused=_in_the_way(chart.unless, {}, values) or _own_limits(values)
        )


def notes_on(release: Release, document: Value) -> Iterator[str]:
    """Yield remarks on converted values of a chart. ``document``: the object of the release."""
    row = release.row
    if row is not None and row.note:
        yield row.note
    if row is not None and row.since and not release.version:
        since = ".".join(map(str, row.since))
        yield f"its keys for claims need {release.chart} {since} or later: see which version it is"
    if not release.kind:
        yield "values of other files, or of --set, come on top: see that they bring no limits of the same devices"
    where = (*release.source, "helm") if release.kind == ARGO else ("spec",)
    for key in _BESIDE.get(release.kind, ()):
        if at(document, (*where, key)) and (*where, key) != release.values[: len(where) + 1]:
            yield f"{key} is not read: see that it brings no limits of the same devices"


def _pod(pod: Pod, part: Value, values: Value, path: Path, release: Release, refused: str) -> PodSpec:
    if pod.claims is None:
        name = text_at(values, "nameOverride") or release.chart
        rendered = _rendered(replace(pod, default=0) if release.partial else pod, part, path, name)
        return PodSpec(path, rendered=rendered, refused=refused)
    containers = tuple((place, role) for pattern, role in pod.containers for place in _matching(part, pattern))
    return PodSpec(path, form=Form.VALUES, containers=containers, claims=_keys(pod.claims), refused=refused)


def _rendered(pod: Pod, part: Value, path: Path, name: str) -> Rendered:
    """Return the pod that templates make of a part of the values."""
    sections: dict[str, dict[str, Value]] = {"limits": {}, "requests": {}}
    asks: list[Path] = []
    resources = at(part, _keys(pod.resources))
    number = at(part, _keys(pod.count)) if pod.count else None
    if isinstance(resources, dict):
        for section, found in sections.items():
            place = (*_keys(pod.resources), section)
            given = at(part, place)
            found |= given if isinstance(given, dict) else {}
            asks += ((*path, *place, resource) for resource in found)
    elif isinstance(number, Leaf):
        asks.append((*path, *_keys(pod.count)))
        said: Value = Leaf(number.text, plain=not pod.quoted)
        resource = text_at(part, pod.count_of) or GPU
        sections["limits"][resource] = said
        if pod.requests:
            sections["requests"][resource] = said
    if pod.default and number is None:
        sections["limits"].setdefault(GPU, Leaf(str(pod.default), plain=True))
    if pod.adds and _is_set(part, pod.adds):
        sections["limits"].setdefault(GPU, Leaf("1", plain=True))
    said_there: dict[str, Value] = {key: {**child, _KEPT: _NONE} for key, child in sections.items() if child}
    if (claims := at(resources, ("claims",))) is not None:
        said_there["claims"] = claims
    container: Value = {"name": "main", "resources": said_there}
    selector = pod.selector.format(chart=name, name=text_at(part, "name"))
    return Rendered({"containers": [container]}, pod.kind, selector, tuple(asks))


def _too_old(release: Release, chart: Chart) -> str:
    """Return that this version of a chart has no keys for claims yet; "" if it has, or if the version is unknown."""
    found = re.match(r"v?(\d+)(?:\.(\d+))?", release.version)
    if not chart.since or found is None or tuple(int(part or 99) for part in found.groups()) >= chart.since:
        return ""
    since = ".".join(map(str, chart.since))
    return f"{release.chart} {release.version} has no key for resourceClaims: {since} is the first that has one"


def _in_the_way(unless: Iterable[tuple[str, str]], part: Value, values: Value) -> str:
    found = (f"{key}: {why}" for key, why in unless if _is_set(part, key) or _is_set(values, key))
    return next(found, "")


def _own_limits(values: Value) -> str:
    """Return that values have limits of devices beside the keys that make a claim; "" if they have none."""
    for section in ("limits", "requests"):
        found = at(values, ("resources", section))
        for name in found if isinstance(found, dict) else ():
            if is_extended(name):
                return f"resources.{section} has {name} as well, which the chart keeps beside the claim"
    return ""


def _is_set(values: Value, pattern: str) -> bool:
    """Whether a key has a value other than empty, false or null."""
    for path in _matching(values, pattern):
        found = at(values, path)
        if (found.text not in _NOT_SET) if isinstance(found, Leaf) else bool(found):
            return True
    return False


def _chart(named: str, other: str, values: Value | None) -> str:
    """Return the chart's name: as given, else by the values' keys, else by its location ``other``."""
    found = chart_by_keys(values) if not named and values is not None else ""
    return found or (named or other).rstrip("/").rpartition("/")[2]


def chart_by_keys(values: Value) -> str:
    """Return the chart whose own keys these values have; "" for other documents."""
    return next((one.name for one in CHARTS if one.sign and any(_matching(values, one.sign))), "")


def _matching(values: Value, pattern: str) -> Iterator[Path]:
    return matching(values, _keys(pattern))


def _keys(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.split(".")) if pattern else ()
