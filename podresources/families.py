"""Make the metric families of one snapshot. Pure.

Labels follow Kubernetes' instrumentation guidelines (KEP-1206).

Cardinality: the three per-device families have one series per device, or per device and container that holds it, each
family cut at ``max_series`` in sorted order, so that the same series survive every time. All others have one
series per resource, pool, container with exclusive CPUs or pinned memory, or method and status code.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.samples import Timestamp

from podresources.features import KubeletFeatures, Support
from podresources.model import Allocatable, Api, DeviceKey, Memory, NodeSnapshot, PodAllocation
from podresources.table import printable

if TYPE_CHECKING:
    from podresources.resolve.resolver import Resolved

MAX_SERIES = 10_000
"""Most series of each per-device family: twice those of a node with 500 pods and 4,096 devices. More come from a fault,
or a plugin that advertises a device per megabyte. They would harm Prometheus more than their absence does."""

T = TypeVar("T")

HOLDER = ("namespace", "pod", "container")
DEVICE = ("api", "resource", "driver", "pool", "device", "share_id")
ALLOCATION = (*HOLDER, *DEVICE, "claim", "claim_namespace", "numa_node")
RESOLVED = (
    *(*HOLDER, "uid", *DEVICE, "claim", "claim_namespace"),  # uid: of the pod, as kube-state-metrics calls it
    *("UUID", "GPU_I_ID", "mig_uuid", "pci_bus_id", "serial_number"),  # the first two as dcgm-exporter calls them
    *("model", "share", "source"),
)
"""Labels by which the series of other exporters are found: docs/podresources.md has a join for each."""

Dropped = Callable[[str, int], None]
"""Called with a family's name and the number of series that were cut."""


class FamilyInput(Struct, frozen=True):
    """What the families are made of.

    ``known``: every device to show, held or not. ``resolved``: None unless the exporter resolves devices.
    """

    snapshot: NodeSnapshot
    allocatable: Allocatable | None
    known: Sequence[DeviceKey]
    features: KubeletFeatures
    resolved: Resolved | None = None


class _Gauge(GaugeMetricFamily):
    """A family whose labels may have texts of others: of a plugin, a driver, or any program that serves a socket."""

    def add_metric(self, labels: Sequence[str], value: float, timestamp: Timestamp | float | None = None) -> None:
        super().add_metric([*map(printable, labels)], value, timestamp)


def families(view: FamilyInput, dropped: Dropped, max_series: int = MAX_SERIES) -> Iterator[Metric]:
    """Yield every family of the view, one at a time."""
    allocations = {allocation.key: allocation for allocation in view.snapshot.allocations}
    unique = [allocations[key] for key in sorted(allocations)]  # kubelets before 1.34 repeat pods of one name
    known = sorted(view.known)
    yield _pods(view.snapshot)
    yield from _features(view.features)
    yield _allocated(unique, known)
    if view.allocatable is not None:
        yield _allocatable(view.allocatable, known)
        yield _device_allocatable(view.allocatable, known, dropped, max_series)
        yield from _machine(view.allocatable)
    yield _device_holders(unique, known, dropped, max_series)
    yield _allocation_info(unique, dropped, max_series)
    if view.resolved is not None:
        yield from _resolved(unique, view.resolved, dropped, max_series)
    yield from _pinned(view.snapshot)


def snapshot_families(
    snapshot: NodeSnapshot, features: KubeletFeatures, resolved: Resolved | None = None
) -> Iterator[Metric]:
    """Yield what a List alone tells, uncut: for a person who asked once."""
    held = sorted({allocation.device_key for allocation in snapshot.allocations})
    return families(FamilyInput(snapshot, None, held, features, resolved), lambda *_: None, sys.maxsize)


def capacity_families(allocatable: Allocatable) -> Iterator[Metric]:
    """Yield what GetAllocatableResources alone tells, uncut."""
    known = sorted(device.device_key for device in allocatable.devices)
    yield _allocatable(allocatable, known)
    yield _device_allocatable(allocatable, known, lambda *_: None, sys.maxsize)
    yield from _machine(allocatable)


def device_labels(key: DeviceKey) -> list[str]:
    """Return the values of ``DEVICE``: a resource for device plugins, driver and pool for DRA, the rest empty."""
    resource, driver = (key.source, "") if key.api is Api.DEVICE_PLUGIN else ("", key.source)
    return [key.api, resource, driver, key.pool, key.device, key.share_id]


def _pods(snapshot: NodeSnapshot) -> Metric:
    return _Gauge("podresources_pods", "Pods in kubelet's list.", value=len(snapshot.pods))


def _features(features: KubeletFeatures) -> Iterator[Metric]:
    family = _Gauge(
        "podresources_kubelet_feature",
        "Whether this kubelet has been seen to support a feature; absent while unknown.",
        labels=["feature"],
    )
    for name in ("get", "allocatable", "dynamic_resources", "active_pods_only"):
        support = getattr(features, name)
        if support is not Support.UNKNOWN:
            family.add_metric([name], float(support is Support.YES))
    if family.samples:
        yield family


def _allocated(allocations: Iterable[PodAllocation], known: Iterable[DeviceKey]) -> Metric:
    family = _Gauge(
        "podresources_allocated_devices",
        "Devices that at least one container holds; a shared device counts once.",
        labels=["api", "resource", "driver", "pool"],
    )
    counts = Counter(tuple(device_labels(key)[:4]) for key in {allocation.device_key for allocation in allocations})
    for labels in sorted({tuple(device_labels(key)[:4]) for key in known} | counts.keys()):
        family.add_metric(labels, counts[labels])
    return family


def _allocatable(allocatable: Allocatable, known: Iterable[DeviceKey]) -> Metric:
    family = _Gauge(
        "podresources_allocatable_devices",
        "Healthy devices of a device-plugin resource, held or not; 0 once its plugin is gone.",
        labels=["resource"],
    )
    counts = allocatable.count_by_resource()
    for resource in sorted({key.source for key in known if key.api is Api.DEVICE_PLUGIN} | counts.keys()):
        family.add_metric([resource], counts.get(resource, 0))
    return family


def _device_allocatable(
    allocatable: Allocatable, known: Sequence[DeviceKey], dropped: Dropped, max_series: int
) -> Metric:
    family = _Gauge(
        "podresources_device_allocatable",
        "1 while a device-plugin device is healthy and its plugin is there, 0 when it was seen before and is not now.",
        labels=["resource", "device"],
    )
    healthy = {device.device_key for device in allocatable.devices}
    mine = [key for key in known if key.api is Api.DEVICE_PLUGIN]
    for key in _cut(mine, family.name, dropped, max_series):
        family.add_metric([key.source, key.device], float(key in healthy))
    return family


def _device_holders(
    allocations: Iterable[PodAllocation], known: Sequence[DeviceKey], dropped: Dropped, max_series: int
) -> Metric:
    family = _Gauge(
        "podresources_device_holders",
        "Containers that hold the device; 0 for a device that nobody holds.",
        labels=DEVICE,
    )
    counts = Counter(allocation.device_key for allocation in allocations)
    for key in _cut(known, family.name, dropped, max_series):
        family.add_metric(device_labels(key), counts[key])
    return family


def _allocation_info(allocations: Sequence[PodAllocation], dropped: Dropped, max_series: int) -> Metric:
    family = _Gauge(
        "podresources_device_allocation_info",
        "1 per device and container that holds it, over both device APIs: the series to join others with.",
        labels=ALLOCATION,
    )
    for held in _cut(allocations, family.name, dropped, max_series):
        nodes = ",".join(map(str, held.numa_nodes))
        claim = [held.claim or "", held.claim_namespace or ""]
        family.add_metric([*held.holder, *device_labels(held.device_key), *claim, nodes], 1)
    return family


def _resolved(
    allocations: Sequence[PodAllocation], resolved: Resolved, dropped: Dropped, max_series: int
) -> Iterator[Metric]:
    family = _Gauge(
        "podresources_device_resolved_info",
        "1 per device and container that holds it, with the UUID, PCI address and pod UID that other exporters know.",
        labels=RESOLVED,
    )
    for held in _cut(allocations, family.name, dropped, max_series):
        found = resolved.of(held)
        facts = found.facts
        mig = [facts.gpu_instance, facts.uuid if facts.is_instance else ""]
        hardware = [found.exporter_uuid, *mig, facts.pci_bus_id, facts.serial_number]
        holder = [*held.holder, found.pod_uid, *device_labels(held.device_key)]
        claim = [held.claim or "", held.claim_namespace or ""]
        family.add_metric([*holder, *claim, *hardware, facts.model, found.share, found.source], 1)
    yield family
    yield _Gauge(
        "podresources_resolve_conflicts",
        "Held devices about which the sources disagree; `podresources list --resolve` shows who says what.",
        value=sum(bool(resolved.of(held).conflicts) for held in allocations),
    )
    problems = _Gauge(
        "podresources_resolve_problems",
        "Agents, files and servers that could not be read when devices were resolved, by source.",
        labels=["source"],
    )
    for source in resolved.asked:
        problems.add_metric([source], len(resolved.problems.get(source, ())))
    yield problems


def _pinned(snapshot: NodeSnapshot) -> Iterator[Metric]:
    """Yield what containers have for themselves; what a pod's other containers share has an empty container name.

    Kubelet 1.37 lists a pod's whole CPUs and memory beside the containers' own parts of them (kubernetes#138738).
    """
    cpus = _Gauge(
        "podresources_exclusive_cpus",
        "CPUs that a container has for itself; without a container: that the pod's others share.",
        labels=HOLDER,
    )
    memory = _Gauge(
        "podresources_pinned_memory_bytes",
        "Memory and huge pages pinned for a container; without a container: for the pod's others together.",
        labels=[*HOLDER, "memory_type", "numa_node"],
    )
    counts: dict[tuple[str, ...], int] = {}
    sizes: Counter[tuple[str, ...]] = Counter()
    for pod in {(pod.namespace, pod.name): pod for pod in snapshot.pods}.values():
        own: Counter[tuple[str, str]] = Counter()
        for container in pod.containers:
            holder = (pod.namespace, pod.name, container.name)
            if container.cpu_ids:
                counts[holder] = len(container.cpu_ids)
            for place, size in _sizes(container.memory).items():
                sizes[*holder, *place] += size
                own[place] += size
        rest = (pod.namespace, pod.name, "")
        if shared := set(pod.cpu_ids).difference(*(container.cpu_ids for container in pod.containers)):
            counts[rest] = len(shared)
        for place, size in _sizes(pod.memory).items():
            if size > own[place]:
                sizes[*rest, *place] = size - own[place]
    for labels, count in sorted(counts.items()):
        cpus.add_metric(labels, count)
    for labels, size in sorted(sizes.items()):
        memory.add_metric(labels, size)
    yield cpus
    yield memory


def _sizes(blocks: Iterable[Memory]) -> Counter[tuple[str, str]]:
    """``(memory type, NUMA nodes)`` -> bytes."""
    found: Counter[tuple[str, str]] = Counter()
    for block in blocks:
        found[block.memory_type, ",".join(map(str, block.numa_nodes))] += block.size_bytes
    return found


def _machine(allocatable: Allocatable) -> Iterator[Metric]:
    yield _Gauge(
        "podresources_allocatable_cpus",
        "CPUs that kubelet may give out exclusively; 0 unless its CPU manager policy is static.",
        value=len(allocatable.cpu_ids),
    )
    family = _Gauge(
        "podresources_allocatable_memory_bytes",
        "Memory and huge pages that kubelet may pin; none unless its memory manager policy is Static.",
        labels=["memory_type", "numa_node"],
    )
    for labels, size in sorted(_sizes(allocatable.memory).items()):
        family.add_metric(labels, size)
    yield family


def _cut(items: Sequence[T], name: str, dropped: Dropped, max_series: int) -> Sequence[T]:
    excess = len(items) - max_series
    if excess > 0:
        dropped(name, excess)
    return items[:max_series]
