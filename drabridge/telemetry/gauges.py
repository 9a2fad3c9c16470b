"""Compute every gauge from the agent's state at one moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from drabridge.inventory.devices import Presence
from drabridge.ledger.eligibility import cordoned_by
from drabridge.ledger.entries import Lane, Owner
from drabridge.status.document import allocation_labels
from drabridge.status.readiness import AgentState
from drabridge.system.untrusted import unreadable
from drabridge.telemetry.metrics import Sample


def samples(state: AgentState, reconciled_at: float) -> Iterator[Sample]:
    """Yield the value of every gauge. ``reconciled_at``: when the last full enumeration of devices ended."""
    counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for resource in state.config.resources:
        for lane in (Lane.LEGACY, Lane.DRA):
            counts["lane_devices", (resource.name, str(lane))] = 0  # lanes without devices get a series, too
    for device in state.snapshot.devices:
        counts["devices", (device.resource, str(device.presence))] += 1
        numa = ",".join(map(str, device.numa_nodes))
        yield "device_info", (device.name, device.id, device.resource, device.pci_bus_id, numa), 1
        yield "device_healthy", (device.name, device.resource), float(device.presence is Presence.PRESENT)
    for entry in state.ledger.entries.values():
        resource_name = entry.device.resource
        counts["lane_devices", (resource_name, str(entry.lane))] += 1
        yield "device_lane", (entry.name, resource_name, str(entry.lane), str(entry.owner)), 1
        if cordoned_by(state.ledger, entry) is not None:
            yield "device_cordoned", (entry.name, resource_name), 1
        for labels in allocation_labels(entry):
            yield "device_allocation_info", labels, 1
        if entry.hold is not None:
            counts["hold_reason", (str(entry.hold.because),)] += 1
    for (name, labels), value in counts.items():
        yield name, labels, value
    for server in state.servers:
        yield "registered", ("deviceplugin", server.resource), float(server.registered)
        yield "ids_left_out", (server.resource,), server.left_out
    claims = state.claims
    if claims.wanted or claims.stranded:
        yield "registered", ("dra", state.config.driver), float(claims.registered)
    if claims.wanted:
        yield "resourceslices_published", (), float(claims.published)
    yield "quarantined_devices", (), sum(one.owner is Owner.QUARANTINE for one in state.ledger.entries.values())
    yield "inventory_collisions", (), len(state.snapshot.collisions)
    yield "inventory_last_reconcile_timestamp_seconds", (), reconciled_at
    if state.nvml_problem is not None:
        yield "nvml_up", (), float(not state.nvml_problem)
    yield "standby", (), 0.0
    yield "ledger_healthy", (), float(not state.troubles.ledger)
    yield "config_last_reload_successful", (), float(not state.troubles.config)
    for kind, count in unreadable().items():
        yield "unreadable_objects", (kind,), count
