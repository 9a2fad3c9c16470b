"""Write the ledger's records as text and read them back: JSON objects, in lines with a checksum.

Reading is strict about what it needs, and ignores what it does not know. The checksum is over a line's own bytes: one
over values that are serialised again breaks with every field that is added (NVIDIA/k8s-dra-driver-gpu#1080).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

from drabridge.inventory.model import Presence
from drabridge.ledger.model import (
    ClaimHold,
    ClaimPhase,
    ClaimRef,
    ClaimShare,
    Entry,
    HeldBecause,
    Hold,
    Lane,
    LedgerDevice,
    Move,
    MoveStep,
    NodeState,
    Owner,
    PodRef,
)

Json = dict[str, Any]

_CRC_DIGITS = 8

ENTRY_FIELDS = frozenset(
    {"name", "resource", "units", "root", "presence", "shareable", "capacity", "owner", "lane"}
    | {"syspath", "hold", "claims", "move", "since", "seq", "released_because", "presence_since", "legacy_until"}
    | {"also_at", "was_at", "former", "cordoned"}
)


def entry_to_json(entry: Entry) -> Json:
    """Return an entry as a JSON object; most fields that have their default are left out."""
    device = entry.device
    data: Json = {
        "name": device.name,
        "resource": device.resource,
        "units": device.units,
        "presence": device.presence,
        "owner": entry.owner,
        "lane": entry.lane,
        "since": entry.since,
        "seq": entry.seq,
    }
    if entry.presence_since != entry.since:
        data["presence_since"] = entry.presence_since
    if entry.legacy_until != entry.since:
        data["legacy_until"] = entry.legacy_until
    if device.root:
        data["root"] = device.root
    if device.syspath:
        data["syspath"] = device.syspath
    if device.also_at:
        data["also_at"] = device.also_at
    if entry.was_at:
        data["was_at"] = entry.was_at
    if device.cordoned:
        data["cordoned"] = device.cordoned
    if device.shareable:
        data["shareable"] = True
        data["capacity"] = dict(device.capacity)
    if entry.former:
        data["former"] = _pods_to_json(entry.former)
    if entry.hold is not None:
        data["hold"] = _hold_to_json(entry.hold)
    if entry.claims:
        data["claims"] = [_claim_to_json(held) for held in entry.claims]
    if entry.move is not None:
        move = entry.move
        data["move"] = {
            "source": move.source,
            "target": move.target,
            "step": move.step,
            "since": move.since,
            "step_since": move.step_since,
            "reason": move.reason,
        }
    if entry.released_because:
        data["released_because"] = entry.released_because
    return data


def entry_from_json(data: Mapping[str, Any]) -> Entry:
    """Return the entry of a JSON object. Raises ValueError, KeyError or TypeError if it is not one."""
    device = LedgerDevice(
        _text(data["name"]),
        _text(data.get("resource", "")),
        _texts(data.get("units", ())),
        _text(data.get("root", "")),
        Presence(data.get("presence", Presence.PRESENT)),
        bool(data.get("shareable", False)),
        _amounts(data.get("capacity", {})),
        _text(data.get("syspath", "")),
        _texts(data.get("also_at", ())),
        _text(data.get("cordoned", "")),
    )
    hold = data.get("hold")
    move = data.get("move")
    since = float(data.get("since", 0.0))
    return Entry(
        device,
        Owner(data["owner"]),
        Lane(data["lane"]),
        None if hold is None else _hold_from_json(hold),
        tuple(_claim_from_json(held) for held in data.get("claims", ())),
        None
        if move is None
        else Move(
            Lane(move["source"]),
            Lane(move["target"]),
            MoveStep(move["step"]),
            float(move["since"]),
            float(move["step_since"]),
            _text(move.get("reason", "")),
        ),
        since,
        int(data.get("seq", 0)),
        _text(data.get("released_because", "")),
        float(data.get("presence_since", since)),  # left out if equal, and by older agents
        float(data.get("legacy_until", since)),
        _texts(data.get("was_at", ())),
        _pods(data.get("former", ())),
    )


def node_to_json(node: NodeState) -> Json:
    """Return the node's state as a JSON object, without ``merged``, which is about a process."""
    return {
        "boot_id": node.boot_id,
        "kubelet": node.kubelet,
        "releases_suspended_until": node.releases_suspended_until,
        "suspended_because": node.suspended_because,
        "lost": node.lost,
    }


def node_from_json(data: Mapping[str, Any]) -> NodeState:
    """Return the node's state of a JSON object, not merged."""
    return NodeState(
        boot_id=_text(data.get("boot_id", "")),
        kubelet=_text(data.get("kubelet", "")),
        releases_suspended_until=float(data.get("releases_suspended_until", 0.0)),
        suspended_because=_text(data.get("suspended_because", "")),
        lost=_text(data.get("lost", "")),
    )


def _hold_to_json(hold: Hold) -> Json:
    data: Json = {
        "units": hold.units,
        "allocated_at": hold.allocated_at,
        "confirmed": hold.confirmed,
        "last_seen": hold.last_seen,
        "pods": [
            {"namespace": pod.namespace, "name": pod.name, "container": pod.container, "uid": pod.uid}
            for pod in hold.pods
        ],
        "because": hold.because,
    }
    if hold.resource:
        data["resource"] = hold.resource
    if hold.grace is not None:
        data["grace"] = hold.grace
    if hold.retaken:
        data["retaken"] = True
    if hold.earlier:
        data["earlier_until"] = hold.earlier_until
    for key, pods in ("recorded", hold.recorded), ("former", hold.former), ("earlier", hold.earlier):
        if pods:
            data[key] = _pods_to_json(pods)
    return data


def _hold_from_json(data: Mapping[str, Any]) -> Hold:
    """Return a hold without absences and without what kubelet has shown: a new agent counts from the start."""
    return Hold(
        _texts(data.get("units", ())),
        float(data["allocated_at"]),
        bool(data.get("confirmed", False)),
        float(data.get("last_seen", 0.0)),
        pods=_pods(data.get("pods", ())),
        because=HeldBecause(data.get("because", HeldBecause.TOO_YOUNG)),
        resource=_text(data.get("resource", "")),
        grace=float(data["grace"]) if "grace" in data else None,
        retaken=bool(data.get("retaken", False)),
        recorded=_pods(data.get("recorded", ())),
        former=_pods(data.get("former", ())),
        earlier=_pods(data.get("earlier", ())),
        earlier_until=float(data.get("earlier_until", 0.0)),
    )


def _pods_to_json(pods: tuple[PodRef, ...]) -> list[Json]:
    """Return pods as the checkpoint names them."""
    return [{"container": pod.container, "uid": pod.uid} for pod in pods]


def _pods(values: Any) -> tuple[PodRef, ...]:
    keys = "namespace", "name", "container", "uid"
    return tuple(PodRef(*(_text(pod.get(key, "")) for key in keys)) for pod in values)


def _claim_to_json(held: ClaimHold) -> Json:
    data: Json = {
        "uid": held.claim.uid,
        "namespace": held.claim.namespace,
        "name": held.claim.name,
        "phase": held.phase,
        "since": held.since,
        "api_allocated": held.api_allocated,
    }
    if held.admin:
        data["admin"] = True
    if held.grace:
        data["grace"] = held.grace
    if held.lingers:
        data["lingers"] = held.lingers
    if held.shares:
        data["shares"] = [{"id": share.id, "consumed": dict(share.consumed)} for share in held.shares]
    return data


def _claim_from_json(data: Mapping[str, Any]) -> ClaimHold:
    return ClaimHold(
        ClaimRef(_text(data["uid"]), _text(data.get("namespace", "")), _text(data.get("name", ""))),
        ClaimPhase(data["phase"]),
        float(data.get("since", 0.0)),
        tuple(ClaimShare(_text(share["id"]), _amounts(share.get("consumed", {}))) for share in data.get("shares", ())),
        bool(data.get("admin", False)),
        bool(data.get("api_allocated", True)),
        float(data.get("grace", 0.0)),
        float(data.get("lingers", 0.0)),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r}")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(_text(value) for value in values)


def _amounts(values: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((_text(name), int(amount)) for name, amount in values.items()))


class UnreadableLedger(Exception):
    """Something on disk is not what was written, or is not for this agent; the message says what."""


def encode(value: Json) -> bytes:
    """Return the line of a record: CRC-32 in hexadecimal, a blank, compact JSON, a newline."""
    body = msgspec.json.encode(value)
    return b"%08x %b\n" % (zlib.crc32(body), body)


def decode(line: bytes) -> Json:
    """Return the record of a line. Raises UnreadableLedger if its bytes are not those that were written."""
    body = line[_CRC_DIGITS + 1 :]
    if line[_CRC_DIGITS : _CRC_DIGITS + 1] != b" " or line[:_CRC_DIGITS] != b"%08x" % zlib.crc32(body):
        raise UnreadableLedger("its checksum does not match")
    try:
        value: Any = msgspec.json.decode(body)  # it takes no text that could not be written again
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnreadableLedger(f"it is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise UnreadableLedger("it is not a JSON object")
    return value
