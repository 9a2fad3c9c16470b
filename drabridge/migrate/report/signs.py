"""Find in a pod's spec, or in a pod template, what will be different with claims. Pure."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from drabridge.config.quantity import parse
from drabridge.migrate.report.codes import Code

Json = Mapping[str, Any]

MOST_DEVICES_OF_CLAIM = 32  # AllocationResultsMaxSize, staging/src/k8s.io/api/resource/v1/types.go
_MIRROR = "kubernetes.io/config.mirror"
_QUEUE = "kueue.x-k8s.io/queue-name"
_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
_NO_DEVICES = ("", "void", "none")  # values with which NVIDIA's container toolkit gives no device
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
    """Return what a pod, or a pod template, has that matters once its ``limits`` are claims."""
    return tuple(_signs(meta, spec, limits, template=template)) if limits else tuple(_without_limits(spec))


def _signs(meta: Json, spec: Json, limits: Sequence[tuple[str, int]], *, template: bool) -> Iterator[Sign]:
    if _MIRROR in (meta.get("annotations") or {}):
        yield Sign(Code.STATIC_POD, "", "")
    if template and spec.get("nodeName"):
        yield Sign(Code.FIXED_NODE_NAME, "", str(spec["nodeName"]))
    for name, count in limits:
        if count > MOST_DEVICES_OF_CLAIM:
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
    """Yield what gets devices behind both APIs: the variable alone makes NVIDIA's runtime hand them out."""
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
