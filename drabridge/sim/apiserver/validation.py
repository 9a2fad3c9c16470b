"""Refuse slices and claim statuses that a real API server refuses (``pkg/apis/resource/validation``).

Only what drivers write is validated. Claims, templates and classes are accepted as they are, because only users write
them. The same objects are refused as by real servers, with shorter messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from drabridge.sim.apiserver.quantity import Quantity
from drabridge.sim.apiserver.status import JSON, FieldError
from drabridge.sim.releases import Release

# staging/src/k8s.io/api/resource/v1/types.go
MAX_DEVICES = 128
MAX_DEVICES_WITH_TAINTS_OR_COUNTERS = 64
MAX_ATTRIBUTES_AND_CAPACITIES = 32
MAX_ATTRIBUTE_BYTES = 64
MAX_COUNTER_SETS = 8
MAX_COUNTERS = 32
MAX_CONSUMED_SETS = 2
MAX_BINDING_CONDITIONS = 4
MAX_VALID_VALUES = 10
MAX_DRIVER_BYTES = 63
MAX_RESULTS = 32
MAX_RESERVED = 256
MAX_OPAQUE_BYTES = 10 * 1024
MAX_STATUS_CONDITIONS = 8
MAX_IPS = 16

# apimachinery validation.go
LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{LABEL}(\.{LABEL})*"
_IDENTIFIER = "[A-Za-z_][A-Za-z0-9_]*"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_REASON = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"
# semver.org's own suggestion, without named groups
_SEMVER = (
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?"
)

_LISTS = ("ints", "bools", "strings", "versions")
_VALUES = ("int", "bool", "string", "version", *_LISTS)
_NODES = ("nodeName", "nodeSelector", "allNodes")


class Complaints(list[FieldError]):
    """What is wrong with one object."""

    def unless(self, good: object, path: str, message: str) -> None:
        """Complain about a field, unless it is good."""
        if not good:
            self.append(FieldError(path, message))

    def name(self, path: str, text: str, pattern: str, limit: int = 253) -> None:
        """Complain about a name that is empty, too long, or not of the pattern."""
        good = len(text) <= limit and re.fullmatch(pattern, text, re.ASCII)
        self.unless(good, path, f"Invalid value: {json.dumps(text)}: must match {pattern}, {limit} bytes at most")

    def key(self, path: str, text: str) -> None:
        """Complain unless the text is ``[subdomain/]name``, the form of labels, taints and conditions."""
        domain, slash, name = text.rpartition("/")
        self.name(path, name, _QUALIFIED, 63)
        if slash:
            self.name(path, domain, SUBDOMAIN)

    def at_most(self, limit: int, path: str, items: Sequence[object] | JSON) -> None:
        self.unless(len(items) <= limit, path, f"Too many: {len(items)}: must have at most {limit} items")

    def once(self, path: str, names: Sequence[object]) -> None:
        """Complain about a name that is in a list twice."""
        for index, name in enumerate(names):
            self.unless(name not in names[:index], f"{path}[{index}]", f"Duplicate value: {json.dumps(name)}")


def is_extended_resource_name(text: str) -> bool:
    """Whether the text names an extended resource, for the scheduler and for kubelet's Register.

    It needs a domain that is not kubernetes.io, and ``requests.<text>`` has to be a valid quota name
    (``pkg/apis/core/v1/helper/helpers.go``, IsExtendedResourceName).
    """
    complaints = Complaints()
    complaints.key("", f"requests.{text}")
    return "/" in text and "kubernetes.io/" not in text and not text.startswith("requests.") and not complaints


def resource_slice(new: JSON, old: JSON | None, release: Release) -> Complaints:
    """All complaints about one slice; ``old`` is the stored one in an update."""
    out, spec = Complaints(), new.get("spec", {})
    pool = spec.get("pool", {})
    out.name("spec.driver", spec.get("driver", ""), SUBDOMAIN, MAX_DRIVER_BYTES)
    out.unless(len(pool.get("name", "")) <= 253, "spec.pool.name", "Too long: may not be more than 253 bytes")
    for part in pool.get("name", "").split("/"):
        out.name("spec.pool.name", part, SUBDOMAIN)
    out.unless(pool.get("resourceSliceCount", 0) > 0, "spec.pool.resourceSliceCount", "must be greater than zero")
    out.unless(pool.get("generation", 0) >= 0, "spec.pool.generation", "must be greater than or equal to zero")
    places = [name for name in (*_NODES, "perDeviceNodeSelection") if spec.get(name) is not None]
    out.unless(len(places) == 1, "spec", f"exactly one way to say where the devices are is required, got {places}")
    for name in places:
        out.unless(spec[name], f"spec.{name}", "must be either unset, or true and not empty")
    if spec.get("nodeName"):
        out.name("spec.nodeName", spec["nodeName"], SUBDOMAIN)
    if old is not None:
        for name in ("driver", "nodeName"):
            out.unless(spec.get(name) == old["spec"].get(name), f"spec.{name}", "field is immutable")
        out.unless(pool.get("name") == old["spec"]["pool"]["name"], "spec.pool.name", "field is immutable")
    devices, counter_sets = spec.get("devices", []), spec.get("sharedCounters", [])
    beside = release.counters_beside_devices
    out.unless(
        beside or not devices or not counter_sets, "spec", "only one of `sharedCounters` or `devices` is allowed"
    )
    out.at_most(_device_limit(devices), "spec.devices", devices)
    out.once("spec.devices", [one.get("name", "") for one in devices])
    own_sets = {one.get("name") for one in counter_sets} if beside else None
    for index, device in enumerate(devices):
        _device(out, f"spec.devices[{index}]", device, release, own_sets, bool(spec.get("perDeviceNodeSelection")))
    out.at_most(MAX_COUNTER_SETS, "spec.sharedCounters", counter_sets)
    out.once("spec.sharedCounters", [one.get("name", "") for one in counter_sets])
    for index, one in enumerate(counter_sets):
        out.name(f"spec.sharedCounters[{index}].name", one.get("name", ""), LABEL, 63)
        _counters(out, f"spec.sharedCounters[{index}].counters", one.get("counters", {}))
    return out


def _device_limit(devices: Sequence[JSON]) -> int:
    special = any(
        "taints" in device
        or "consumesCounters" in device
        or any(name in value for value in device.get("attributes", {}).values() for name in _LISTS)
        for device in devices
    )
    return MAX_DEVICES_WITH_TAINTS_OR_COUNTERS if special else MAX_DEVICES


def _device(
    out: Complaints, path: str, device: JSON, release: Release, own_sets: set[str] | None, per_device: bool
) -> None:
    """Complain about one device. ``own_sets``: its slice's counter sets, if it may use only these."""
    out.name(f"{path}.name", device.get("name", ""), LABEL, 63)
    attributes, capacity = device.get("attributes", {}), device.get("capacity", {})
    out.at_most(MAX_ATTRIBUTES_AND_CAPACITIES, path, [*attributes, *capacity])
    for name, value in attributes.items():
        _published_name(out, f"{path}.attributes", name)
        _attribute(out, f"{path}.attributes[{name}]", value)
    for name, value in capacity.items():
        _published_name(out, f"{path}.capacity", name)
        if (policy := value.get("requestPolicy")) is not None:
            where = f"{path}.capacity[{name}].requestPolicy"
            out.unless(device.get("allowMultipleAllocations"), where, "allowMultipleAllocations must be true")
            _policy(out, where, policy, Quantity.parse(value.get("value", "0")))
    out.at_most(release.max_taints, f"{path}.taints", device.get("taints", []))
    for taint in device.get("taints", []):
        out.key(f"{path}.taints.key", taint.get("key", ""))
        if taint.get("value"):
            out.key(f"{path}.taints.value", taint["value"])
        out.unless(taint.get("effect") in release.taint_effects, f"{path}.taints.effect", "Unsupported value")
    consumed = device.get("consumesCounters", [])
    out.at_most(MAX_CONSUMED_SETS, f"{path}.consumesCounters", consumed)
    out.once(f"{path}.consumesCounters", [one.get("counterSet", "") for one in consumed])
    for one in consumed:
        where = f"{path}.consumesCounters.counterSet"
        out.name(where, one.get("counterSet", ""), LABEL, 63)
        out.unless(own_sets is None or one.get("counterSet") in own_sets, where, "must be a counterSet of this slice")
        _counters(out, f"{path}.consumesCounters.counters", one.get("counters", {}))
    _binding(out, path, device)
    chosen = [name for name in _NODES if name in device]
    out.unless(
        len(chosen) == per_device, path, f"places of a device with perDeviceNodeSelection {per_device}: {chosen}"
    )


def _published_name(out: Complaints, path: str, text: str) -> None:
    """Complain about an attribute or a capacity that is not called ``[domain/]identifier``."""
    domain, slash, name = text.rpartition("/")
    out.name(path, name, _IDENTIFIER, 32)
    if slash:
        out.name(path, domain, SUBDOMAIN, MAX_DRIVER_BYTES)


def _attribute(out: Complaints, path: str, value: JSON) -> None:
    given = [name for name in _VALUES if name in value]
    out.unless(len(given) == 1, path, f"exactly one value must be specified, got {given}")
    versions = [*([value["version"]] if "version" in value else []), *value.get("versions", [])]
    for text in versions:
        out.name(path, text, _SEMVER, MAX_ATTRIBUTE_BYTES)
    for text in [*([value["string"]] if "string" in value else []), *value.get("strings", [])]:
        out.unless(len(text.encode()) <= MAX_ATTRIBUTE_BYTES, path, f"Too long: at most {MAX_ATTRIBUTE_BYTES} bytes")


def _policy(out: Complaints, path: str, policy: JSON, maximum: Quantity) -> None:
    values = [Quantity.parse(value) for value in policy.get("validValues", [])]
    span = policy.get("validRange")
    default = Quantity.parse(policy["default"]) if "default" in policy else None
    out.unless(not values or span is None, path, "cannot specify `validValues` and `validRange` at the same time")
    out.unless(default is None or default <= maximum, f"{path}.default", f"larger than the capacity, {maximum}")
    out.at_most(MAX_VALID_VALUES, f"{path}.validValues", values)
    out.unless(values == sorted(set(values)), f"{path}.validValues", "must be sorted in ascending order")
    out.unless(all(one <= maximum for one in values), f"{path}.validValues", f"larger than the capacity, {maximum}")
    if default is None:
        out.unless(not values and span is None, f"{path}.default", "required when a policy is defined")
    elif values:
        out.unless(default in values, f"{path}.default", "not in the list of valid values")
    elif span is not None:
        low, high = Quantity.parse(span.get("min", "0")), Quantity.parse(span.get("max", str(maximum)))
        out.unless(
            "min" in span and low <= default <= high <= maximum, f"{path}.validRange", "does not hold the default"
        )
        if "step" in span:
            step = Quantity.parse(span["step"]).value
            out.unless(step > 0 and not (default.value - low.value) % step, f"{path}.step", "default is not a multiple")


def _counters(out: Complaints, path: str, counters: JSON) -> None:
    out.unless(counters, path, "Required value")
    out.at_most(MAX_COUNTERS, path, counters)
    for name in counters:
        out.name(path, name, LABEL, 63)


def _binding(out: Complaints, path: str, device: JSON) -> None:
    wanted, failed = device.get("bindingConditions", []), device.get("bindingFailureConditions", [])
    out.unless(bool(wanted) == bool(failed), path, "bindingConditions and bindingFailureConditions need each other")
    for conditions in (wanted, failed):
        out.at_most(MAX_BINDING_CONDITIONS, path, conditions)
        for condition in conditions:
            out.key(path, condition)
    out.once(f"{path}.bindingConditions", [*wanted, *failed])


# --- claims -----------------------------------------------------------------------------------------------------------


def allocated(status: JSON) -> set[tuple[str, str, str, str]]:
    """(driver, pool, device, share) of every device that the claim holds."""
    results = status.get("allocation", {}).get("devices", {}).get("results", [])
    return {(one["driver"], one["pool"], one["device"], one.get("shareID", "")) for one in results}


def claim_status(new: JSON, old: JSON) -> Complaints:
    """Complaints about the status of a claim whose stored form is ``old``."""
    out, status, before = Complaints(), new.get("status", {}), old.get("status", {})
    allocation, reserved = status.get("allocation"), status.get("reservedFor", [])
    changed = None not in (allocation, before.get("allocation")) and allocation != before["allocation"]
    out.unless(not changed, "status.allocation", "field is immutable")
    out.at_most(
        MAX_RESULTS, "status.allocation.devices.results", (allocation or {}).get("devices", {}).get("results", [])
    )
    out.unless(allocation or not reserved, "status.reservedFor", "may not be specified when `allocated` is not set")
    out.at_most(MAX_RESERVED, "status.reservedFor", reserved)
    if new.get("metadata", {}).get("deletionTimestamp"):
        more = len(reserved) > len(before.get("reservedFor", []))
        out.unless(not more, "status.reservedFor", "new reservations may not be added during deletion")
    reports = [
        (one.get("driver", ""), one.get("pool", ""), one.get("device", ""), one.get("shareID", ""))
        for one in status.get("devices", [])
    ]
    out.once("status.devices", reports)
    for index, one in enumerate(status.get("devices", [])):
        path = f"status.devices[{index}]"
        out.unless(reports[index] in allocated(status), path, "must be an allocated device in the claim")
        out.at_most(MAX_STATUS_CONDITIONS, f"{path}.conditions", one.get("conditions", []))
        for condition in one.get("conditions", []):
            _condition(out, f"{path}.conditions", condition)
        data = one.get("data", {})
        small = isinstance(data, dict) and len(json.dumps(data, separators=(",", ":"))) <= MAX_OPAQUE_BYTES
        out.unless(small, f"{path}.data", f"must be an object of at most {MAX_OPAQUE_BYTES} bytes")
        out.at_most(MAX_IPS, f"{path}.networkData.ips", one.get("networkData", {}).get("ips", []))
    return out


def _condition(out: Complaints, path: str, condition: JSON) -> None:
    out.key(f"{path}.type", condition.get("type", ""))
    out.unless(condition.get("status") in ("False", "True", "Unknown"), f"{path}.status", "Unsupported value")
    out.unless(condition.get("lastTransitionTime"), f"{path}.lastTransitionTime", "Required value")
    out.name(f"{path}.reason", condition.get("reason", ""), _REASON, 1024)
