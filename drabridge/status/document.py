"""Build the status document: what an on-call person needs, for ``drabridge status``, the page and scripts.

Within one ``apiVersion`` keys are added, never renamed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from drabridge.inventory.devices import Attribute, Device, Presence, Semver, Snapshot
from drabridge.inventory.fallbacks import why_fallbacks
from drabridge.ledger.eligibility import blocking_relative, cordoned_by, dra_schedulable, legacy_healthy
from drabridge.ledger.entries import ClaimHold, ClaimPhase, Entry, Hold, Lane, Ledger, Owner, PodRef
from drabridge.ledger.policy import LedgerPolicy
from drabridge.offers.turns import NOBODYS, Turns

API_VERSION = "drabridge/v1alpha1"
_UNPUBLISHED = "waits for the API server, which has not taken our slices"  # kubelet is asked only after that
Document = dict[str, Any]


class KubeletConnection(Struct, frozen=True):
    """The connection with kubelet for one resource, or for the DRA driver."""

    api: str
    name: str
    phase: str
    ready: bool
    since: float
    error: str = ""


class RecentRefusal(Struct, frozen=True):
    """One grant that was refused, for the list of recent ones."""

    at: float
    api: str
    device: str
    reason: str
    message: str


class AgentInfo(Struct, frozen=True):
    """Identifies the agent."""

    node: str
    driver: str
    version: str
    started_at: float  # wall seconds


class NodeDevices(Struct, frozen=True):
    """The node's devices, who holds them, and which API may offer them."""

    ledger: Ledger
    snapshot: Snapshot
    policy: LedgerPolicy
    desired: Mapping[str, Mapping[str, str]] = MappingProxyType({})  # resource -> {legacy, dra, source}
    published: bool = True  # the API server has our slices
    turns: Turns = NOBODYS


class Findings(Struct, frozen=True):
    """What the agent reports of itself."""

    connections: Sequence[KubeletConnection] = ()
    not_ready: Sequence[str] = ()  # why ``/readyz`` says no
    refusals: Iterable[RecentRefusal] = ()
    notes: Sequence[str] = ()  # further sentences for people
    features: Sequence[Mapping[str, Any]] = ()  # of the cluster: name, state, askedBy, sentence, needed


def stamp(at: float) -> str:
    """Write wall seconds as RFC 3339; empty for never."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z") if at else ""


def document(agent: AgentInfo, devices: NodeDevices, findings: Findings, *, now: float) -> Document:
    """Return the whole document. ``now``: wall seconds."""
    ledger, snapshot = devices.ledger, devices.snapshot
    present = snapshot.by_name()
    rows = [_device(devices, entry, present.get(entry.name)) for entry in _ordered(ledger, snapshot)]
    collisions = list(map(str, snapshot.collisions))
    return {
        "apiVersion": API_VERSION,
        "kind": "Status",
        "node": agent.node,
        "driver": agent.driver,
        "version": agent.version,
        "at": stamp(now),
        "startedAt": stamp(agent.started_at),
        "ready": not findings.not_ready,
        "notReadyBecause": list(findings.not_ready),
        "notes": [
            *findings.notes,
            *(one["sentence"] for one in findings.features if one["sentence"] and one["needed"]),
            *filter(None, [releases_wait(ledger, devices.policy, now)]),
            *why_fallbacks(snapshot.devices),
            *collisions,
        ],
        "collisions": collisions,
        "features": list(findings.features),
        "releasesSuspendedUntil": stamp(until) if (until := ledger.node.releases_suspended_until) > now else "",
        "endpoints": [asdict(one) | {"since": stamp(one.since)} for one in findings.connections],
        "resources": _resources(rows, devices.desired),
        "devices": rows,
        "refusals": [asdict(one) | {"at": stamp(one.at)} for one in findings.refusals],
    }


def _ordered(ledger: Ledger, snapshot: Snapshot) -> list[Entry]:
    place = {device.name: index for index, device in enumerate(snapshot.devices)}
    return sorted(
        ledger.entries.values(), key=lambda entry: (entry.device.resource, place.get(entry.name, 1 << 30), entry.name)
    )


def _device(devices: NodeDevices, entry: Entry, device: Device | None) -> Document:
    """Return the row of one device; ``device`` is None while it is gone."""
    ledger = devices.ledger
    by = cordoned_by(ledger, entry)
    offered = [
        side
        for side, shown in (
            ("legacy", legacy_healthy(ledger, entry) and entry.name not in devices.turns.kept_from_pods),
            ("dra", dra_schedulable(ledger, entry) and not devices.turns.keeps_from_claims(entry)),
        )
        if shown and by is None
    ]
    reason = (device.reason if device else "") or _hindrance_text(ledger, entry) or _former_text(device)
    return {
        "name": entry.name,
        "id": device.id if device else "",
        "resource": entry.device.resource,
        "presence": str(entry.device.presence),
        "reason": "; ".join(filter(None, (_cordon_text(entry, by), reason))),
        "cordoned": by.device.cordoned if by is not None else "",
        "lane": str(entry.lane),
        "owner": str(entry.owner),
        "offered": offered,
        "holders": _holders(entry),
        "since": stamp(entry.since),
        "evidence": evidence(entry),
        "drain": entry.leaves_when_released,
        "move": None
        if entry.move is None
        else {
            "to": str(entry.move.target),
            "step": str(entry.move.step),
            "since": stamp(entry.move.since),
            "reason": entry.move.reason if devices.published or entry.lane is not Lane.LEGACY_TO_DRA else _UNPUBLISHED,
        },
        "releasedBecause": entry.released_because,
        "numaNodes": list(device.numa_nodes) if device else [],
        "pciBusID": device.pci_bus_id if device else "",
        "uuid": _uuid(device) if device else "",
        "root": device.root if device else "",
        "attributes": dict(sorted(map(_attribute, device.attributes.items()))) if device else {},
        "nodes": [node.path for node in device.nodes] if device else [],
        "cdiDevices": list(device.cdi_devices) if device else [],
    }


def _uuid(device: Device) -> str:
    """Return the attribute ``uuid``, or an id that is one (NVIDIA's: ``GPU-...``, ``MIG-...``)."""
    published = device.attributes.get("uuid")
    if isinstance(published, str):
        return published
    return device.id if device.id.startswith(("GPU-", "MIG-")) else ""


def _attribute(named: tuple[str, Attribute]) -> tuple[str, str | bool | int]:
    name, value = named
    return name, value.text if isinstance(value, Semver) else value


def _hindrance_text(ledger: Ledger, entry: Entry) -> str:
    """Return why a device is not offered although its lane and presence allow it; "" if nothing prevents it."""
    if entry.denied:
        return f"claim {entry.denied[0].claim} was denied its lease, and has not let go of it: for no other claim"
    there = entry.owner is Owner.NONE and entry.device.presence is Presence.PRESENT
    if not there or (relative := blocking_relative(ledger, entry)) is None:
        return ""
    why = f"in lane {relative.lane}" if relative.owner is Owner.NONE else f"held ({relative.owner})"
    return f"shares its hardware with {relative.name}, which is {why}"


def _cordon_text(entry: Entry, by: Entry | None) -> str:
    if by is None:
        return ""
    also = "" if by is entry else f" with {by.name}, with which it shares its hardware"
    return f"cordoned{also}: {by.device.cordoned}"


def _former_text(device: Device | None) -> str:
    return "of a former configuration, kept while it is held" if device and device.former else ""


def _holders(entry: Entry) -> list[Document]:
    found: list[Document] = []
    # In quarantine a pod is known only if kubelet shows one.
    if entry.hold is not None and (entry.hold.pods or entry.owner is not Owner.QUARANTINE):
        pods = entry.hold.pods or (None,)
        found += [
            {
                "api": "deviceplugin",
                "namespace": pod.namespace if pod else "",
                "pod": pod.name if pod else "",
                "container": pod.container if pod else "",
                "podUID": pod.uid if pod else "",
                "units": list(entry.hold.units),
            }
            for pod in pods
        ]
    found += [
        {
            "api": "dra",
            "namespace": held.claim.namespace,
            "claim": held.claim.name,
            "claimUID": held.claim.uid,
            "phase": str(held.phase),
            "admin": held.admin,
            "shares": [share.id for share in held.shares],
        }
        for held in entry.claims
        if held.phase is not ClaimPhase.DENIED
    ]
    return found


def evidence(entry: Entry) -> str:
    """Return why the ledger believes that the device is held or free; in quarantine, which evidence is missing."""
    if entry.owner is Owner.NONE:
        return f"released: {entry.released_because}" if entry.released_because else "never held"
    hold = [f"{entry.hold.because}{_seen(entry, entry.hold)}"] if entry.hold is not None else []
    claims = [
        f"{held.phase}{_lingering(held)}{'' if held.api_allocated else ' (no longer allocated in the API)'}"
        for held in entry.claims
        if held.phase is not ClaimPhase.DENIED
    ]
    return ", ".join([*hold, *claims]) or str(entry.owner)


def _lingering(held: ClaimHold) -> str:
    if not held.lingers:
        return ""
    return f", unprepared, its processes may go on until {stamp(held.lingers_until)}"


def releases_wait(ledger: Ledger, policy: LedgerPolicy, now: float) -> str:
    """Return until when holds of pods cannot end, and why; "" if no pod holds a device, or holds may end."""
    node = ledger.node
    held = sum(entry.hold is not None for entry in ledger.entries.values())
    if now >= node.releases_suspended_until or not held:
        return ""
    return (
        f"no device whose pod is not proven to have ended is released before {stamp(node.releases_suspended_until)}: "
        f"{node.suspended_because or 'kubelet or the agent started'} less than {policy.settle_seconds:g} s ago "
        "(safety.settleSeconds), and kubelet may not show all of its pods yet"
    )


def _seen(entry: Entry, hold: Hold) -> str:
    if hold.last_seen:
        return f", seen {stamp(hold.last_seen)}"
    return "" if hold.confirmed or entry.owner is Owner.QUARANTINE else ", not yet confirmed by kubelet"


def _resources(rows: Sequence[Mapping[str, Any]], desired: Mapping[str, Mapping[str, str]]) -> list[Document]:
    """Return the counts of each resource."""
    found = []
    for name in dict.fromkeys([*desired, *(row["resource"] for row in rows)]):
        ours = [row for row in rows if row["resource"] == name]
        lanes = Counter(row["lane"] for row in ours)
        owners = Counter(row["owner"] for row in ours)
        found.append(
            {
                "name": name,
                "devices": len(ours),
                "free": sum(
                    row["owner"] == Owner.NONE and row["presence"] == Presence.PRESENT and not row["cordoned"]
                    for row in ours
                ),
                "cordoned": sum(bool(row["cordoned"]) for row in ours),
                "heldByPods": owners[Owner.LEGACY],
                "heldByClaims": sum(owners[o] for o in (Owner.DRA_PENDING, Owner.DRA_GRANTED, Owner.DRA_PREPARED)),
                "inDoubt": owners[Owner.CONFLICT] + owners[Owner.QUARANTINE],
                "unusable": sum(row["presence"] != Presence.PRESENT for row in ours),
                "lanes": {str(lane): lanes[lane] for lane in Lane if lanes[lane]},
                "wanted": dict(desired.get(name, {"legacy": "", "dra": "", "source": "none"})),
                "moving": sum(row["move"] is not None for row in ours),
                "offeredToPods": sum("legacy" in row["offered"] and row["owner"] == Owner.NONE for row in ours),
                "offeredToClaims": sum("dra" in row["offered"] and row["owner"] == Owner.NONE for row in ours),
            }
        )
    return found


def allocation_labels(entry: Entry) -> list[tuple[str, ...]]:
    """Return label values of ``device_allocation_info``, one row for each container, claim or share that holds it."""
    device, resource = entry.name, entry.device.resource
    rows: list[tuple[str, ...]] = []
    if entry.hold is not None:
        pods = entry.hold.pods or (PodRef(),)
        rows += [(device, resource, "deviceplugin", pod.namespace, pod.name, pod.container, "", "") for pod in pods]
    for held in entry.claims:
        if held.phase is ClaimPhase.DENIED:
            continue
        for share in held.shares or (None,):
            share_id = share.id if share else ""
            rows.append((device, resource, "dra", held.claim.namespace, "", "", held.claim.name, share_id))
    return list(dict.fromkeys(rows))
