"""Defaults that the server fills in before it validates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from drabridge.sim.apiserver.status import JSON, clone, places

Default = tuple[str, JSON]
"""A path, and the fields that objects at this path get. A star stands for every item of a list."""

_NOW = object()
"""The time of the write, at one second's precision (KEP-5055)."""
_EQUAL = {"operator": "Equal"}
_SPEC_AND_STATUS: Default = ("", {"spec": {}, "status": {}})


def _requests(spec: str) -> Sequence[Default]:
    places = (f"{spec}.devices.requests.*.exactly", f"{spec}.devices.requests.*.firstAvailable.*")
    modes = [(place, {"allocationMode": "ExactCount"}) for place in places]
    return [*modes, *((f"{place}.tolerations.*", _EQUAL) for place in places)]


_DEFAULTS: Mapping[str, Sequence[Default]] = MappingProxyType(
    {
        "resourceclaims": [
            _SPEC_AND_STATUS,
            ("spec", {"devices": {}}),
            *_requests("spec"),
            ("status.allocation.devices.results.*.tolerations.*", _EQUAL),
        ],
        "resourceclaimtemplates": [
            ("", {"spec": {}}),
            ("spec", {"metadata": {}, "spec": {}}),
            ("spec.spec", {"devices": {}}),
            *_requests("spec.spec"),
        ],
        "resourceslices": [("spec.devices.*.taints.*", {"timeAdded": _NOW})],
        "devicetaintrules": [_SPEC_AND_STATUS, ("spec.taint", {"timeAdded": _NOW})],
        "deviceclasses": [("", {"spec": {}})],
        "pods": [
            _SPEC_AND_STATUS,
            (
                "spec",
                {"restartPolicy": "Always", "schedulerName": "default-scheduler", "terminationGracePeriodSeconds": 30},
            ),
            *((f"spec.{kind}.*", {"resources": {}}) for kind in ("initContainers", "containers")),
            ("status", {"phase": "Pending"}),
        ],
        "jobs": [_SPEC_AND_STATUS, ("spec", {"parallelism": 1, "backoffLimit": 6})],
        "namespaces": [
            _SPEC_AND_STATUS,
            ("metadata", {"labels": {}}),
            ("spec", {"finalizers": ["kubernetes"]}),
            ("status", {"phase": "Active"}),
        ],
        "nodes": [_SPEC_AND_STATUS],
    }
)


def set_defaults(plural: str, obj: JSON, now: str) -> None:
    """Complete ``obj`` in place; ``now`` is RFC 3339."""
    for place, fields in _DEFAULTS.get(plural, ()):
        for one in places(obj, place):
            for name, value in fields.items():
                one.setdefault(name, now if value is _NOW else clone(value))
            if one.get("allocationMode") == "ExactCount":
                one.setdefault("count", 1)
    if plural == "pods":
        for kind in ("initContainers", "containers"):
            for resources in places(obj, f"spec.{kind}.*.resources"):
                requests: Any = {**resources.get("limits", {}), **resources.get("requests", {})}
                resources |= {"requests": requests} if requests else {}
    elif plural == "jobs" and obj["spec"]["parallelism"] == 1:
        obj["spec"].setdefault("completions", 1)
    elif plural == "namespaces":
        obj["metadata"]["labels"]["kubernetes.io/metadata.name"] = obj["metadata"]["name"]
