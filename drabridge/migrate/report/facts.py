"""Reduce API objects to the small facts that the report is made of. Pure: one object in, one struct out.

The readers get what :mod:`drabridge.migrate.report.fields` names, and raise what strange data raises.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from msgspec import Struct

from drabridge.config.quantity import parse
from drabridge.migrate.installers import Installer, installer_of
from drabridge.migrate.report.signs import Sign, limits_of, pod_limits, signs_of

Json = Mapping[str, Any]
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
    """A taint that a pod bears; every one where ``key`` is empty, every effect where that is."""

    key: str
    exists: bool
    value: str
    effect: str


class Requirement(Struct, frozen=True):
    """What a pod asks of one label of its node; the operators are Kubernetes' own."""

    key: str
    operator: str
    values: tuple[str, ...]


class Place(Struct, frozen=True):
    """Where pods may run: on nodes with all the ``labels``, and of ``terms`` one whole, if there are some."""

    labels: tuple[tuple[str, str], ...] = ()
    terms: tuple[tuple[Requirement, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()


class PodFacts(Struct, frozen=True):
    """What a pod uses, and who made it. ``by_dra`` are the extended resources that DRA serves to it.

    ``node`` is empty while it has none.
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
    rollouts. In a rollout ``surge`` pods are made before old ones end, and ``unavailable`` ones may lack meanwhile.
    ``installer``: what would undo a change of it.
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
    place: Place
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
    """How many devices one ResourceSlice has, by their attribute ``resource`` ("" where they have none).

    ``node`` is empty where its devices are not of one node.
    """

    driver: str
    node: str
    pool: str
    generation: int
    devices: Amounts


class ClassFacts(Struct, frozen=True):
    """A DeviceClass. ``drivers`` are those that its CEL selectors name."""

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
    """Return a pod's facts; None where it has ended, or has nothing to do with devices."""
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
    """Return the facts of what makes pods; None of an old revision, or of a Job that has ended."""
    meta, spec, status = _parts(obj)
    if kind == "ReplicaSet" and not spec.get("replicas") and not status.get("replicas"):
        return None
    ended = (one for one in status.get("conditions") or () if one.get("type") in ("Complete", "Failed"))
    if kind == "Job" and any(one.get("status") == "True" for one in ended):
        return None
    job = (spec.get("jobTemplate") or {}).get("spec") or {}
    template = (job if kind == "CronJob" else spec).get("template") or {}
    pod = template.get("spec") or {}
    limits, templates = pod_limits(pod), _templates(pod)
    replicas = _replicas(kind, job if kind == "CronJob" else spec)
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


def _parts(obj: Json) -> tuple[Json, Json, Json]:
    return obj.get("metadata") or {}, obj.get("spec") or {}, obj.get("status") or {}


def _owner(meta: Json) -> PodOwner | None:
    """Return the controller; of several owners that are none, the first."""
    owners = meta.get("ownerReferences") or ()
    for one in sorted(owners, key=lambda one: not one.get("controller")):
        words = (one.get(key) or "" for key in ("apiVersion", "kind", "name", "uid"))
        return PodOwner(*words)
    return None


def _templates(spec: Json) -> tuple[str, ...]:
    names = {one.get("resourceClaimTemplateName") or "" for one in spec.get("resourceClaims") or ()}
    return tuple(sorted(filter(None, names)))


def _place(spec: Json) -> Place:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return Place(
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
    """Return how many pods are wanted at a time: of a DaemonSet 0, because nodes decide."""
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
