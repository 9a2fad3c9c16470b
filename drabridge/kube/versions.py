"""List every version of kubelet's DRA services, resource.k8s.io and metadata files that the agent speaks.

These rows decide the gRPC services, what registration tells kubelet, the requests and objects for the API server, the
metadata files of containers, and the policies of the chart. To add a version, add a row here and, if its form differs,
a ``.proto`` or a conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

_Object = Mapping[str, Any]


class ServiceName(StrEnum):
    """The gRPC services of a DRA plugin that kubelet calls."""

    CLAIMS = "DRAPlugin"
    HEALTH = "DRAResourceHealth"


class KubeletService(Struct, frozen=True):
    """One version of one service. Its messages are in the module ``drabridge.wire.<wire>_pb2``."""

    name: ServiceName
    version: str
    wire: str

    @property
    def supported_version(self) -> str:
        """Its entry in a registration's ``supported_versions``."""
        return f"{self.version}.{self.name}"


# Newest first: kubelet uses the first DRAPlugin version that it knows (pkg/kubelet/cm/dra/plugin/registration.go), and
# ignores entries that it does not know.
KUBELET_SERVICES = (
    KubeletService(ServiceName.CLAIMS, "v1", "dra_v1"),  # kubelet 1.34 and later
    KubeletService(ServiceName.CLAIMS, "v1beta1", "dra_v1beta1"),  # kubelet 1.32 and later
    KubeletService(ServiceName.HEALTH, "v1", "health_v1"),  # kubelet 1.37 and later
    # kubelet 1.34 to 1.39: kept for three releases beside v1 (kubernetes#139477); then this row and its .proto go
    KubeletService(ServiceName.HEALTH, "v1alpha1", "health_v1alpha1"),
)

METADATA_GROUP = "metadata.resource.k8s.io"
# Newest first: a file has the same information in each version, and a reader uses the first version that it knows
# (KEP-5304, staging/src/k8s.io/dynamic-resource-allocation/devicemetadata/decode.go). The driver alone chooses the
# versions, not kubelet or the API server. Both versions have the same fields (api/metadata/v1beta1/types.go).
METADATA_VERSIONS = (
    "v1beta1",  # readers built with Kubernetes 1.37 and later
    "v1alpha1",  # readers built with 1.36
)


def _same(device: _Object) -> _Object:
    return device


def _out_of_basic(device: _Object) -> _Object:
    """Move the fields of ``basic`` one level up (staging/src/k8s.io/api/resource/v1beta1/types.go)."""
    body = device.get("basic")
    return {"name": device.get("name"), **body} if isinstance(body, Mapping) else device


def _into_basic(device: _Object) -> _Object:
    return {"name": device["name"], "basic": {key: value for key, value in device.items() if key != "name"}}


class ResourceVersion(Struct, frozen=True):
    """One version of resource.k8s.io, with the conversion of a slice's device to v1 and back.

    The fields of claims that are read and written are the same in every version.
    """

    version: str
    device_to_v1: Callable[[_Object], _Object] = _same
    device_from_v1: Callable[[_Object], _Object] = _same


RESOURCE_GROUP = "resource.k8s.io"
# Newest first: the first one that the API server serves is used.
RESOURCE_VERSIONS = (
    ResourceVersion("v1"),  # 1.34 and later
    ResourceVersion("v1beta2"),  # 1.33 and later
    ResourceVersion("v1beta1", _out_of_basic, _into_basic),  # 1.32 and later
)
NEWEST_RESOURCE_VERSION = RESOURCE_VERSIONS[0].version
_BY_VERSION = {row.version: row for row in RESOURCE_VERSIONS}


def choose_version(served: Sequence[str]) -> str | None:
    """Return the newest version of resource.k8s.io that both sides know; None if there is none."""
    return next((row.version for row in RESOURCE_VERSIONS if row.version in served), None)


def slice_from_v1(obj: _Object, version: str) -> dict[str, Any]:
    """Convert a ResourceSlice from v1's form to that of ``version``."""
    out = {**obj, "apiVersion": f"{RESOURCE_GROUP}/{version}", "kind": "ResourceSlice"}
    if "devices" in obj.get("spec", {}):
        convert = _BY_VERSION[version].device_from_v1
        out["spec"] = {**obj["spec"], "devices": [convert(device) for device in obj["spec"]["devices"]]}
    return out


def slice_to_v1(obj: _Object, version: str) -> dict[str, Any]:
    """Convert a ResourceSlice that a server sent as ``version`` to v1's form.

    Malformed data raises any exception.
    """
    spec = obj.get("spec") or {}
    devices = spec.get("devices")
    if not devices:
        return dict(obj)
    convert = _BY_VERSION[version].device_to_v1
    return {**obj, "spec": {**spec, "devices": [convert(device) for device in devices]}}
