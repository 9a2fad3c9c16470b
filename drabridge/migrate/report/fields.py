"""Name the fields that the report reads of objects. Everything else is skipped, never built. A field may be null."""

from __future__ import annotations

from typing import Any, TypedDict

Amounts = dict[str, str | int | float | None]
Texts = dict[str, str | None]


class _Owner(TypedDict, total=False):
    apiVersion: str | None
    kind: str | None
    name: str | None
    uid: str | None
    controller: bool | None


_InstallerNotes = TypedDict(
    "_InstallerNotes",
    {"argocd.argoproj.io/tracking-id": str | None, "meta.helm.sh/release-name": str | None},
    total=False,
)


class _Meta(TypedDict, total=False):
    name: str | None
    namespace: str | None
    uid: str | None
    labels: Texts | None
    annotations: _InstallerNotes | None
    ownerReferences: list[_Owner] | None


_Mirror = TypedDict("_Mirror", {"kubernetes.io/config.mirror": str | None}, total=False)
_QueueName = TypedDict("_QueueName", {"kueue.x-k8s.io/queue-name": str | None}, total=False)


class _PodMeta(TypedDict, total=False):
    name: str | None
    namespace: str | None
    uid: str | None
    annotations: _Mirror | None
    labels: _QueueName | None
    ownerReferences: list[_Owner] | None


class _Resources(TypedDict, total=False):
    limits: Amounts | None


class _Env(TypedDict, total=False):
    name: str | None
    value: str | None


class _Container(TypedDict, total=False):
    name: str | None
    resources: _Resources | None
    env: list[_Env] | None
    restartPolicy: str | None


class _Named(TypedDict, total=False):
    name: str | None


class _PodClaim(TypedDict, total=False):
    name: str | None
    resourceClaimName: str | None
    resourceClaimTemplateName: str | None


class _Expression(TypedDict, total=False):
    key: str | None
    operator: str | None
    values: list[str] | None


class _Term(TypedDict, total=False):
    matchExpressions: list[_Expression] | None


class _Terms(TypedDict, total=False):
    nodeSelectorTerms: list[_Term] | None


class _NodeAffinity(TypedDict, total=False):
    requiredDuringSchedulingIgnoredDuringExecution: _Terms | None


class _Affinity(TypedDict, total=False):
    nodeAffinity: _NodeAffinity | None


class _Toleration(TypedDict, total=False):
    key: str | None
    operator: str | None
    value: str | None
    effect: str | None


class _PodSpec(TypedDict, total=False):
    containers: list[_Container] | None
    initContainers: list[_Container] | None
    ephemeralContainers: list[_Named] | None
    resourceClaims: list[_PodClaim] | None
    nodeName: str | None
    nodeSelector: Texts | None
    affinity: _Affinity | None
    runtimeClassName: str | None
    schedulerName: str | None
    priorityClassName: str | None
    preemptionPolicy: str | None


class _RequestMapping(TypedDict, total=False):
    resourceName: str | None


class _ExtendedStatus(TypedDict, total=False):
    resourceClaimName: str | None
    requestMappings: list[_RequestMapping] | None


class _PodStatus(TypedDict, total=False):
    phase: str | None
    extendedResourceClaimStatus: _ExtendedStatus | None
    resourceClaimStatuses: list[_PodClaim] | None


class PodFields(TypedDict, total=False):
    metadata: _PodMeta | None
    spec: _PodSpec | None
    status: _PodStatus | None


class _TemplateSpec(_PodSpec, total=False):
    """Tolerations of pods are not read: kubelet's own are on each."""

    tolerations: list[_Toleration] | None


class _Template(TypedDict, total=False):
    metadata: _PodMeta | None
    spec: _TemplateSpec | None


class _RollingUpdate(TypedDict, total=False):
    maxSurge: int | str | None
    maxUnavailable: int | str | None


class _Strategy(TypedDict, total=False):
    type: str | None
    rollingUpdate: _RollingUpdate | None


class _InnerJobSpec(TypedDict, total=False):
    parallelism: int | None
    template: _Template | None


class _InnerJob(TypedDict, total=False):
    spec: _InnerJobSpec | None


class _WorkloadSpec(TypedDict, total=False):
    replicas: int | None
    parallelism: int | None
    template: _Template | None
    strategy: _Strategy | None
    updateStrategy: _Strategy | None
    jobTemplate: _InnerJob | None


class _Condition(TypedDict, total=False):
    type: str | None
    status: str | None


class _WorkloadStatus(TypedDict, total=False):
    replicas: int | None
    conditions: list[_Condition] | None


class WorkloadFields(TypedDict, total=False):
    """A Deployment, ReplicaSet, StatefulSet, DaemonSet, Job or CronJob."""

    metadata: _Meta | None
    spec: _WorkloadSpec | None
    status: _WorkloadStatus | None


class _Taint(TypedDict, total=False):
    key: str | None
    value: str | None
    effect: str | None


class _NodeSpec(TypedDict, total=False):
    unschedulable: bool | None
    taints: list[_Taint] | None


class _NodeStatus(TypedDict, total=False):
    capacity: Amounts | None
    allocatable: Amounts | None


class NodeFields(TypedDict, total=False):
    metadata: _Meta | None
    spec: _NodeSpec | None
    status: _NodeStatus | None


class _Text(TypedDict, total=False):
    string: str | None


class _Attributes(TypedDict, total=False):
    resource: _Text | None


class _Basic(TypedDict, total=False):
    attributes: _Attributes | None


class _Device(TypedDict, total=False):
    attributes: _Attributes | None
    basic: _Basic | None  # resource.k8s.io/v1beta1


class _Pool(TypedDict, total=False):
    name: str | None
    generation: int | None


class _SliceSpec(TypedDict, total=False):
    driver: str | None
    nodeName: str | None
    pool: _Pool | None
    devices: list[_Device] | None


class SliceFields(TypedDict, total=False):
    spec: _SliceSpec | None


class _Cel(TypedDict, total=False):
    expression: str | None


class _Selector(TypedDict, total=False):
    cel: _Cel | None


class _ClassSpec(TypedDict, total=False):
    extendedResourceName: str | None
    selectors: list[_Selector] | None


class ClassFields(TypedDict, total=False):
    metadata: _Meta | None
    spec: _ClassSpec | None


class _Exactly(TypedDict, total=False):
    deviceClassName: str | None
    allocationMode: str | None
    count: int | None


class _Request(_Exactly, total=False):
    """``exactly`` and ``firstAvailable`` are newer than v1beta1, which has the fields here."""

    name: str | None
    exactly: _Exactly | None
    firstAvailable: list[_Request] | None


class _ClaimDevices(TypedDict, total=False):
    requests: list[_Request] | None


class _ClaimSpec(TypedDict, total=False):
    devices: _ClaimDevices | None


class _Result(TypedDict, total=False):
    request: str | None
    driver: str | None
    pool: str | None


class _Results(TypedDict, total=False):
    results: list[_Result] | None


class _Allocation(TypedDict, total=False):
    devices: _Results | None


class _ClaimStatus(TypedDict, total=False):
    allocation: _Allocation | None


class ClaimFields(TypedDict, total=False):
    metadata: _Meta | None
    spec: _ClaimSpec | None
    status: _ClaimStatus | None


class _QuotaSpec(TypedDict, total=False):
    hard: Amounts | None


class QuotaFields(TypedDict, total=False):
    metadata: _Meta | None
    spec: _QuotaSpec | None


class NamedFields(TypedDict, total=False):
    """Only which object it is."""

    metadata: _Meta | None


Json = dict[str, Any]
