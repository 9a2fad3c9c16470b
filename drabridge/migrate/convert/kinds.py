"""Define which kinds have pod templates, and where: a table of paths; all others are recognised by a pod's shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum

from msgspec import Struct

from drabridge.migrate.convert.yaml_nodes import Value, at, matching, text_at
from drabridge.migrate.installers import counting_operator
from drabridge.yaml_reader import Path

# kind -> the paths of its pod specs. Sources: the Kubernetes API; the CRDs of KubeRay 1.4, Kubeflow's training operator
# 1.9 and trainer 2.0, mpi-operator 0.6, JobSet 0.8, LeaderWorkerSet 0.6, Volcano 1.12, Argo Rollouts 1.8, KServe 0.20.
_TRAINING = "template.spec"
_RAY_CLUSTER = ("headGroupSpec.template.spec", "workerGroupSpecs.*.template.spec")
_LLM = (
    "spec.template",
    "spec.worker",
    "spec.prefill.template",
    "spec.prefill.worker",
    "spec.router.scheduler.template",
)
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
    "LLMInferenceService": _LLM,
    "LLMInferenceServiceConfig": _LLM,
    "ServingRuntime": ("spec", "spec.workerSpec"),
    "ClusterServingRuntime": ("spec", "spec.workerSpec"),
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
# Argo CD: where an Application, or an ApplicationSet, has its sources.
ARGO_SOURCES = tuple(
    tuple(path.split("."))
    for path in ("spec.source", "spec.sources.*", "spec.template.spec.source", "spec.template.spec.sources.*")
)
_ARGO_PODS = ("container", "script", "containerSet")  # one of them is in a template that makes a pod
# KubeVirt: a VM's devices name a claim and a request of it instead of a device plugin's resource, and the VM lists its
# claims as a pod does (schema.go and types.go of its API).
KUBEVIRT_VMS: Mapping[str, str] = {
    "VirtualMachine": "spec.template.spec",
    "VirtualMachineInstance": "spec",
    "VirtualMachineInstanceReplicaSet": "spec.template.spec",
    "VirtualMachinePool": "spec.virtualMachineTemplate.spec.template.spec",
}
# NIM's operator: one container, with resources beside draResources (api/apps/v1alpha1 nimservice_types.go).
_NIM = "NIMService"
# KServe: what a predictor has instead of containers: a model, or the same by the name of its framework (predictor.go).
MODELS = (
    "model", "sklearn", "xgboost", "tensorflow", "pytorch", "triton", "onnx", "huggingface", "pmml", "lightgbm",
    "paddle",
)  # fmt: skip
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
    "NIMService": f"NIM's operator takes claims for its one container, as draResources; {_UNIFIED}",
    "TrainJob": "convert the pod template of its TrainingRuntime, and take resourcesPerNode out",
    **dict.fromkeys(
        ARGO_TEMPLATES, "name the claim in a podSpecPatch: resourceClaims, and resources.claims of the container"
    ),
    "ResourceQuota": "set extendedResourceName on the DeviceClass, or limit CLASS.deviceclass.resource.k8s.io/devices",
    **dict.fromkeys(
        ("ClusterQueue", "Cohort", "ResourceFlavor"),
        "Kueue counts claims by deviceClassMappings of its configuration: name their DeviceClass there",
    ),
    "Queue": "Volcano counts limits: set extendedResourceName on the DeviceClass, or leave its jobs on limits",
    "LimitRange": "it does not count claims: limit CLASS.deviceclass.resource.k8s.io/devices by a ResourceQuota",
}
COUNT_LIMITS = frozenset(
    {"ResourceQuota", "LimitRange", "Queue", "ClusterQueue", "Cohort"}
)  # these ask for nothing, so they may stay
OTHERWISE = f"name its pod template with --path KIND=PATH if it has one; {_UNIFIED}"
# kind -> what to do beside a conversion, but for operators that count limits.
_ARGO_NOTE = "needs an Argo Workflows that knows resourceClaims in podSpecPatch, as 4.0 does: try one workflow"
_NOTES: Mapping[str, str] = {
    **dict.fromkeys(ARGO_TEMPLATES, _ARGO_NOTE),
    "ClusterWorkflowTemplate": f"{_ARGO_NOTE}, and apply the ResourceClaimTemplate in each namespace that uses it",
    "InferenceService": "Knative refuses claims, and limits of a ServingRuntime stay: see that it uses neither",
    "LLMInferenceService": (
        "limits of the LLMInferenceServiceConfig that it takes are merged with it: convert those, too"
    ),
    **dict.fromkeys(
        ("ServingRuntime", "ClusterServingRuntime"),
        "needs a KServe whose runtimes have resourceClaims, as 0.20 does, and Knative refuses claims; its "
        "ResourceClaimTemplate must be in each namespace that uses it",
    ),
    **dict.fromkeys(
        KUBEVIRT_VMS,
        "needs KubeVirt 1.8.3 or newer, with the feature gates GPUsWithDRA and HostDevicesWithDRA in 1.8, and devices "
        "that are bound to VFIO",
    ),
    _NIM: "draResources of a NIMService that is there cannot change: delete it and create it again",
    "Job": "the pod template of a Job that is there cannot change: delete the Job and create it again",
}


_KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"


class Form(Enum):
    """How a pod is written: as Kubernetes has it, or as parts of a pod."""

    POD = "pod"
    ARGO = "a template of Argo Workflows"
    MODEL = "a predictor of KServe with a model"
    VM = "a virtual machine of KubeVirt"
    NIM = "a service of NIM's operator"
    VALUES = "values of a chart that go into a pod as they are"
    OLLAMA = "values of ollama's chart, which makes the claim"


class Rendered(Struct, frozen=True):
    """The pod spec that a chart makes from its values, as far as devices matter; a patch of it must add the claims.

    ``kind``, ``selector``: of the object that has it. ``asks``: where the values ask for devices, from the document.
    """

    body: Value
    kind: str
    selector: str
    asks: tuple[Path, ...] = ()


class PodSpec(Struct, frozen=True):
    """One pod spec: its path in the document, and whether it was recognised only by its shape.

    For a chart's values: ``containers`` with their roles, and ``claims``, the key for ``resourceClaims``; or the pod
    that is ``rendered`` from them. ``refused``: why values that ask for devices stay on limits.
    """

    path: Path
    by_shape: bool = False
    form: Form = Form.POD
    containers: tuple[tuple[Path, str], ...] = ()
    claims: Path = ()
    rendered: Rendered | None = None
    refused: str = ""


class Manifest(Struct, frozen=True):
    """One object of a document: a List has several."""

    path: Path
    kind: str
    name: str
    namespace: str
    body: dict[str, Value]

    @property
    def pods_namespace(self) -> str:
        """Return its pods' namespace, which an object that installs a chart may set apart from its own."""
        spec = at(self.body, ("spec",))
        if self.kind in ("HelmRelease", "HelmChart"):
            return text_at(spec, "targetNamespace") or self.namespace
        return text_at(at(spec, ("destination",)), "namespace") if self.kind == "Application" else self.namespace

    @property
    def group(self) -> str:
        """Return the API group; "" for the core's."""
        return text_at(self.body, "apiVersion").rpartition("/")[0]

    @property
    def version(self) -> str:
        """Return the version of its API."""
        return text_at(self.body, "apiVersion").rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else self.kind


def manifests(document: Value, path: Path = ()) -> Iterator[Manifest]:
    """Yield the objects of a document at a path; none if it is no Kubernetes object."""
    kind, metadata = text_at(document, "kind"), at(document, ("metadata",))
    if not kind or not text_at(document, "apiVersion") or not isinstance(document, dict):
        return
    items = document.get("items")
    if kind.endswith("List") and isinstance(items, list):
        for number, item in enumerate(items):
            yield from manifests(item, (*path, "items", number))
        return
    name = text_at(metadata, "name") or text_at(metadata, "generateName")
    yield Manifest(path, kind, name, text_at(metadata, "namespace"), document)


def remarks_on(manifest: Manifest) -> Iterator[str]:
    """Yield remarks: what else to do when this object is converted."""
    operator = counting_operator(manifest.group, manifest.kind)
    if message := (operator.after if operator else "") or _NOTES.get(manifest.kind, ""):
        yield message
    if text_at(at(manifest.body, ("metadata", "labels")), _KUEUE_QUEUE):
        yield (
            "its queue of Kueue counts claims only where deviceClassMappings of Kueue's configuration has their "
            "DeviceClass: else they escape the quota"
        )


def pod_specs(manifest: Manifest, own_paths: Mapping[str, tuple[str, ...]]) -> list[PodSpec]:
    """Return the pod specs of an object: by the caller's paths, by the table, then by shape, each once.

    A path of the caller's may name the template or the spec in it.
    """
    if (vm := _virtual_machine(manifest)) is not None:
        return [vm]
    if manifest.kind == _NIM and isinstance(at(manifest.body, ("spec", "resources")), dict):
        return [PodSpec((*manifest.path, "spec"), form=Form.NIM)]
    if manifest.kind in ARGO_TEMPLATES:
        return list(_argo_templates(manifest))
    predictor = at(manifest.body, ("spec", "predictor"))
    if manifest.kind == "InferenceService" and isinstance(predictor, dict) and any(key in predictor for key in MODELS):
        standard = text_at(at(manifest.body, ("metadata", "annotations")), _KSERVE_MODE) in _WITHOUT_KNATIVE
        whole = standard and "workerSpec" not in predictor
        return [PodSpec((*manifest.path, "spec", "predictor"), form=Form.MODEL)] if whole else []
    found: dict[Path, PodSpec] = {}
    for pattern in (*own_paths.get(manifest.kind, ()), *POD_SPECS.get(manifest.kind, ())):
        for path in matching(manifest.body, tuple(pattern.split("."))):
            inner = (*path, "spec") if at(manifest.body, (*path, "containers")) is None else path
            if isinstance(at(manifest.body, (*inner, "containers")), list):
                found[inner] = PodSpec((*manifest.path, *inner))
    for path in _shaped(manifest.body, ()):
        found.setdefault(path, PodSpec((*manifest.path, *path), by_shape=True))
    return list(found.values())


def _virtual_machine(manifest: Manifest) -> PodSpec | None:
    if manifest.kind not in KUBEVIRT_VMS:
        return None
    path = tuple(KUBEVIRT_VMS[manifest.kind].split("."))
    devices = at(manifest.body, (*path, "domain", "devices"))
    return PodSpec((*manifest.path, *path), form=Form.VM) if isinstance(devices, dict) else None


def _argo_templates(manifest: Manifest) -> Iterator[PodSpec]:
    pattern = ARGO_TEMPLATES[manifest.kind]
    if at(manifest.body, (*pattern.split(".")[:-2], "templateDefaults", "podSpecPatch")) is not None:
        return  # a template's podSpecPatch would replace it
    for path in matching(manifest.body, tuple(pattern.split("."))):
        template = at(manifest.body, path)
        if isinstance(template, dict) and any(key in template for key in _ARGO_PODS):
            yield PodSpec((*manifest.path, *path), form=Form.ARGO)


def _shaped(body: Value, path: Path) -> Iterator[Path]:
    """Yield the paths of mappings that have containers with names and images. Does not look inside these."""
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


_COPIES = ("replicas", "parallelism", "size", "numNodes")


def copies(document: Value, path: Path) -> int:
    """Return how many pods are made from the pod spec at a path, if the keys around it say so; else 1."""
    found = 1
    for length in range(len(path)):
        around = at(document, path[:length])
        said = next((text for key in _COPIES if (text := text_at(around, key))), "")
        found *= int(said) if said.isascii() and said.isdigit() and len(said) < 6 else 1
    return found
