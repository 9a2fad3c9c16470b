"""Write the ledger's records as text and read them back: JSON objects, in lines with a checksum.

An entry is one flat object: its own fields and those of its device, under the names that they have in
:mod:`drabridge.ledger.entries`. Most fields that have their default are left out. Reading is strict about types, and
ignores what it does not know. The checksum is over a line's own bytes: a checksum over values that are serialised again
breaks whenever a field is added (NVIDIA/k8s-dra-driver-gpu#1080).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, fields

from drabridge.ledger.entries import ClaimHold, Entry, Hold, LedgerDevice, NodeState, PodRef

Json = dict[str, Any]

_CRC_DIGITS = 8

ENTRY_FIELDS = frozenset({*LedgerDevice.__struct_fields__, *Entry.__struct_fields__} - {"device"})
_ALWAYS = frozenset({"owner", "lane", "since", "seq", "allocated_at"})  # an entry without an owner is damaged, not free
_OF_PROCESS = frozenset({"absences", "absent_since", "known", "unseen_since", "merged", "kubelet_seq"})
"""Not written: a new agent merges again, and counts from zero what kubelet shows."""


def entry_to_json(entry: Entry) -> Json:
    """Return an entry as a JSON object."""
    data = _changed(entry.device) | _changed(entry)
    if "capacity" in data:
        data["capacity"] = dict(entry.device.capacity)
    for stamp in ("presence_since", "legacy_until"):  # left out where they equal ``since``
        data[stamp] = getattr(entry, stamp)
        if data[stamp] == entry.since:
            del data[stamp]
    if entry.former:
        data["former"] = _as_in_checkpoint(entry.former)
    if entry.hold is not None:
        data["hold"] = _hold_to_json(entry.hold)
    if entry.claims:
        data["claims"] = [_claim_to_json(held) for held in entry.claims]
    return data


def entry_from_json(data: Mapping[str, Any]) -> Entry:
    """Return the entry of a JSON object. Raises ValueError, KeyError, TypeError or AttributeError if it is not one."""
    since = data["since"]
    own = {
        "owner": data["owner"],
        "lane": data["lane"],
        "device": {**data, "capacity": _amounts(data.get("capacity", {}))},
        "hold": _hold_from_json(data.get("hold")),
        "claims": [_claim_from_json(held) for held in data.get("claims", ())],
        "presence_since": data.get("presence_since", since),
        "legacy_until": data.get("legacy_until", since),
    }
    return msgspec.convert({**data, **own}, Entry)


def node_to_json(node: NodeState) -> Json:
    """Return the node's state as a JSON object."""
    return {name: value for name, value in asdict(node).items() if name not in _OF_PROCESS}


def node_from_json(data: Mapping[str, Any]) -> NodeState:
    """Return the node's state of a JSON object, not merged."""
    return msgspec.convert({name: value for name, value in data.items() if name not in _OF_PROCESS}, NodeState)


def _changed(value: Struct) -> Json:
    """Return the fields that are always written, and those whose value is not the default."""
    found = {}
    for name, default in _DEFAULTS[type(value)]:
        given = getattr(value, name)
        if given is not default and given != default:
            found[name] = given
    return found


_DEFAULTS: dict[type[Struct], list[tuple[str, Any]]] = {
    kind: [
        (one.name, msgspec.NODEFAULT if one.name in _ALWAYS else one.default)
        for one in fields(kind)
        if one.name not in {"device", *_OF_PROCESS}
    ]
    for kind in (LedgerDevice, Entry, Hold, ClaimHold)
}


def _hold_to_json(hold: Hold) -> Json:
    data = _changed(hold)
    for key in ("recorded", "former", "earlier"):
        if key in data:
            data[key] = _as_in_checkpoint(data[key])
    return data


def _hold_from_json(data: Mapping[str, Any] | None) -> Json | None:
    if data is None:
        return None
    kept = {name: value for name, value in data.items() if name not in _OF_PROCESS}
    return kept | {"allocated_at": data["allocated_at"]}  # a hold without it is damaged, not old


def _as_in_checkpoint(pods: tuple[PodRef, ...]) -> list[Json]:
    """Return pods as the checkpoint names them."""
    return [{"container": pod.container, "uid": pod.uid} for pod in pods]


def _claim_to_json(held: ClaimHold) -> Json:
    data = _changed(held)
    if held.shares:
        data["shares"] = [{"id": share.id, "consumed": dict(share.consumed)} for share in held.shares]
    return asdict(data.pop("claim")) | data


def _claim_from_json(data: Mapping[str, Any]) -> Json:
    shares = [{**share, "consumed": _amounts(share.get("consumed", {}))} for share in data.get("shares", ())]
    return {**data, "claim": data, "shares": shares}


def _amounts(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(values.items())


class UnreadableLedgerError(Exception):
    """Something on disk is not what was written, or is not for this agent; the message says what."""


def encode(value: Json) -> bytes:
    """Return the line of a record: CRC-32 in hexadecimal, a blank, compact JSON, a newline."""
    body = msgspec.json.encode(value)
    return b"%08x %b\n" % (zlib.crc32(body), body)


def decode(line: bytes) -> Json:
    """Return the record of a line. Raises UnreadableLedgerError if its bytes are not those that were written."""
    body = line[_CRC_DIGITS + 1 :]
    if line[_CRC_DIGITS : _CRC_DIGITS + 1] != b" " or line[:_CRC_DIGITS] != b"%08x" % zlib.crc32(body):
        raise UnreadableLedgerError("its checksum does not match")
    try:
        value: Any = msgspec.json.decode(body)  # raises ValueError for text that could not be written again
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnreadableLedgerError(f"it is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise UnreadableLedgerError("it is not a JSON object")
    return value
