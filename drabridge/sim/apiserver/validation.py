"""Validate ResourceSlices: the limits and words of ``pkg/apis/resource/validation``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from drabridge.sim.apiserver.names import (
    SEMVER,
    SEMVER_TEXT,
    NameFormat,
    identifier_problems,
    label_key_problems,
    label_problems,
    subdomain_problems,
)
from drabridge.sim.apiserver.quantity import Quantity
from drabridge.sim.apiserver.status import (
    JSON,
    FieldError,
    duplicate,
    forbidden_field,
    invalid,
    required,
    too_long,
    too_many,
    unsupported,
)
from drabridge.sim.releases import Release, Words

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

_VALUE_FIELDS = ("int", "bool", "string", "version", "ints", "bools", "strings", "versions")
_NODE_FIELDS = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")

_ONE_VALUE = "exactly one value must be specified"
_PER_DEVICE_TEXT = (
    "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true "
    "in the ResourceSlice spec"
)

Errors = Iterator[FieldError]


def named(path: str, text: str, problems: NameFormat) -> Errors:
    if not text:
        yield required(path)
        return
    for problem in problems(text):
        yield invalid(path, text, problem)


def driver_name(path: str, text: str, release: Release) -> Errors:
    yield from named(path, text, lambda name: subdomain_problems(name, MAX_DRIVER_BYTES))
    if not text and release.words is Words.OLD:
        yield from (invalid(path, text, problem) for problem in subdomain_problems(text))


def qualified_name(path: str, text: str) -> Errors:
    """Attribute and capacity names: ``[domain/]identifier``."""
    domain, slash, name = text.partition("/")
    if not slash:
        yield from named(path, domain, identifier_problems)
        return
    if not domain:
        yield required(path, "the domain must not be empty")
    else:
        yield from named(path, domain, lambda one: subdomain_problems(one, MAX_DRIVER_BYTES))
    if not name:
        yield required(path, "the name must not be empty")
    else:
        yield from named(path, name, identifier_problems)


def twice(path: str, item: JSON, key: str, release: Release, *, declared: bool = True) -> FieldError:
    """An item of a list whose ``key`` another one has; ``declared``: in 1.37 by declarative validation."""
    if release.words is Words.OLD:
        return duplicate(f"{path}.{key}", item[key])
    return duplicate(path, item if declared and release.words is Words.DECLARATIVE else item[key])


def resource_slice(new: JSON, old: JSON | None, release: Release) -> Errors:
    """All complaints about one slice; ``old`` is the stored one in an update."""
    spec = new.get("spec", {})
    yield from driver_name("spec.driver", spec.get("driver", ""), release)
    yield from _pool(spec.get("pool", {}))
    yield from _node_selection(spec)
    if old is not None:
        yield from _immutable(spec, old["spec"])
    devices, counter_sets = spec.get("devices", []), spec.get("sharedCounters", [])
    if devices and counter_sets and not release.counters_beside_devices:
        yield invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    limit = _device_limit(devices)
    if len(devices) > limit:
        yield too_many("spec.devices", len(devices), limit)
    seen: set[str] = set()
    for index, device in enumerate(devices):
        path = f"spec.devices[{index}]"
        yield from _device(path, device, release, per_device=bool(spec.get("perDeviceNodeSelection")))
        if release.counters_beside_devices:
            yield from _known_counter_sets(path, device, counter_sets)
        if device.get("name") in seen:
            yield twice(path, device, "name", release, declared=False)
        seen.add(device.get("name", ""))
    yield from _counter_sets(counter_sets, release)


def _known_counter_sets(path: str, device: JSON, counter_sets: Sequence[JSON]) -> Errors:
    """Complaints about counter sets that are not in the device's own slice."""
    known = {one.get("name") for one in counter_sets}
    for index, consumed in enumerate(device.get("consumesCounters", [])):
        if (name := consumed.get("counterSet", "")) not in known:
            where = f"{path}.consumesCounters[{index}].counterSet"
            yield invalid(where, name, "must reference a counterSet defined in the ResourceSlice sharedCounters")


def _device_limit(devices: Sequence[JSON]) -> int:
    lists = ("ints", "bools", "strings", "versions")
    if any(
        "taints" in device
        or "consumesCounters" in device
        or any(name in value for value in device.get("attributes", {}).values() for name in lists)
        for device in devices
    ):
        return MAX_DEVICES_WITH_TAINTS_OR_COUNTERS
    return MAX_DEVICES


def _pool(pool: JSON) -> Errors:
    name = pool.get("name", "")
    if not name:
        yield required("spec.pool.name")
    elif len(name) > 253:
        yield too_long("spec.pool.name", 253)
    else:
        for part in name.split("/"):
            yield from named("spec.pool.name", part, subdomain_problems)
    if pool.get("resourceSliceCount", 0) <= 0:
        yield invalid("spec.pool.resourceSliceCount", pool.get("resourceSliceCount", 0), "must be greater than zero")
    if pool.get("generation", 0) < 0:
        yield invalid("spec.pool.generation", pool["generation"], "must be greater than or equal to zero")


def _node_selection(spec: JSON) -> Errors:
    given = [name for name in _NODE_FIELDS if spec.get(name) is not None]
    choice = ", ".join(f"`{name}`" for name in _NODE_FIELDS)
    if not given:
        yield required("spec", f"exactly one of {choice} is required")
    elif len(given) > 1:
        fields = "{" + ", ".join(f"`{name}`" for name in given) + "}"
        yield invalid("spec", fields, f"exactly one of {choice} is required, but multiple fields are set")
    if "nodeName" in spec:
        if spec["nodeName"] == "":
            yield invalid("spec.nodeName", "", "must be either unset or set to a non-empty string")
        else:
            yield from named("spec.nodeName", spec["nodeName"], subdomain_problems)
    for name in ("allNodes", "perDeviceNodeSelection"):
        if spec.get(name) is False:
            yield invalid(f"spec.{name}", False, "must be either unset or set to true")


def _immutable(new: JSON, old: JSON) -> Errors:
    for name in ("driver", "nodeName"):
        if new.get(name) != old.get(name):
            yield invalid(f"spec.{name}", new.get(name), "field is immutable")
    if new.get("pool", {}).get("name") != old["pool"]["name"]:
        yield invalid("spec.pool.name", new.get("pool", {}).get("name"), "field is immutable")


def _device(path: str, device: JSON, release: Release, *, per_device: bool) -> Errors:
    yield from named(f"{path}.name", device.get("name", ""), label_problems)
    attributes, capacity = device.get("attributes", {}), device.get("capacity", {})
    if (total := len(attributes) + len(capacity)) > MAX_ATTRIBUTES_AND_CAPACITIES:
        limit = MAX_ATTRIBUTES_AND_CAPACITIES
        yield invalid(path, total, f"the total number of attributes and capacities must not exceed {limit}")
    for name, value in attributes.items():
        yield from _key(f"{path}.attributes", name, release)
        yield from _attribute(f"{path}.attributes[{name}]", value, release)
    many = bool(device.get("allowMultipleAllocations"))
    for name, value in capacity.items():
        yield from _key(f"{path}.capacity", name, release)
        yield from _capacity(f"{path}.capacity[{name}]", value, many=many)
    yield from _taints(f"{path}.taints", device.get("taints", []), release)
    yield from _consumes(f"{path}.consumesCounters", device.get("consumesCounters", []), release)
    yield from _binding(path, device)
    chosen = [name for name in ("nodeName", "nodeSelector", "allNodes") if name in device]
    if per_device and not chosen:
        yield required(path, _PER_DEVICE_TEXT)
    if per_device and len(chosen) > 1:
        yield invalid(path, "{" + ", ".join(f"`{name}`" for name in chosen) + "}", _PER_DEVICE_TEXT)
    if not per_device and chosen:
        yield forbidden_field(f"{path}.{chosen[0]}", "can only be set when `perDeviceNodeSelection` is true")


def _key(path: str, name: str, release: Release) -> Errors:
    """Complaints about the name of an attribute or a capacity."""
    yield from qualified_name(f"{path}[{name}]" if release.errors_name_keys else path, name)


def _attribute(path: str, value: JSON, release: Release) -> Errors:
    given = [name for name in _VALUE_FIELDS if name in value]
    if not given:
        yield required(path, _ONE_VALUE) if release.words is Words.OLD else invalid(path, "", _one_value(release))
    elif len(given) > 1:
        shown = "{" + ", ".join(given) + "}" if release.words is Words.DECLARATIVE else value
        yield invalid(path, shown, _one_value(release, "exactly "))
    if "string" in value:
        yield from _attribute_string(f"{path}.string", value["string"])
    if "version" in value:
        yield from _attribute_version(f"{path}.version", value["version"])
    for index, text in enumerate(value.get("strings", [])):
        yield from _attribute_string(f"{path}.strings[{index}]", text)
    for index, text in enumerate(value.get("versions", [])):
        yield from _attribute_version(f"{path}.versions[{index}]", text)


def _one_value(release: Release, how: str = "") -> str:
    fields = ", ".join(f"`{name}`" for name in _VALUE_FIELDS)
    return f"must specify {how}one of: {fields}" if release.words is Words.DECLARATIVE else _ONE_VALUE


def _attribute_string(path: str, text: str) -> Errors:
    if len(text.encode()) > MAX_ATTRIBUTE_BYTES:
        yield too_long(path, MAX_ATTRIBUTE_BYTES)


def _attribute_version(path: str, text: str) -> Errors:
    if SEMVER.fullmatch(text) is None:
        yield invalid(path, text, SEMVER_TEXT)
    yield from _attribute_string(path, text)


def _capacity(path: str, capacity: JSON, *, many: bool) -> Errors:
    policy = capacity.get("requestPolicy")
    if policy is None:
        return
    where = f"{path}.requestPolicy"
    if not many:
        yield forbidden_field(where, "allowMultipleAllocations must be true")
        return
    yield from _policy(where, policy, Quantity.parse(capacity.get("value", "0")))


def _policy(path: str, policy: JSON, maximum: Quantity) -> Errors:
    if "validValues" in policy and "validRange" in policy:
        yield forbidden_field(
            path, "exactly one policy can be specified, cannot specify `validValues` and `validRange` at the same time"
        )
    limited = "validValues" in policy or "validRange" in policy
    default = Quantity.parse(policy["default"]) if "default" in policy else None
    if limited and default is None:
        yield required(f"{path}.default", "required when a policy is defined")
    if default is not None and default > maximum:
        yield invalid(f"{path}.default", policy["default"], f"default is larger than capacity value: {maximum}")
    values = [Quantity.parse(value) for value in policy.get("validValues", [])]
    if len(values) > MAX_VALID_VALUES:
        yield too_many(f"{path}.validValues", len(values), MAX_VALID_VALUES)
    for index, value in enumerate(values):
        where = f"{path}.validValues[{index}]"
        if value > maximum:
            yield invalid(where, str(value), f"option is larger than capacity value: {maximum}")
        if index and value <= values[index - 1]:
            yield invalid(where, str(value), "values must be sorted in ascending order")
    if values and default is not None and default not in values:
        yield invalid(f"{path}.default", policy["default"], "default value is not in the list of valid values")
    if "validRange" in policy:
        yield from _range(f"{path}.validRange", policy["validRange"], default, maximum)


def _range(path: str, span: JSON, default: Quantity | None, maximum: Quantity) -> Errors:
    if "min" not in span:
        yield required(f"{path}.min")
        return
    low = Quantity.parse(span["min"])
    high = Quantity.parse(span["max"]) if "max" in span else maximum
    if low > high:
        yield invalid(f"{path}.min", span["min"], f"min is larger than max: {high}")
    if high > maximum:
        yield invalid(f"{path}.max", span["max"], f"max is larger than capacity value: {maximum}")
    if default is not None and not low <= default <= high:
        yield invalid(f"{path}.default", str(default), f"default is outside of the valid range {low} to {high}")
    if "step" in span and default is not None:
        step = Quantity.parse(span["step"])
        if step.value <= 0 or (default - low).value % step.value:
            yield invalid(f"{path}.step", span["step"], "value is not a multiple of a given step")


def device_taint_rule(new: JSON, old: JSON | None, release: Release) -> Errors:
    yield from _taint("spec.taint", new["spec"].get("taint", {}), release)


def _taints(path: str, taints: Sequence[JSON], release: Release) -> Errors:
    if len(taints) > release.max_taints:
        yield too_many(path, len(taints), release.max_taints)
    for index, taint in enumerate(taints):
        yield from _taint(f"{path}[{index}]", taint, release)


def _taint(path: str, taint: JSON, release: Release) -> Errors:
    yield from named(f"{path}.key", taint.get("key", ""), label_key_problems)
    if taint.get("value"):
        yield from named(f"{path}.value", taint["value"], label_key_problems)
    if not taint.get("effect"):
        yield required(f"{path}.effect")
    elif taint["effect"] not in release.taint_effects:
        yield unsupported(f"{path}.effect", taint["effect"], release.taint_effects)


def _consumes(path: str, consumed: Sequence[JSON], release: Release) -> Errors:
    if len(consumed) > MAX_CONSUMED_SETS:
        yield too_many(path, len(consumed), MAX_CONSUMED_SETS)
    names: set[str] = set()
    for index, one in enumerate(consumed):
        where = f"{path}[{index}]"
        yield from named(f"{where}.counterSet", one.get("counterSet", ""), label_problems)
        if one.get("counterSet") in names:
            yield twice(where, one, "counterSet", release)
        names.add(one.get("counterSet", ""))
        yield from _counters(where, one.get("counters", {}))


def _counter_sets(sets: Sequence[JSON], release: Release) -> Errors:
    if len(sets) > MAX_COUNTER_SETS:
        yield too_many("spec.sharedCounters", len(sets), MAX_COUNTER_SETS)
    names: set[str] = set()
    for index, one in enumerate(sets):
        where = f"spec.sharedCounters[{index}]"
        yield from named(f"{where}.name", one.get("name", ""), label_problems)
        if one.get("name") in names:
            yield twice(where, one, "name", release)
        names.add(one.get("name", ""))
        yield from _counters(where, one.get("counters", {}))


def _counters(path: str, counters: dict[str, Any]) -> Errors:
    if not counters:
        yield required(f"{path}.counters")
    if len(counters) > MAX_COUNTERS:
        yield too_many(f"{path}.counters", len(counters), MAX_COUNTERS)
    for name in counters:
        yield from named(f"{path}.counters[{name}]", name, label_problems)


def _binding(path: str, device: JSON) -> Errors:
    wanted, failed = device.get("bindingConditions", []), device.get("bindingFailureConditions", [])
    if bool(wanted) != bool(failed):
        missing = "bindingFailureConditions" if wanted else "bindingConditions"
        other = "bindingConditions" if wanted else "bindingFailureConditions"
        yield invalid(f"{path}.{missing}", None, f"{missing} are required to use {other}")
    for name, conditions in (("bindingConditions", wanted), ("bindingFailureConditions", failed)):
        if len(conditions) > MAX_BINDING_CONDITIONS:
            yield too_many(f"{path}.{name}", len(conditions), MAX_BINDING_CONDITIONS)
        for index, condition in enumerate(conditions):
            yield from named(f"{path}.{name}[{index}]", condition, label_key_problems)
            if condition in conditions[:index]:
                yield duplicate(f"{path}.{name}[{index}]", condition)
    for index, condition in enumerate(failed):
        if condition in wanted:
            where = f"{path}.bindingFailureConditions[{index}]"
            yield invalid(where, condition, "bindingFailureConditions must not overlap with bindingConditions")
