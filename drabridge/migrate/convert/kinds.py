"""Which kinds have pod templates, and where: a table of paths, and the shape of a pod for all others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

from msgspec import Struct

from drabridge.migrate.convert.yaml_nodes import Leaf, Path, Value
from drabridge.migrate.operators import counting_operator

EACH = "*"  # in a path: every key of the mapping, every item of the list

# kind -> the paths of its pod specs. Sources: the Kubernetes API; the CRDs of KubeRay 1.4, Kubeflow's training operator
# 1.9 and trainer 2.0, mpi-operator 0.6, JobSet 0.8, LeaderWorkerSet 0.6, Volcano 1.12, Argo Rollouts 1.8, KServe 0.15.
_TRAINING = "template.spec"
_RAY_CLUSTER = ("headGroupSpec.template.spec", "workerGroupSpecs.*.template.spec")
POD_SPECS: Mapping[str, tuple[str, ...]] = {
    "Pod": ("spec",),
    "PodTemplate": ("template.spec",),
    "Deployment": ("spec.template.spec",),
    "StatefulSet": ("spec.template.spec",),
    "DaemonSet": ("spec.template.spec",),
    "ReplicaSet": ("spec.template.spec",),
    "ReplicationController": ("spec.template.spec",),
    "Job": ("spec.template.spec", "spec.tasks.*.template.spec"),  # batch/v1; Volcano
    "CronJob": ("spec.jobTemplate.spec.template.spec",),
    "Rollout": ("spec.template.spec",),
    "InferenceService": ("spec.predictor", "spec.transformer", "spec.explainer"),
    "RayCluster": tuple(f"spec.{path}" for path in _RAY_CLUSTER),
    "RayJob": (*(f"spec.rayClusterSpec.{path}" for path in _RAY_CLUSTER), "spec.submitterPodTemplate.spec"),
    "RayService": tuple(f"spec.rayClusterConfig.{path}" for path in _RAY_CLUSTER),
    "PyTorchJob": (f"spec.pytorchReplicaSpecs.*.{_TRAINING}",),
    "TFJob": (f"spec.tfReplicaSpecs.*.{_TRAINING}",),
    "XGBoostJob": (f"spec.xgbReplicaSpecs.*.{_TRAINING}",),
    "PaddleJob": (f"spec.paddleReplicaSpecs.*.{_TRAINING}",),
    "JAXJob": (f"spec.jaxReplicaSpecs.*.{_TRAINING}",),
    "MPIJob": (f"spec.mpiReplicaSpecs.*.{_TRAINING}",),
    "JobSet": ("spec.replicatedJobs.*.template.spec.template.spec",),
    "TrainingRuntime": ("spec.template.spec.replicatedJobs.*.template.spec.template.spec",),
    "ClusterTrainingRuntime": ("spec.template.spec.replicatedJobs.*.template.spec.template.spec",),
    "LeaderWorkerSet": (
        "spec.leaderWorkerTemplate.leaderTemplate.spec",
        "spec.leaderWorkerTemplate.workerTemplate.spec",
    ),
}

# Argo Workflows: the paths of templates. Their containers have resources.claims; the pod's resourceClaims go into the
# string podSpecPatch, since a template has no such key (argoproj/argo-workflows issue 16576, tried there on 4.0.8).
ARGO_TEMPLATES: Mapping[str, str] = {
    "Workflow": "spec.templates.*",
    "WorkflowTemplate": "spec.templates.*",
    "ClusterWorkflowTemplate": "spec.templates.*",
    "CronWorkflow": "spec.workflowSpec.templates.*",
}
_ARGO_PODS = ("container", "script", "containerSet")  # one of them is in a template that makes a pod
# KServe: a predictor has the keys of a pod spec beside its model, resourceClaims as well (pkg/apis/serving/v1beta1
# podspec.go). Without Knative alone: Knative refuses claims (knative/serving issue 15332).
_KSERVE_MODE = "serving.kserve.io/deploymentMode"
_WITHOUT_KNATIVE = ("Standard", "RawDeployment")

# kind -> what to do where it asks for devices outside a pod template.
_UNIFIED = "else leave it on limits and set extendedResourceName on the DeviceClass"
NO_POD_TEMPLATE: Mapping[str, str] = {
    "InferenceService": (
        f"a model is converted where {_KSERVE_MODE} is Standard, since Knative refuses claims, and not beside a "
        f"workerSpec; {_UNIFIED}"
    ),
    "ServingRuntime": f"its pod has no resourceClaims: write containers into the InferenceService; {_UNIFIED}",
    "ClusterServingRuntime": f"its pod has no resourceClaims: write containers into the InferenceService; {_UNIFIED}",
    "TrainJob": "convert the pod template of its TrainingRuntime, and take resourcesPerNode out",
    **dict.fromkeys(
        ARGO_TEMPLATES, "name the claim in a podSpecPatch: resourceClaims, and resources.claims of the container"
    ),
    "HelmRelease": "its values go into a chart: write the patches of -o kustomize into spec.postRenderers",
    "Application": f"its values go into a chart: have what it makes converted in a plugin of Argo CD; {_UNIFIED}",
    "ResourceQuota": "set extendedResourceName on the DeviceClass, or limit CLASS.deviceclass.resource.k8s.io/devices",
    "LimitRange": "it does not count claims: limit CLASS.deviceclass.resource.k8s.io/devices by a ResourceQuota",
}
COUNT_LIMITS = frozenset({"ResourceQuota", "LimitRange"})  # they ask for nothing, so they may stay as they are
OTHERWISE = f"name its pod template with --path KIND=PATH if it has one; {_UNIFIED}"
# Their controllers make pods of parts of a pod: what looks like a pod's spec is none, and has no place for a claim.
_NO_PODS = frozenset(
    {
        "ServingRuntime",
        "ClusterServingRuntime",
    }
)

# kind -> what to do beside a conversion, but for operators that count limits.
_ARGO_NOTE = "needs an Argo Workflows that knows resourceClaims in podSpecPatch, as 4.0 does: try one workflow"
_NOTES: Mapping[str, str] = {
    **dict.fromkeys(ARGO_TEMPLATES, _ARGO_NOTE),
    "ClusterWorkflowTemplate": f"{_ARGO_NOTE}, and apply the ResourceClaimTemplate in each namespace that uses it",
    "InferenceService": "Knative refuses claims, and limits of a ServingRuntime stay: see that it uses neither",
    "Job": "the pod template of a Job that is there cannot change: delete the Job and create it again",
}


class Form(Enum):
    """How a pod is written: as Kubernetes has it, or as parts of a pod."""

    POD = "pod"
    ARGO = "a template of Argo Workflows"
    MODEL = "a predictor of KServe with a model"


class PodSpec(Struct, frozen=True):
    """One pod spec: where it is in the document, and whether only its shape says that it is one."""

    path: Path
    by_shape: bool = False
    form: Form = Form.POD


class Manifest(Struct, frozen=True):
    """One object of a document: a List has several."""

    path: Path
    kind: str
    name: str
    namespace: str
    body: dict[str, Value]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else self.kind


def manifests(document: Value) -> list[Manifest]:
    """Return the objects of a document; none where it is no Kubernetes object."""
    return list(_manifests(document, ()))


def _manifests(document: Value, path: Path) -> Iterator[Manifest]:
    kind, metadata = text_at(document, "kind"), at(document, ("metadata",))
    if not kind or not text_at(document, "apiVersion") or not isinstance(document, dict):
        return
    items = document.get("items")
    if kind.endswith("List") and isinstance(items, list):
        for number, item in enumerate(items):
            yield from _manifests(item, (*path, "items", number))
        return
    name = text_at(metadata, "name") or text_at(metadata, "generateName")
    yield Manifest(path, kind, name, text_at(metadata, "namespace"), document)


def remark_on(manifest: Manifest) -> str:
    """Return what to do beside a conversion of this object; "" where there is nothing."""
    operator = counting_operator(text_at(manifest.body, "apiVersion").rpartition("/")[0], manifest.kind)
    return (operator.after if operator else "") or _NOTES.get(manifest.kind, "")


def pod_specs(manifest: Manifest, own_paths: Mapping[str, tuple[str, ...]]) -> list[PodSpec]:
    """Return the pod specs of an object: by the caller's paths, by the table, then by shape, each once.

    A path of the caller's may name the template or the spec in it.
    """
    if manifest.kind in _NO_PODS:
        return []
    if manifest.kind in ARGO_TEMPLATES:
        return list(_argo_templates(manifest))
    predictor = at(manifest.body, ("spec", "predictor"))
    if manifest.kind == "InferenceService" and isinstance(predictor, dict) and "model" in predictor:
        return list(_predictor(manifest, predictor))
    found: dict[Path, PodSpec] = {}
    for pattern in (*own_paths.get(manifest.kind, ()), *POD_SPECS.get(manifest.kind, ())):
        for path in _matching(manifest.body, tuple(pattern.split("."))):
            inner = (*path, "spec") if at(manifest.body, (*path, "containers")) is None else path
            if isinstance(at(manifest.body, (*inner, "containers")), list):
                found[inner] = PodSpec((*manifest.path, *inner))
    for path in _shaped(manifest.body, ()):
        found.setdefault(path, PodSpec((*manifest.path, *path), by_shape=True))
    return list(found.values())


def _argo_templates(manifest: Manifest) -> Iterator[PodSpec]:
    pattern = ARGO_TEMPLATES[manifest.kind]
    if at(manifest.body, (*pattern.split(".")[:-2], "templateDefaults", "podSpecPatch")) is not None:
        return  # a podSpecPatch of a template would come instead of it
    for path in _matching(manifest.body, tuple(pattern.split("."))):
        template = at(manifest.body, path)
        if isinstance(template, dict) and any(key in template for key in _ARGO_PODS):
            yield PodSpec((*manifest.path, *path), form=Form.ARGO)


def _predictor(manifest: Manifest, predictor: dict[str, Value]) -> Iterator[PodSpec]:
    mode = text_at(at(manifest.body, ("metadata", "annotations")), _KSERVE_MODE)
    if mode in _WITHOUT_KNATIVE and "workerSpec" not in predictor:
        yield PodSpec((*manifest.path, "spec", "predictor"), form=Form.MODEL)


def _matching(body: Value, pattern: tuple[str, ...]) -> Iterator[Path]:
    if not pattern:
        yield ()
        return
    children: Iterable[tuple[str | int, Value]] = ()
    if isinstance(body, dict):
        children = body.items() if pattern[0] == EACH else [(key, body[key]) for key in (pattern[0],) if key in body]
    elif isinstance(body, list) and pattern[0] == EACH:
        children = enumerate(body)
    for key, child in children:
        yield from ((key, *rest) for rest in _matching(child, pattern[1:]))


def _shaped(body: Value, path: Path) -> Iterator[Path]:
    """Yield where a mapping has containers with names and images, and nothing within it."""
    if isinstance(body, dict):
        containers = body.get("containers")
        if isinstance(containers, list) and containers and all(map(_is_container, containers)):
            yield path
            return
        for key, child in body.items():
            yield from _shaped(child, (*path, key))
    elif isinstance(body, list):
        for number, child in enumerate(body):
            yield from _shaped(child, (*path, number))


def _is_container(body: Value) -> bool:
    return bool(text_at(body, "name") and text_at(body, "image"))


def at(document: Value | None, path: Path) -> Value | None:
    """Return what is at a path; None where nothing is."""
    for part in path:
        if isinstance(document, dict) and part in document:
            document = document[str(part)]
        elif isinstance(document, list) and isinstance(part, int) and part < len(document):
            document = document[part]
        else:
            return None
    return document


def text_at(document: Value | None, key: str) -> str:
    """Return the text of a mapping's key; empty where there is none."""
    found = document.get(key) if isinstance(document, dict) else None
    return found.text if isinstance(found, Leaf) else ""
