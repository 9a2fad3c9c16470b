"""Read the claim parameters of NVIDIA's DRA driver, for an agent that serves claims in its place.

``resource.nvidia.com/v1beta1`` GpuConfig, MigDeviceConfig and VfioDeviceConfig are read strictly, and refused in the
words of that driver (kubernetes-sigs/dra-driver-nvidia-gpu api/nvidia.com/resource/v1beta1, and device_state.go of its
plugin). Settings that NVIDIA's driver makes by ``nvidia-smi`` or a daemon are refused: this agent runs neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from drabridge.kube.json_reader import AmbiguousObject
from drabridge.system.untrusted import cut

DRIVER = "gpu.nvidia.com"
API_VERSION = "resource.nvidia.com/v1beta1"
INTERVALS = ("Default", "Short", "Medium", "Long")
POLICIES = ("LegacyOnly", "PreferIommuFD")

_TYPES: Mapping[str, Any] = {
    "text": str,
    "a whole number": int,
    "a quantity": (str, int, float),
    "true or false": bool,
    "an object": dict,
}
_MPS = {
    "defaultActiveThreadPercentage": "a whole number",
    "defaultPinnedDeviceMemoryLimit": "a quantity",
    "defaultPerDevicePinnedMemoryLimit": "an object",
    "multiUser": "true or false",
}
_KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "GpuConfig": (
        "gpu",
        {"sharing": {"strategy": "text", "timeSlicingConfig": {"interval": "text"}, "mpsConfig": _MPS}},
    ),
    "MigDeviceConfig": ("mig", {"sharing": {"strategy": "text", "mpsConfig": _MPS}}),
    "VfioDeviceConfig": ("vfio", {"iommu": {"backendPolicy": "text", "enableAPIDevice": "true or false"}}),
}
"""Kind -> the type of devices that it is for, and its fields."""


class NvidiaConfig(Struct, frozen=True):
    """One object of NVIDIA's kinds, of the right form."""

    kind: str
    fields: Mapping[str, Any]

    @property
    def device_type(self) -> str:
        """Return the attribute ``type`` of the devices that the object is for."""
        return _KINDS[self.kind][0]


def decode(parameters: Mapping[str, Any]) -> NvidiaConfig:
    """Decode an object of NVIDIA's API group. Raises ValueError with a sentence; unknown fields are refused."""
    if parameters.get("apiVersion") != API_VERSION:
        raise ValueError(f"apiVersion {API_VERSION} was expected, found {cut(repr(parameters.get('apiVersion')))}")
    kind = parameters.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        known = ", ".join(_KINDS)
        raise ValueError(f"no kind {cut(repr(kind))} of {API_VERSION} is for this driver; known are {known}")
    _check(parameters, {"apiVersion": "text", "kind": "text", **_KINDS[kind][1]}, "")
    return NvidiaConfig(kind, parameters)


def _check(value: Any, form: Any, path: str) -> None:
    if value is None:  # as if it were left out
        return
    if isinstance(value, AmbiguousObject):
        raise ValueError(f'duplicate field "{cut(f"{path}.{value.duplicates[0]}".lstrip("."))}"')
    if not isinstance(form, Mapping):
        if not isinstance(value, _TYPES[form]) or (isinstance(value, bool) and form != "true or false"):
            raise ValueError(f"{path}: {form} was expected, found {cut(repr(value))}")
        return
    if not isinstance(value, Mapping):
        raise ValueError(f"{path}: an object was expected, found {cut(repr(value))}")
    for name, item in value.items():
        inner = f"{path}.{name}".lstrip(".")
        if name not in form:
            raise ValueError(f'unknown field "{cut(inner)}"; known are {", ".join(form)}')
        _check(item, form[name], inner)


def profile_of(config: NvidiaConfig) -> str:
    """Return the profile of the node's configuration that does what the parameters ask for; "" if they need none.

    Raises ValueError with a sentence if the parameters are wrong, or ask for something that is not done here.
    """
    if config.kind == "VfioDeviceConfig":
        policy = (config.fields.get("iommu") or {}).get("backendPolicy") or POLICIES[0]
        if policy not in POLICIES:
            known = f"supported IOMMU backend policies: {', '.join(POLICIES)}"
            raise ValueError(f"unknown IOMMU backend policy: {cut(policy)}, {known}")
        return ""  # what containers get is set by the resource: the nodes of either backend, as the kernel has them
    sharing = config.fields.get("sharing")
    if sharing is None:
        return ""
    strategy = sharing.get("strategy") or ""
    if strategy == "MPS":
        raise ValueError("MPS is not done here: it needs a control daemon for each claim; use the strategy TimeSlicing")
    if strategy != "TimeSlicing":
        known = "supported GPU sharing strategies: TimeSlicing, MPS"
        raise ValueError(f"unknown GPU sharing strategy: {cut(strategy)}, {known}")
    if config.kind == "MigDeviceConfig":  # MIG instances have no interval: that driver sets nothing either
        return ""
    interval = (sharing.get("timeSlicingConfig") or {}).get("interval") or "Default"
    if interval not in INTERVALS:
        known = f"supported time-slice intervals: {', '.join(INTERVALS)}"
        raise ValueError(f"unknown time-slice interval: {cut(interval)}, {known}")
    if sharing.get("mpsConfig") is not None:
        raise ValueError("cannot use MpsConfig with the 'TimeSlicing' strategy")
    return "" if interval == "Default" else f"time-slice-{interval.lower()}"


def without_profile(profile: str) -> str:
    """Say why an interval is refused where the node's configuration has no profile for it."""
    interval = profile.rpartition("-")[2].capitalize()
    return (
        f"the time-slice interval {interval} is not set here: NVML has no call for it, only nvidia-smi compute-policy. "
        f"Leave it out, or have a profile {profile} in the node's configuration"
    )
