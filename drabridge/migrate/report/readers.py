"""Define what the report reads: which kinds, which fields, and the small facts of each object. Pure.

Each reader takes one object and returns one struct. Malformed data raises any exception.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from msgspec import Struct

from drabridge.config.quantity import parse
from drabridge.kube.api import NODES, PODS, Kind, device_classes, resource_claims, resource_slices
from drabridge.kube.json_reader import ObjectView, fields, list_of
from drabridge.kube.versions import NEWEST_RESOURCE_VERSION, RESOURCE_GROUP
from drabridge.migrate.convert.templates import MOST_DEVICES
from drabridge.migrate.installers import Installer, installer_of
from drabridge.migrate.report.codes import Code
from drabridge.migrate.report.document import NamespaceSwitch
from drabridge.migrate.switch import marks

# --- which kinds are read -------------------------------------------------------------------------------------------

Json = Mapping[str, Any]

NAMESPACES = Kind("", "v1", "namespaces", namespaced=False)
QUOTAS = Kind("", "v1", "resourcequotas")
WORKLOADS = {  # kind -> where it is
    "ReplicaSet": Kind("apps", "v1", "replicasets"),
    "Deployment": Kind("apps", "v1", "deployments"),
    "StatefulSet": Kind("apps", "v1", "statefulsets"),
    "DaemonSet": Kind("apps", "v1", "daemonsets"),
    "Job": Kind("batch", "v1", "jobs"),
    "CronJob": Kind("batch", "v1", "cronjobs"),
}


def is_built_in(kind: str) -> bool:
    """Whether a kind is Pod, or a built-in kind that makes pods."""
    return kind in WORKLOADS or kind == "Pod"


def claim_templates(version: str) -> Kind:
    return Kind(RESOURCE_GROUP, version, "resourceclaimtemplates")


def all_kinds() -> tuple[Kind, ...]:
    """Return every kind that is listed."""
    version = NEWEST_RESOURCE_VERSION
    dra = (device_classes(version), resource_slices(version), resource_claims(version), claim_templates(version))
    return (NODES, NAMESPACES, PODS, QUOTAS, *WORKLOADS.values(), *dra)


def cluster_role() -> dict[str, Any]:
    """Return the ClusterRole. It reads no Secrets and no ConfigMaps, and writes nothing.

    Which versions a server has needs no rule: every user may ask (ClusterRole system:discovery).
    """
    by_group: dict[str, list[str]] = {}
    for kind in all_kinds():
        by_group.setdefault(kind.group, []).append(kind.plural)
    rules = [{"apiGroups": [group], "resources": plurals, "verbs": ["list"]} for group, plurals in by_group.items()]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "drabridge-migrate-report"},
        "rules": rules,
    }


# --- what is seen in a pod ------------------------------------------------------------------------------------------

_MIRROR = "kubernetes.io/config.mirror"
_QUEUE = "kueue.x-k8s.io/queue-name"
_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
_NO_DEVICES = ("", "void", "none")  # values for which NVIDIA's container toolkit gives no device
_NATIVE_DOMAIN = "kubernetes.io"
_DEFAULT_SCHEDULER = "default-scheduler"


class Sign(Struct, frozen=True):
    """One thing seen in a pod: its code, the resource that it is about ("" for all), and what was seen."""

    code: Code
    resource: str
    seen: str


@functools.lru_cache(maxsize=1024)
def is_extended(name: str) -> bool:
    """Return whether a resource is an extended one (IsExtendedResourceName in pkg/apis/core/v1/helper)."""
    domain, slash, _ = name.partition("/")
    if not slash or name.startswith("requests."):
        return False
    if domain == "deviceclass.resource.kubernetes.io":  # KEP-5004's name for any DeviceClass
        return True
    return domain != _NATIVE_DOMAIN and not domain.endswith(f".{_NATIVE_DOMAIN}")


def limits_of(amounts: Json | None, *, zero: bool = False) -> tuple[tuple[str, int], ...]:
    """Return (name, count) of the extended resources, sorted. ``zero`` keeps those of which there is none."""
    if not amounts:
        return ()
    found = {name: _count(str(value)) for name, value in amounts.items() if value and is_extended(name)}
    return tuple(sorted((name, count) for name, count in found.items() if count or zero))


@functools.lru_cache(maxsize=1024)
def _count(quantity: str) -> int:
    return int(parse(quantity))


def pod_limits(spec: Json) -> tuple[tuple[str, int], ...]:
    """Return how many devices of each extended resource a pod needs at most at one time.

    Init containers run one after the other, beside the sidecars that began before them (PodRequests in
    k8s.io/component-helpers/resource).
    """
    init: Sequence[Json] = spec.get("initContainers") or ()
    app: Sequence[Json] = spec.get("containers") or ()
    if not init and len(app) == 1:  # most pods, and there may be fifty thousand of them
        return _limits(app[0])
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for container in init:
        own = Counter(dict(_limits(container)))
        if container.get("restartPolicy") == "Always":
            running += own
            own = Counter()
        most |= running + own
    for container in app:
        running += Counter(dict(_limits(container)))
    return tuple(sorted((running | most).items()))


def signs_of(meta: Json, spec: Json, limits: Sequence[tuple[str, int]], *, template: bool) -> tuple[Sign, ...]:
    """Return the signs in a pod, or a pod template, that matter once its ``limits`` are claims."""
    return tuple(_signs(meta, spec, limits, template=template)) if limits else tuple(_without_limits(spec))


def _signs(meta: Json, spec: Json, limits: Sequence[tuple[str, int]], *, template: bool) -> Iterator[Sign]:
    if _MIRROR in (meta.get("annotations") or {}):
        yield Sign(Code.STATIC_POD, "", "")
    if template and spec.get("nodeName"):
        yield Sign(Code.FIXED_NODE_NAME, "", str(spec["nodeName"]))
    for name, count in limits:
        if count > MOST_DEVICES:
            yield Sign(Code.MORE_THAN_32_DEVICES, name, f"{count} devices")
        yield from _containers(spec, name)
    ephemeral = [one.get("name") or "" for one in spec.get("ephemeralContainers") or ()]
    if ephemeral:
        yield Sign(Code.EPHEMERAL_CONTAINER, "", ", ".join(ephemeral))
    yield from _selection(spec, limits)
    if _QUEUE in (meta.get("labels") or {}):
        yield Sign(Code.KUEUE, "", f"queue {meta['labels'][_QUEUE]}")
    if (scheduler := spec.get("schedulerName")) and scheduler != _DEFAULT_SCHEDULER:
        yield Sign(Code.OTHER_SCHEDULER, "", str(scheduler))
    if (priority := spec.get("priorityClassName")) and spec.get("preemptionPolicy") != "Never":
        yield Sign(Code.NO_PREEMPTION, "", f"priority class {priority}")
    runtime = spec.get("runtimeClassName") or ""
    if runtime.startswith("nvidia"):
        yield Sign(Code.RUNTIME_CLASS, "", runtime)
    for container, value in _visible_devices(spec):
        yield Sign(Code.VISIBLE_DEVICES, "", f"{container}: {value}")


def _without_limits(spec: Json) -> Iterator[Sign]:
    """Yield signs of devices that bypass both APIs: NVIDIA's runtime gives them out by an environment variable."""
    if spec.get("resourceClaims"):
        return
    for container, value in _visible_devices(spec):
        if value not in _NO_DEVICES:
            yield Sign(Code.VISIBLE_DEVICES, "", f"{container}: {value}, without limits: its devices count nowhere")


def _containers(spec: Json, resource: str) -> Iterator[Sign]:
    def with_limits(containers: Sequence[Json] | None) -> list[Json]:
        return [one for one in containers or () if dict(_limits(one)).get(resource)]

    init = with_limits(spec.get("initContainers"))
    app = with_limits(spec.get("containers"))
    sidecars = [_name(one) for one in init if one.get("restartPolicy") == "Always"]
    ordinary = [_name(one) for one in init if one.get("restartPolicy") != "Always"]
    if ordinary:
        yield Sign(Code.INIT_CONTAINER, resource, ", ".join(ordinary))
    if sidecars:
        yield Sign(Code.SIDECAR, resource, ", ".join(sidecars))
    if len(app) > 1:
        yield Sign(Code.SEVERAL_CONTAINERS, resource, ", ".join(map(_name, app)))


def _selection(spec: Json, limits: Sequence[tuple[str, int]]) -> Iterator[Sign]:
    """Yield labels of the resource's own domain that choose the node: ``nvidia.com/gpu.product`` for nvidia.com/gpu."""
    keys = list(spec.get("nodeSelector") or ())
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        keys += [one.get("key") or "" for one in term.get("matchExpressions") or ()]
    for resource, _ in limits:
        domain = resource.partition("/")[0]
        found = sorted({key for key in keys if key.partition("/")[0] == domain})
        if found:
            yield Sign(Code.NODE_LABEL_SELECTOR, resource, ", ".join(found))


def _visible_devices(spec: Json) -> Iterator[tuple[str, str]]:
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        for variable in container.get("env") or ():
            if variable.get("name") == _VARIABLE:
                yield _name(container), str(variable.get("value") or "")


def _limits(container: Json) -> tuple[tuple[str, int], ...]:
    return limits_of((container.get("resources") or {}).get("limits"))


def _name(container: Json) -> str:
    return container.get("name") or ""


# --- the facts ------------------------------------------------------------------------------------------------------

Amounts = tuple[tuple[str, int], ...]
"""(name, how many) of each, sorted by name: of extended resources, or of device classes."""

CLASS_RESOURCE = "deviceclass.resource.kubernetes.io/"
"""Every DeviceClass may be asked for under this name and its own in limits (KEP-5004)."""
DEFAULT_SURGE = "25%"  # maxSurge and maxUnavailable of a Deployment (pkg/apis/apps/v1/defaults.go)
_DRIVER = re.compile(r"""device\.driver\s*==\s*["']([^"']+)["']""")
_FINISHED = ("Succeeded", "Failed")


class PodOwner(Struct, frozen=True):
    """The controller of an object, as its ``ownerReferences`` name it."""

    api_version: str
    kind: str
    name: str
    uid: str


class Toleration(Struct, frozen=True):
    """A taint that a pod tolerates. Empty ``key``: every taint; empty ``effect``: every effect."""

    key: str
    exists: bool
    value: str
    effect: str


class Requirement(Struct, frozen=True):
    """A pod's requirement for one label of its node, with Kubernetes' operators."""

    key: str
    operator: str
    values: tuple[str, ...]


class Placement(Struct, frozen=True):
    """Where pods may run: on nodes with all ``labels`` that also meet one of the ``terms`` (if there are any)."""

    labels: tuple[tuple[str, str], ...] = ()
    terms: tuple[tuple[Requirement, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()


class PodFacts(Struct, frozen=True):
    """What a pod uses, and who made it. ``by_dra``: its extended resources that DRA serves.

    ``node`` is empty while the pod has none.
    """

    namespace: str
    name: str
    uid: str
    owner: PodOwner | None
    node: str
    limits: Amounts
    by_dra: frozenset[str]
    claims: tuple[str, ...]
    templates: tuple[str, ...]
    signs: tuple[Sign, ...]


class WorkloadFacts(Struct, frozen=True):
    """What makes pods. ``limits`` are of one pod.

    ``replicas``: how many pods it wants at a time. ``strategy``: RollingUpdate, Recreate or OnDelete, "" without
    rollouts. In a rollout, ``surge`` pods are made before old ones end, and ``unavailable`` pods may be missing.
    ``installer``: what installed it, and would undo a change.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    owner: PodOwner | None
    replicas: int
    strategy: str
    surge: int
    unavailable: int
    limits: Amounts
    templates: tuple[str, ...]
    place: Placement
    signs: tuple[Sign, ...]
    installer: Installer | None = None


class NodeFacts(Struct, frozen=True):
    """What kubelet says of a node's extended resources: ``allocatable`` has those with 0, too.

    ``taints``: (key, value, effect). ``cordoned``: the scheduler gives it no new pods.
    """

    name: str
    allocatable: Amounts
    cordoned: bool
    taints: tuple[tuple[str, str, str], ...]
    labels: Mapping[str, str]


class SliceFacts(Struct, frozen=True):
    """The number of devices in one ResourceSlice, by their attribute ``resource`` ("" without it).

    ``node`` is empty where its devices are not of one node.
    """

    driver: str
    node: str
    pool: str
    generation: int
    devices: Amounts


class ClassFacts(Struct, frozen=True):
    """A DeviceClass. ``drivers``: those that its CEL selectors name."""

    name: str
    extended: str
    drivers: tuple[str, ...]


class ClaimFacts(Struct, frozen=True):
    """A ResourceClaim: how many devices of each class it holds, or asks for until it is allocated.

    ``held``: how many it holds of each (driver, pool, class).
    """

    namespace: str
    name: str
    allocated: bool
    classes: Amounts
    held: tuple[tuple[tuple[str, str, str], int], ...]


class QuotaFacts(Struct, frozen=True):
    """The limits of a ResourceQuota that are about devices."""

    namespace: str
    name: str
    hard: tuple[str, ...]


def pod_facts(obj: Json) -> PodFacts | None:
    """Return a pod's facts; None if it has ended, or has nothing to do with devices."""
    meta, spec, status = _parts(obj)
    if status.get("phase") in _FINISHED:
        return None
    limits = pod_limits(spec)
    claims = [one.get("resourceClaimName") or "" for one in status.get("resourceClaimStatuses") or ()]
    claims += [one.get("resourceClaimName") or "" for one in spec.get("resourceClaims") or ()]
    templates = _templates(spec)
    mapped = (status.get("extendedResourceClaimStatus") or {}).get("requestMappings") or ()
    by_dra = frozenset(one.get("resourceName") or "" for one in mapped)
    signs = signs_of(meta, spec, limits, template=False)
    if not limits and not any(claims) and not templates and not signs:
        return None
    return PodFacts(
        meta.get("namespace") or "",
        meta.get("name") or "",
        meta.get("uid") or "",
        _owner(meta),
        spec.get("nodeName") or "",
        limits,
        by_dra,
        tuple(sorted(filter(None, claims))),
        templates,
        signs,
    )


def workload_facts(kind: str, obj: Json) -> WorkloadFacts | None:
    """Return the facts of an object that makes pods; None for an old revision, or a Job that has ended."""
    meta, spec, status = _parts(obj)
    if kind == "ReplicaSet" and not spec.get("replicas") and not status.get("replicas"):
        return None
    ended = (one for one in status.get("conditions") or () if one.get("type") in ("Complete", "Failed"))
    if kind == "Job" and any(one.get("status") == "True" for one in ended):
        return None
    making = maker_of_pods(spec)
    template = making.get("template") or {}
    pod = template.get("spec") or {}
    limits, templates = pod_limits(pod), _templates(pod)
    replicas = _replicas(kind, making)
    strategy, surge, unavailable = _rollout(kind, spec, replicas)
    return WorkloadFacts(
        kind,
        meta.get("namespace") or "",
        meta.get("name") or "",
        meta.get("uid") or "",
        _owner(meta),
        replicas,
        strategy,
        surge,
        unavailable,
        limits,
        templates,
        _place(pod),
        signs_of(template.get("metadata") or {}, pod, limits, template=True),
        installer_of(meta),
    )


def node_facts(obj: Json) -> NodeFacts:
    meta, spec, status = _parts(obj)
    taints = spec.get("taints") or ()
    return NodeFacts(
        meta.get("name") or "",
        limits_of({**dict.fromkeys(status.get("capacity") or (), "0"), **(status.get("allocatable") or {})}, zero=True),
        bool(spec.get("unschedulable")),
        tuple((one.get("key") or "", one.get("value") or "", one.get("effect") or "") for one in taints),
        {key: value or "" for key, value in (meta.get("labels") or {}).items()},
    )


def slice_facts(obj: Json) -> SliceFacts:
    spec = obj.get("spec") or {}
    pool = spec.get("pool") or {}
    count: Counter[str] = Counter()
    for device in spec.get("devices") or ():
        attributes = device.get("attributes") or (device.get("basic") or {}).get("attributes") or {}
        count[(attributes.get("resource") or {}).get("string") or ""] += 1
    return SliceFacts(
        spec.get("driver") or "",
        spec.get("nodeName") or "",
        pool.get("name") or "",
        pool.get("generation") or 0,
        tuple(sorted(count.items())),
    )


def class_facts(obj: Json) -> ClassFacts:
    meta, spec, _ = _parts(obj)
    expressions = [(one.get("cel") or {}).get("expression") or "" for one in spec.get("selectors") or ()]
    drivers = {driver for text in expressions for driver in _DRIVER.findall(text)}
    return ClassFacts(meta.get("name") or "", spec.get("extendedResourceName") or "", tuple(sorted(drivers)))


def claim_facts(obj: Json) -> ClaimFacts:
    meta, spec, status = _parts(obj)
    classes_by_request: dict[str, str] = {}
    count: Counter[str] = Counter()
    for request in (spec.get("devices") or {}).get("requests") or ():
        name, options = request.get("name") or "", request.get("firstAvailable") or ()
        for option in options:
            classes_by_request[f"{name}/{option.get('name')}"] = option.get("deviceClassName") or ""
        first = options[0] if options else request.get("exactly") or request
        classes_by_request[name] = first.get("deviceClassName") or ""
        count[classes_by_request[name]] += first.get("count") or 1
    allocation = status.get("allocation")
    held: Counter[tuple[str, str, str]] = Counter()
    if allocation:
        count.clear()
        for one in (allocation.get("devices") or {}).get("results") or ():
            device_class = classes_by_request.get(one.get("request") or "", "")
            count[device_class] += 1
            held[one.get("driver") or "", one.get("pool") or "", device_class] += 1
    classes = tuple(sorted((name, amount) for name, amount in count.items() if name))
    names = meta.get("namespace") or "", meta.get("name") or ""
    return ClaimFacts(*names, bool(allocation), classes, tuple(sorted(held.items())))


def quota_facts(obj: Json) -> QuotaFacts:
    meta, spec, _ = _parts(obj)
    return QuotaFacts(meta.get("namespace") or "", meta.get("name") or "", tuple(sorted(spec.get("hard") or ())))


def template_name(obj: Json) -> tuple[str, str]:
    """Return (namespace, name) of a ResourceClaimTemplate."""
    meta = obj.get("metadata") or {}
    return meta.get("namespace") or "", meta.get("name") or ""


def namespace_facts(obj: Json) -> tuple[str, NamespaceSwitch | None]:
    """Return a Namespace's name, and its switch; None if its new pods keep their limits."""
    meta = obj.get("metadata") or {}
    switch = None
    if (meta.get("labels") or {}).get(marks.LABEL) == marks.CLAIMS:
        notes = meta.get("annotations") or {}
        switch = NamespaceSwitch(marks.percent_of(notes), notes.get(marks.SELECTOR) or "")
    return meta.get("name") or "", switch


def _parts(obj: Json) -> tuple[Json, Json, Json]:
    return obj.get("metadata") or {}, obj.get("spec") or {}, obj.get("status") or {}


def _owner(meta: Json) -> PodOwner | None:
    """Return the owner that is the controller; without one, the first owner."""
    owners = meta.get("ownerReferences") or ()
    for one in sorted(owners, key=lambda one: not one.get("controller")):
        words = (one.get(key) or "" for key in ("apiVersion", "kind", "name", "uid"))
        return PodOwner(*words)
    return None


def _templates(spec: Json) -> tuple[str, ...]:
    names = {one.get("resourceClaimTemplateName") or "" for one in spec.get("resourceClaims") or ()}
    return tuple(sorted(filter(None, names)))


def maker_of_pods(spec: Json) -> Json:
    """Return the spec that has the pod template: a workload's own, or for a CronJob that of its Job."""
    return (spec["jobTemplate"] or {}).get("spec") or {} if "jobTemplate" in spec else spec


def _place(spec: Json) -> Placement:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return Placement(
        tuple(sorted((key, value or "") for key, value in (spec.get("nodeSelector") or {}).items())),
        tuple(
            tuple(
                Requirement(one.get("key") or "", one.get("operator") or "", tuple(one.get("values") or ()))
                for one in term.get("matchExpressions") or ()
            )
            for term in required.get("nodeSelectorTerms") or ()
        ),
        tuple(
            Toleration(
                one.get("key") or "", one.get("operator") == "Exists", one.get("value") or "", one.get("effect") or ""
            )
            for one in spec.get("tolerations") or ()
        ),
    )


def _replicas(kind: str, spec: Json) -> int:
    """Return how many pods are wanted at a time; 0 for a DaemonSet, because nodes decide."""
    if kind == "DaemonSet":
        return 0
    wanted = spec.get("parallelism" if kind in ("Job", "CronJob") else "replicas")
    return 1 if wanted is None else wanted


def _rollout(kind: str, spec: Json, replicas: int) -> tuple[str, int, int]:
    """Return (strategy, surge, unavailable) of a rollout.

    Kubernetes rounds a percentage up for ``maxSurge`` and down for ``maxUnavailable``, and never lets both be 0.
    """
    if kind not in ("Deployment", "StatefulSet"):
        return "", 0, 0
    strategy = spec.get("strategy" if kind == "Deployment" else "updateStrategy") or {}
    name, rolling = strategy.get("type") or "RollingUpdate", strategy.get("rollingUpdate") or {}
    if name != "RollingUpdate":
        return name, 0, replicas
    if kind == "StatefulSet":
        return name, 0, 1
    surge = math.ceil(_share(rolling.get("maxSurge"), replicas))
    unavailable = math.floor(_share(rolling.get("maxUnavailable"), replicas))
    return name, surge if replicas else 0, unavailable or int(not surge)


def _share(wanted: str | int | None, replicas: int) -> Fraction:
    text = DEFAULT_SURGE if wanted is None else str(wanted)
    return Fraction(text[:-1]) * replicas / 100 if text.endswith("%") else Fraction(parse(text))


# --- how each kind is read ------------------------------------------------------------------------------------------

# The fields that are read. All others are skipped without building objects.
_OWNERS = list_of(fields(apiVersion=str, kind=str, name=str, uid=str, controller=bool))
_QUANTITIES = dict[str, str | int | float | None]
_TEXTS = dict[str, str | None]
_ID: dict[str, Any] = {"namespace": str, "name": str, "uid": str}
_POD_META = fields(**_ID, ownerReferences=_OWNERS, annotations=fields(**{_MIRROR: str}), labels=fields(**{_QUEUE: str}))
_CONTAINERS = list_of(
    fields(
        name=str,
        resources=fields(limits=_QUANTITIES),
        env=list_of(fields(name=str, value=str)),
        restartPolicy=str,
    )
)
_TERMS = list_of(fields(matchExpressions=list_of(fields(key=str, operator=str, values=list[str]))))
_REQUIRED = fields(requiredDuringSchedulingIgnoredDuringExecution=fields(nodeSelectorTerms=_TERMS))
_POD_CLAIMS = list_of(fields(resourceClaimName=str, resourceClaimTemplateName=str))
_POD_SPEC: dict[str, Any] = {
    "containers": _CONTAINERS,
    "initContainers": _CONTAINERS,
    "ephemeralContainers": list_of(fields(name=str)),
    "resourceClaims": _POD_CLAIMS,
    "nodeName": str,
    "nodeSelector": _TEXTS,
    "affinity": fields(nodeAffinity=_REQUIRED),
    "runtimeClassName": str,
    "schedulerName": str,
    "priorityClassName": str,
    "preemptionPolicy": str,
}
_TOLERATIONS = list_of(fields(key=str, operator=str, value=str, effect=str))
_TEMPLATE = fields(metadata=_POD_META, spec=fields(**_POD_SPEC, tolerations=_TOLERATIONS))
_STRATEGY = fields(type=str, rollingUpdate=fields(maxSurge=int | str, maxUnavailable=int | str))
_ATTRIBUTES = fields(resource=fields(string=str))
_REQUEST: dict[str, Any] = {"name": str, "deviceClassName": str, "count": int}

# The tolerations of pods are not read: every pod has those that kubelet and the control plane add.
POD = ObjectView(
    pod_facts,
    fields(
        metadata=_POD_META,
        spec=fields(**_POD_SPEC),
        status=fields(
            phase=str,
            extendedResourceClaimStatus=fields(requestMappings=list_of(fields(resourceName=str))),
            resourceClaimStatuses=_POD_CLAIMS,
        ),
    ),
)
_WORKLOAD_FIELDS = fields(
    metadata=fields(
        **_ID,
        ownerReferences=_OWNERS,
        labels=_TEXTS,
        annotations=fields(**{"argocd.argoproj.io/tracking-id": str, "meta.helm.sh/release-name": str}),
    ),
    spec=fields(
        replicas=int,
        parallelism=int,
        template=_TEMPLATE,
        strategy=_STRATEGY,
        updateStrategy=_STRATEGY,
        jobTemplate=fields(spec=fields(parallelism=int, template=_TEMPLATE)),
    ),
    status=fields(replicas=int, conditions=list_of(fields(type=str, status=str))),
)
WORKLOAD = {kind: ObjectView(functools.partial(workload_facts, kind), _WORKLOAD_FIELDS) for kind in WORKLOADS}
NODE = ObjectView(
    node_facts,
    fields(
        metadata=fields(name=str, labels=_TEXTS),
        spec=fields(unschedulable=bool, taints=list_of(fields(key=str, value=str, effect=str))),
        status=fields(capacity=_QUANTITIES, allocatable=_QUANTITIES),
    ),
)
SLICE = ObjectView(
    slice_facts,
    fields(
        spec=fields(
            driver=str,
            nodeName=str,
            pool=fields(name=str, generation=int),
            devices=list_of(fields(attributes=_ATTRIBUTES, basic=fields(attributes=_ATTRIBUTES))),  # basic: v1beta1
        )
    ),
)
_SELECTORS = list_of(fields(cel=fields(expression=str)))
CLASS = ObjectView(
    class_facts, fields(metadata=fields(**_ID), spec=fields(extendedResourceName=str, selectors=_SELECTORS))
)
# ``exactly`` and ``firstAvailable`` are newer than v1beta1, which has their fields in the request.
_REQUESTS = list_of(fields(**_REQUEST, exactly=fields(**_REQUEST), firstAvailable=list_of(fields(**_REQUEST))))
_RESULTS = list_of(fields(request=str, driver=str, pool=str))
CLAIM = ObjectView(
    claim_facts,
    fields(
        metadata=fields(**_ID),
        spec=fields(devices=fields(requests=_REQUESTS)),
        status=fields(allocation=fields(devices=fields(results=_RESULTS))),
    ),
)
QUOTA = ObjectView(quota_facts, fields(metadata=fields(**_ID), spec=fields(hard=_QUANTITIES)))
TEMPLATE = ObjectView(template_name, fields(metadata=fields(**_ID)))
_SWITCH = fields(**{marks.PERCENT: str, marks.SELECTOR: str})
NAMESPACE = ObjectView(
    namespace_facts, fields(metadata=fields(name=str, labels=fields(**{marks.LABEL: str}), annotations=_SWITCH))
)
