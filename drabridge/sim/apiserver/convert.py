"""Conversion between ``resource.k8s.io/v1`` (stored) and the older versions that clients may speak.

v1beta2 has v1's shape. v1beta1 puts a device's body under ``basic`` and a request's fields beside its name.
"""

from __future__ import annotations

from collections.abc import Callable

from drabridge.sim.apiserver.kinds import DRA_GROUP, Resource
from drabridge.sim.apiserver.schema_dra import DEVICE_FIELDS, EXACT_FIELDS
from drabridge.sim.apiserver.status import JSON

_Body = Callable[[JSON], JSON]


def to_version(resource: Resource, obj: JSON, version: str) -> JSON:
    """Return a stored object as ``version`` shows it, with kind and apiVersion first."""
    shown = {"kind": resource.kind, "apiVersion": resource.group_version(version)}
    shown |= {name: value for name, value in obj.items() if name not in ("kind", "apiVersion")}
    if version == "v1beta1" and resource.group == DRA_GROUP:
        _convert(resource, shown, device=_to_basic, request=_to_inline)
    return shown


def from_version(resource: Resource, obj: JSON, version: str) -> JSON:
    """Return a client's object in stored form."""
    stored = dict(obj)
    if version == "v1beta1" and resource.group == DRA_GROUP:
        _convert(resource, stored, device=_from_basic, request=_from_inline)
    return stored


def _convert(resource: Resource, obj: JSON, *, device: _Body, request: _Body) -> None:
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        return
    if resource.kind == "ResourceSlice" and isinstance(spec.get("devices"), list):
        obj["spec"] = {**spec, "devices": [device(one) for one in spec["devices"]]}
    elif resource.kind == "ResourceClaim":
        obj["spec"] = _claim_spec(spec, request)
    elif resource.kind == "ResourceClaimTemplate" and isinstance(spec.get("spec"), dict):
        obj["spec"] = {**spec, "spec": _claim_spec(spec["spec"], request)}


def _claim_spec(spec: JSON, request: _Body) -> JSON:
    devices = spec.get("devices")
    if not isinstance(devices, dict) or not isinstance(devices.get("requests"), list):
        return spec
    return {**spec, "devices": {**devices, "requests": [request(one) for one in devices["requests"]]}}


def _to_basic(device: JSON) -> JSON:
    return {"name": device["name"], "basic": {name: value for name, value in device.items() if name != "name"}}


def _from_basic(device: JSON) -> JSON:
    basic = device.get("basic", {})
    rest = {name: value for name, value in device.items() if name != "basic" and name not in DEVICE_FIELDS}
    return {**rest, **basic}


def _to_inline(request: JSON) -> JSON:
    exactly = request.get("exactly", {})
    rest = {name: value for name, value in request.items() if name != "exactly"}
    return {**rest, **exactly}


def _from_inline(request: JSON) -> JSON:
    exactly = {name: value for name, value in request.items() if name in EXACT_FIELDS}
    rest = {name: value for name, value in request.items() if name not in EXACT_FIELDS}
    return rest | ({"exactly": exactly} if exactly else {})
