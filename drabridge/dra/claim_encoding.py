"""Change ``status.devices`` of a claim in Kubernetes' protobuf encoding, and nothing else.

An API server (1.34.4, 1.36.3) answers every PATCH of a claim's status with "status.allocation: field is
immutable" if the stored opaque parameters have other white space, order of keys or spelling of numbers than the server
writes: it encodes them again while it patches, and then compares bytes. Controllers that encode their own types, and
Python's client, create such claims. In the protobuf encoding the parameters are bytes that nobody encodes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from drabridge.kube.api import ConflictError
from drabridge.kube.json_reader import Json
from drabridge.ledger.entries import ClaimRef
from drabridge.wire import claims_pb2 as wire

MAGIC = b"k8s\0"
"""Begins every object in this encoding (k8s.io/apimachinery pkg/runtime/serializer/protobuf)."""
PLACE = ("driver", "pool", "device", "shareID")


def with_devices(data: bytes, claim: ClaimRef, entries: Sequence[Json], resource_version: str = "") -> bytes:
    """Return the encoded claim with these entries of ``status.devices``: a condition replaces the one of its type.

    Raises ConflictError if it is another claim, or if it is not of ``resource_version``, and ValueError for data that
    is no claim.
    """
    if not data.startswith(MAGIC):
        raise ValueError(f"it begins with {data[:4]!r} instead of {MAGIC!r}")
    try:
        outer = wire.Unknown.FromString(data[len(MAGIC) :])
        found = wire.ResourceClaim.FromString(outer.raw)
    except Exception as error:  # protobuf's own exceptions differ between its implementations
        raise ValueError(str(error)) from None
    if found.metadata.uid != claim.uid or resource_version not in ("", found.metadata.resourceVersion):
        raise ConflictError(f"claim {claim} was changed meanwhile")
    for entry in entries:
        _merge(_place_of(entry, found.status), entry)
    outer.raw = found.SerializeToString()
    return MAGIC + outer.SerializeToString()


def _place_of(entry: Json, status: wire.ResourceClaimStatus) -> wire.AllocatedDeviceStatus:
    """Return the entry of the same device, or a new one."""
    place = {name: str(entry[name]) for name in PLACE if entry.get(name)}
    for one in status.devices:
        if all(getattr(one, name) == place.get(name, "") for name in PLACE):
            return one
    return status.devices.add(**place)


def _merge(place: wire.AllocatedDeviceStatus, entry: Json) -> None:
    if "data" in entry:
        place.data.raw = msgspec.json.encode(entry["data"])
    for condition in entry["conditions"]:
        same = [one for one in place.conditions if one.type == condition["type"]]
        _write(same[0] if same else place.conditions.add(), condition)


def _write(place: wire.Condition, condition: dict[str, Any]) -> None:
    for name in ("type", "status", "reason", "message"):
        setattr(place, name, condition[name])
    place.lastTransitionTime.seconds = int(datetime.fromisoformat(condition["lastTransitionTime"]).timestamp())
