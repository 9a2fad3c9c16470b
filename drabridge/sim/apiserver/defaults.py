"""Defaults that the server fills in before it validates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from drabridge.sim.apiserver.status import JSON


def set_defaults(plural: str, obj: JSON, now: str) -> None:
    """Complete ``obj`` in place; ``now`` is RFC 3339."""
    defaulter = _DEFAULTS.get(plural)
    if defaulter is not None:
        defaulter(obj, now)


def _request(request: JSON) -> None:
    request.setdefault("allocationMode", "ExactCount")
    if request["allocationMode"] == "ExactCount":
        request.setdefault("count", 1)
    for toleration in request.get("tolerations", []):
        toleration.setdefault("operator", "Equal")


def _claim_spec(spec: JSON) -> None:
    for request in spec.get("devices", {}).get("requests", []):
        if "exactly" in request:
            _request(request["exactly"])
        for sub in request.get("firstAvailable", []):
            _request(sub)


def _claim(obj: JSON, now: str) -> None:
    obj.setdefault("spec", {}).setdefault("devices", {})
    obj.setdefault("status", {})
    _claim_spec(obj["spec"])
    for result in obj["status"].get("allocation", {}).get("devices", {}).get("results", []):
        for toleration in result.get("tolerations", []):
            toleration.setdefault("operator", "Equal")


def _template(obj: JSON, now: str) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("metadata", {})
    spec.setdefault("spec", {}).setdefault("devices", {})
    _claim_spec(spec["spec"])


def _slice(obj: JSON, now: str) -> None:
    """Date a taint without a time by the write, at one second's precision (KEP-5055)."""
    for device in obj.get("spec", {}).get("devices", []):
        for taint in device.get("taints", []):
            taint.setdefault("timeAdded", now)


def _taint_rule(obj: JSON, now: str) -> None:
    obj.setdefault("status", {})
    if taint := obj.setdefault("spec", {}).get("taint"):
        taint.setdefault("timeAdded", now)


def _class(obj: JSON, now: str) -> None:
    obj.setdefault("spec", {})


def _pod(obj: JSON, now: str) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    for container in [*spec.get("initContainers", []), *spec.get("containers", [])]:
        resources = container.setdefault("resources", {})
        for name, amount in resources.get("limits", {}).items():
            resources.setdefault("requests", {}).setdefault(name, amount)
    obj.setdefault("status", {}).setdefault("phase", "Pending")


def _job(obj: JSON, now: str) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("parallelism", 1)
    if spec.get("completions") is None and spec["parallelism"] == 1:
        spec["completions"] = 1
    spec.setdefault("backoffLimit", 6)
    obj.setdefault("status", {})


def _namespace(obj: JSON, now: str) -> None:
    obj.setdefault("metadata", {}).setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"]["name"]
    obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    obj.setdefault("status", {}).setdefault("phase", "Active")


def _node(obj: JSON, now: str) -> None:
    obj.setdefault("spec", {})
    obj.setdefault("status", {})


_DEFAULTS: Mapping[str, Callable[[JSON, str], None]] = MappingProxyType(
    {
        "resourceclaims": _claim,
        "resourceclaimtemplates": _template,
        "resourceslices": _slice,
        "devicetaintrules": _taint_rule,
        "deviceclasses": _class,
        "pods": _pod,
        "jobs": _job,
        "namespaces": _namespace,
        "nodes": _node,
    }
)
