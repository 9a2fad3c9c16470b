"""Render a snapshot: tables for people, plain documents (JSON, YAML) for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from podresources import table
from podresources.features import KubeletFeatures
from podresources.filters import Filters
from podresources.model import Allocatable, Api, Memory, NodeSnapshot, PodAllocation, shared_claims

if TYPE_CHECKING:
    from podresources.resolve.facts import Resolution
    from podresources.resolve.resolver import Resolved

Document = dict[str, Any]

TABLE = ("NAMESPACE", "POD", "CONTAINER", "API", "RESOURCE", "COUNT", "DEVICES", "NUMA", "CLAIM")
WIDE = ("NAMESPACE", "POD", "CONTAINER", "API", "RESOURCE", "DEVICE", "POOL", "SHARE", "NUMA", "CLAIM", "CDI")


class Pinned(NamedTuple):
    """CPUs or memory that a container, or with an empty name the pod (1.37), has for itself."""

    namespace: str
    pod: str
    container: str
    cpu_ids: tuple[int, ...]
    memory: tuple[Memory, ...]


def pinned(snapshot: NodeSnapshot, selection: Filters) -> Iterator[Pinned]:
    """Yield the exclusive CPUs and pinned memory of the pods, if ``cpu`` or the memory type is selected."""
    cpus = selection.of_resource("cpu")
    for pod in snapshot.pods:
        for name, cpu_ids, memory in [(c.name, c.cpu_ids, c.memory) for c in pod.containers] + [
            ("", pod.cpu_ids, pod.memory)
        ]:
            blocks = tuple(block for block in memory if selection.of_resource(block.memory_type))
            if blocks or (cpus and cpu_ids):
                yield Pinned(pod.namespace, pod.name, name, cpu_ids if cpus else (), blocks)


def list_table(snapshot: NodeSnapshot, selection: Filters, width: int | None) -> str:
    """Render one line per container and resource, or claim."""
    shared = shared_claims(snapshot.allocations)
    rows: list[tuple[str, ...]] = []
    for _, group in groupby(sorted(snapshot.allocations, key=_group_key), key=_group_key):
        held = list(group)
        first = held[0]
        devices = ",".join(_device(allocation) for allocation in held)
        nodes = table.ranges([node for allocation in held for node in allocation.numa_nodes])
        source = first.resource or first.driver or ""
        rows.append((*first.holder, first.api, source, str(len(held)), devices, nodes, _claim(first, shared)))
    rows += [(*row[:5], count, row[5], row[6], "") for row, count in _pinned_rows(snapshot, selection)]
    return table.render(TABLE, sorted(rows), width)


def list_wide(snapshot: NodeSnapshot, selection: Filters) -> str:
    """Render one line per container and device, with everything that is known, never cut."""
    shared = shared_claims(snapshot.allocations)
    rows: list[tuple[str, ...]] = [
        (
            *held.holder,
            str(held.api),
            held.resource or held.driver or "",
            held.device_ids[0] if held.device_ids else held.device or "",
            held.pool or "",
            held.share_id or "",
            table.ranges(held.numa_nodes),
            _claim(held, shared),
            ",".join(held.cdi_ids),
        )
        for held in snapshot.allocations
    ]
    rows += [(*row[:6], "", "", row[6], "", "") for row, _ in _pinned_rows(snapshot, selection)]
    return table.render(WIDE, sorted(rows))


RESOLVED = ("HOLDER", "RESOURCE", "DEVICE", "SHARE", "UUID", "PCI", "POD UID", "SOURCE")
RESOLVED_WIDE = (*RESOLVED, "GPU UUID", "INSTANCE", "MODEL", "SERIAL", "CLAIM", "CONFLICTS")


def resolved_table(snapshot: NodeSnapshot, resolved: Resolved, width: int | None) -> str:
    """Render one line per container and device, with the hardware behind it."""
    rows = [row[: len(RESOLVED)] for row in _resolved_rows(snapshot, resolved)]
    return table.render(RESOLVED, rows, width, whole=("PCI",))


def resolved_wide(snapshot: NodeSnapshot, resolved: Resolved) -> str:
    """Render one line per container and device, with the hardware and everything else that is known, never cut."""
    return table.render(RESOLVED_WIDE, _resolved_rows(snapshot, resolved))


def resolution_document(found: Resolution) -> Document:
    """Turn what is known of a held device into a plain document. Unknown values are empty texts."""
    return {
        "uuid": found.facts.uuid,
        "gpu_uuid": found.exporter_uuid,
        "gpu_instance": found.facts.gpu_instance,
        "pci_bus_id": found.facts.pci_bus_id,
        "model": found.facts.model,
        "serial_number": found.facts.serial_number,
        "share": found.share,
        "source": found.source,
        "pod_uid": found.pod_uid,
        "pod_uid_source": found.pod_uid_source,
        "conflicts": list(found.conflicts),
    }


def list_document(
    snapshot: NodeSnapshot, selection: Filters, features: KubeletFeatures, resolved: Resolved | None = None
) -> Document:
    """Return everything, for programs. ``facts.notes`` are sentences on what this kubelet cannot tell."""
    found = list(pinned(snapshot, selection))
    problems = (
        {} if resolved is None else {"resolve_problems": {by: list(said) for by, said in resolved.problems.items()}}
    )

    def document(held: PodAllocation) -> Document:
        more = {} if resolved is None else {"resolved": resolution_document(resolved.of(held))}
        return allocation_document(held) | more

    return {
        "pods": len(snapshot.pods),
        "allocations": [document(held) for held in sorted(snapshot.allocations, key=lambda held: held.key)],
        "cpus": [{**_holder(row), "cpu_ids": list(row.cpu_ids)} for row in found if row.cpu_ids],
        "memory": [{**_holder(row), **memory_document(block)} for row in found for block in row.memory],
        "facts": features_document(features),
        **problems,
    }


def allocatable_table(capacity: Allocatable, width: int | None) -> str:
    """Render one line per resource."""
    rows = []
    for resource, group in groupby(sorted(capacity.devices, key=lambda d: d.device_key), key=lambda d: d.resource):
        devices = list(group)
        nodes = table.ranges([node for device in devices for node in device.numa_nodes])
        rows.append((resource, str(len(devices)), ",".join(device.device_id for device in devices), nodes))
    return table.render(("RESOURCE", "COUNT", "DEVICES", "NUMA"), rows + _machine_rows(capacity), width)


def allocatable_wide(capacity: Allocatable) -> str:
    """Render one line per device."""
    rows = [(device.resource, device.device_id, table.ranges(device.numa_nodes)) for device in capacity.devices]
    rows += [(name, ids, nodes) for name, _, ids, nodes in _machine_rows(capacity)]
    return table.render(("RESOURCE", "DEVICE", "NUMA"), sorted(rows))


def allocatable_document(capacity: Allocatable) -> Document:
    """Return everything, for programs."""
    return {
        "devices": [
            {"resource": device.resource, "device_id": device.device_id, "numa_nodes": list(device.numa_nodes)}
            for device in sorted(capacity.devices, key=lambda d: d.device_key)
        ],
        "cpu_ids": list(capacity.cpu_ids),
        "memory": [memory_document(block) for block in capacity.memory],
    }


def allocation_document(held: PodAllocation) -> Document:
    """Turn an allocation into a plain document, without the fields that its API does not have."""
    named = {
        "namespace": held.namespace,
        "pod": held.pod,
        "container": held.container,
        "api": str(held.api),
        "resource": held.resource,
        "driver": held.driver,
        "pool": held.pool,
        "device": held.device,
        "claim": held.claim,
        "claim_namespace": held.claim_namespace,
        "share_id": held.share_id,
        "device_ids": list(held.device_ids),
        "cdi_ids": list(held.cdi_ids),
        "numa_nodes": list(held.numa_nodes),
    }
    return {name: value for name, value in named.items() if value is not None}


def memory_document(block: Memory) -> Document:
    """Turn a block of pinned or allocatable memory into a plain document."""
    return {"memory_type": block.memory_type, "size_bytes": block.size_bytes, "numa_nodes": list(block.numa_nodes)}


def features_document(features: KubeletFeatures) -> Document:
    """Return what this kubelet supports: yes, no or unknown, and in words what that hides."""
    return {
        "get": str(features.get),
        "allocatable": str(features.allocatable),
        "dynamic_resources": str(features.dynamic_resources),
        "active_pods_only": str(features.active_pods_only),
        "notes": list(features.notes()),
    }


def _resolved_rows(snapshot: NodeSnapshot, resolved: Resolved) -> list[tuple[str, ...]]:
    shared = shared_claims(snapshot.allocations)
    rows: list[tuple[str, ...]] = []
    for held in sorted(snapshot.allocations, key=lambda held: held.key):
        found = resolved.of(held)
        facts = found.facts
        device = held.device_ids[0] if held.api is Api.DEVICE_PLUGIN else f"{held.pool}/{held.device}"
        source = found.source + (" (conflict)" if found.conflicts else "")
        known = (found.share, facts.uuid, facts.pci_bus_id, found.pod_uid, source)
        more = (facts.gpu_uuid, facts.gpu_instance, facts.model, facts.serial_number, _claim(held, shared))
        conflicts = "; ".join(found.conflicts)
        rows.append((str(held.holder), held.resource or held.driver or "", device, *known, *more, conflicts))
    return rows


def _group_key(held: PodAllocation) -> tuple[str, ...]:
    claim = (held.claim_namespace or "", held.claim or "")
    return (*held.holder, held.api, held.resource or held.driver or "", *claim)


def _device(held: PodAllocation) -> str:
    if held.api is Api.DEVICE_PLUGIN:
        return held.device_ids[0]
    share = f"#{held.share_id}" if held.share_id else ""
    return f"{held.pool}/{held.device}{share}"


def _claim(held: PodAllocation, shared: frozenset[tuple[str, str]]) -> str:
    if held.claim is None:
        return ""
    elsewhere = f"{held.claim_namespace}/" if held.claim_namespace != held.namespace else ""
    mark = " (shared)" if (held.claim_namespace or "", held.claim) in shared else ""
    return f"{elsewhere}{held.claim}{mark}"


def _pinned_rows(snapshot: NodeSnapshot, selection: Filters) -> Iterator[tuple[tuple[str, ...], str]]:
    """``(holder, API, resource, device, NUMA), count``.

    The API column names the part of kubelet that decided.
    """
    for row in pinned(snapshot, selection):
        holder = (row.namespace, row.pod, row.container)
        if row.cpu_ids:
            yield (*holder, "cpumanager", "cpu", table.ranges(row.cpu_ids), ""), str(len(row.cpu_ids))
        for block in row.memory:
            yield (
                (*holder, "memorymanager", block.memory_type, table.size(block.size_bytes), _nodes(block)),
                "",
            )


def _machine_rows(capacity: Allocatable) -> list[tuple[str, str, str, str]]:
    cpus = [("cpu", str(len(capacity.cpu_ids)), table.ranges(capacity.cpu_ids), "")] if capacity.cpu_ids else []
    return cpus + [(block.memory_type, "", table.size(block.size_bytes), _nodes(block)) for block in capacity.memory]


def _nodes(block: Memory) -> str:
    return table.ranges(block.numa_nodes)


def _holder(row: Pinned) -> Document:
    return {"namespace": row.namespace, "pod": row.pod, "container": row.container}
