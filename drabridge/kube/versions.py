"""ResourceSlices and ResourceClaims of older API versions in the form of resource.k8s.io/v1.

v1beta2 has v1's form. v1beta1 (staging/src/k8s.io/api/resource/v1beta1/types.go) puts a device's body under ``basic``
and the fields of a claim's request beside its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

GROUP = "resource.k8s.io"
VERSIONS = ("v1", "v1beta2", "v1beta1")  # newest first: the first that is served is used
_BODY = "basic"


def choose_version(served: Sequence[str]) -> str | None:
    """The newest version that both sides know; None when the server has no DRA."""
    return next((version for version in VERSIONS if version in served), None)


def slice_from_v1(obj: Mapping[str, Any], version: str) -> dict[str, Any]:
    """A slice to send to a server that speaks ``version``."""
    out = {**obj, "apiVersion": f"{GROUP}/{version}", "kind": "ResourceSlice"}
    if version == "v1beta1" and "devices" in obj.get("spec", {}):
        devices = [_wrap(device) for device in obj["spec"]["devices"]]
        out["spec"] = {**obj["spec"], "devices": devices}
    return out


def slice_to_v1(obj: Mapping[str, Any]) -> dict[str, Any]:
    """A slice that came from any server."""
    spec = obj.get("spec") or {}
    devices = spec.get("devices")
    if not devices:
        return dict(obj)
    unwrapped = [{"name": d.get("name"), **d[_BODY]} if isinstance(d.get(_BODY), Mapping) else d for d in devices]
    return {**obj, "spec": {**spec, "devices": unwrapped}}


def _wrap(device: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": device["name"], _BODY: {key: value for key, value in device.items() if key != "name"}}
