"""Which keys of well-known charts' values become claims: a table, each row with the source that was read for it.

A chart that has keys for claims gets them in its values. One that makes a claim itself is told to. Of the others the
values stay, and a patch of what Helm makes of them says the claims: so nothing that templates read of the limits
changes, and the patch fails where they are not what the values said. Of the rest the row says what is in the way.
"""

from __future__ import annotations

from msgspec import Struct


class Pod(Struct, frozen=True):
    """One part of a chart's values that becomes one pod. All keys are patterns within the part; "" is the part itself.

    ``containers``: what has the ``resources`` of a container, and its role. ``claims``: what takes ``resourceClaims``;
    None: nothing does, so a patch of the object of ``kind`` and labels ``selector`` says them for its first container.
    ``resources``: what is copied there; ``count``: or the key of which templates make a limit and, with ``requests``,
    a request, of the resource that ``count_of`` names. ``quoted``: as text. ``default``: what the chart's own values
    ask for. ``adds``: the key that makes the chart add a limit of one GPU. ``unless``: keys in the way, and why.
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

    ``sign``: a key of its values that only it has, which tells its values in a file of their own. ``gpu``: where they
    have ollama's keys, which let the chart make a claim. ``hint``: what to do by hand. ``since``: its first version
    with these keys for claims. ``words``: a text with all of them may ask for a GPU without its resource's name.
    ``note``: what to know where its values were converted. ``unless``: as of a pod, for ``gpu``.
    """

    names: tuple[str, ...]
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


GPU = "nvidia.com/gpu"  # what templates ask for where a chart's values name no resource
_ALL_GPUS = "it sets NVIDIA_VISIBLE_DEVICES=all as well, which gives every GPU of the node past claims"
_PART = "it asks for a part of a device, and nobody would enforce it for a claim"
_BY_PATCH = (Pod(),)

CHARTS = (
    Chart(
        ("ray-cluster",),
        "ray-project/kuberay helm-chart/ray-cluster/templates/raycluster-cluster.yaml (1.4.2)",
        tuple(Pod(at, claims="") for at in ("head", "worker", "additionalWorkerGroups.*")),
        tried=True,
        sign="head.rayStartParams",
        note="KubeRay counts GPUs from limits: set rayStartParams.num-gpus of each group that has claims now",
    ),
    Chart(
        ("app-template",),
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
        ("ollama",),
        "otwld/ollama-helm templates/deployment.yaml and resourceclaimtemplate.yaml (1.77.0)",
        tried=True,
        sign="ollama.gpu.enabled",
        gpu="ollama.gpu",
        unless=(("knative.enabled", "the chart gives Knative limits in any case"),),
        words=("ollama", "gpu:"),
    ),
    Chart(
        ("vllm-stack",),
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
        ("triton-inference-server",),
        "triton-inference-server/server deploy/gcp/templates/deployment.yaml; k8s-onprem, aws, oci alike (1.0.0)",
        (Pod(selector="app={chart}", count="image.numGpus", default=1),),
        tried=True,
        sign="image.numGpus",
        words=("numGpus",),
    ),
    Chart(
        ("nim-llm",),
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
        ("text-generation-inference",),
        "substratusai/helm charts/text-generation-inference/templates/deployment.yaml (0.1.1)",
        (Pod(default=1),),
        tried=True,
    ),
    Chart(("vllm",), "substratusai/helm charts/vllm/templates/deployment.yaml (0.5.5)", _BY_PATCH, tried=True),
    Chart(
        ("chart-vllm",),
        "vllm-project/vllm examples/online_serving/chart-helm/templates/deployment.yaml and _helpers.tpl",
        hint="its templates pass only cpu, memory and GPUs on, and set no labels of its own to aim a patch at",
    ),
    Chart(
        ("jellyfin",), "jellyfin/jellyfin-helm charts/jellyfin/templates/deployment.yaml (3.3.0)", _BY_PATCH, tried=True
    ),
    Chart(
        ("frigate",),
        "blakeblackshear/blakeshome-charts charts/frigate/templates/deployment.yaml and _helpers.tpl (7.8.0)",
        (Pod(adds="gpu.nvidia.enabled", unless=(("gpu.nvidia.enabled", _ALL_GPUS),)),),
        tried=True,
    ),
    Chart(
        ("plex-media-server",),
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
        ("home-assistant",),
        "pajikos/home-assistant-helm-chart charts/home-assistant/templates/statefulset.yaml, deployment.yaml (0.3.72)",
        (Pod(kind="Deployment|StatefulSet"),),
        tried=True,
    ),
    Chart(
        ("open-webui",),
        "open-webui/helm-charts charts/open-webui/templates/workload-manager.yaml (16.0.0)",
        (Pod(kind="Deployment|StatefulSet", selector="app.kubernetes.io/component={chart}"),),
        tried=True,
    ),
    Chart(
        ("local-ai",),
        "go-skynet/helm-charts charts/local-ai/templates/deployment.yaml (3.4.2)",
        hint="its sidecars come before the container with the resources, so no patch can be sure of its place",
    ),
    Chart(
        ("llm-d-modelservice",),
        "llm-d-incubation/llm-d-modelservice charts/llm-d-modelservice/templates/_helpers-dra.tpl (0.4.12)",
        hint=(
            "it makes the claims itself: set accelerator.dra to true, the class in accelerator.resourceClaimTemplates, "
            "and take the accelerator out of limits and requests"
        ),
    ),
    Chart(
        ("jupyterhub",),
        "jupyterhub/zero-to-jupyterhub-k8s jupyterhub/files/hub/jupyterhub_config.py; KubeSpawner makes the pods",
        hint=(
            "singleuser.extraPodConfig takes resourceClaims; modify_pod_hook of KubeSpawner can name the claim in the "
            "container"
        ),
        sign="singleuser.image",
    ),
    Chart(
        ("kubeai",),
        "substratusai/kubeai charts/kubeai/templates/configmap.yaml: its operator reads resourceProfiles (0.21.0)",
        hint="its operator makes pods with the limits of resourceProfiles, and knows no claims",
        sign="resourceProfiles",
    ),
)
_BY_NAME = {name: chart for chart in CHARTS for name in chart.names}


def speaks_of_gpus(text: str) -> bool:
    """Return whether a text may have values that ask for a GPU without the name of its resource."""
    return any(chart.words and all(word in text for word in chart.words) for chart in CHARTS)


def chart_of(name: str) -> Chart | None:
    """Return the row of a chart; None where it is not known."""
    return _BY_NAME.get(name)
