"""Validation of ResourceClaim, its status, ResourceClaimTemplate and DeviceClass."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from drabridge.sim.apiserver.names import (
    caseless_subdomain_problems,
    label_key_problems,
    label_problems,
    subdomain_problems,
)
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
from drabridge.sim.apiserver.validation import Errors, driver_name, named, qualified_name, twice
from drabridge.sim.releases import Release, Words

# staging/src/k8s.io/api/resource/v1/types.go
MAX_REQUESTS = 32
MAX_SUB_REQUESTS = 8
MAX_CONSTRAINTS = 32
MAX_CONFIGS = 32
MAX_SELECTORS = 32
MAX_TOLERATIONS = 16
MAX_RESULTS = 32
MAX_RESERVED = 256
MAX_CEL_BYTES = 10 * 1024
MAX_OPAQUE_BYTES = 10 * 1024
EMPTY_EXPRESSION = (  # in the words of Kubernetes 1.36.2
    "ERROR: <input>:1:0: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', "
    "'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}"
)
MAX_STATUS_CONDITIONS = 8
MAX_IPS = 16

_REASON = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"
_REASON_TEXT = (
    "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric "
    "characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or "
    f"'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '{_REASON}')"
)
_NO_DOMAIN = ("a fully qualified name must be a domain and a name separated by a slash", "must include a domain")
_MODES = ("All", "ExactCount")
_CONDITION_STATUS = ("False", "True", "Unknown")
ADMIN_ACCESS_LABEL = "resource.kubernetes.io/admin-access"


def resource_claim(new: JSON, old: JSON | None, release: Release) -> Errors:
    yield from claim_spec("spec", new.get("spec", {}), release)
    if old is not None and new.get("spec") != old.get("spec"):
        shown = None if release.words is Words.DECLARATIVE else new.get("spec")
        yield invalid("spec", shown, "field is immutable")


def resource_claim_template(new: JSON, old: JSON | None, release: Release) -> Errors:
    yield from claim_spec("spec.spec", new.get("spec", {}).get("spec", {}), release)
    if old is not None and new.get("spec") != old.get("spec"):
        yield invalid("spec", new.get("spec"), "field is immutable")


def device_class(new: JSON, old: JSON | None, release: Release) -> Errors:
    spec = new.get("spec", {})
    yield from _selectors("spec.selectors", spec.get("selectors", []))
    yield from _configs("spec.config", spec.get("config", []), None, release)
    name = spec.get("extendedResourceName")
    if name is not None:
        domain, slash, _ = name.partition("/")
        if not slash or domain == "kubernetes.io" or domain.endswith(".kubernetes.io") or name.startswith("requests."):
            yield invalid("spec.extendedResourceName", name, "must be a valid extended resource name")
        for problem in label_key_problems(name):
            yield invalid("spec.extendedResourceName", name, problem)


def claim_spec(path: str, spec: JSON, release: Release) -> Errors:
    devices = spec.get("devices", {})
    where = f"{path}.devices"
    requests = devices.get("requests", [])
    if len(requests) > MAX_REQUESTS:
        yield too_many(f"{where}.requests", len(requests), MAX_REQUESTS)
    known: set[str] = set()
    for index, request in enumerate(requests):
        one = f"{where}.requests[{index}]"
        yield from _request(one, request, release)
        name = request.get("name", "")
        if name in known:
            yield twice(one, request, "name", release)
        known |= {name} | {f"{name}/{sub.get('name', '')}" for sub in request.get("firstAvailable", [])}
    constraints = devices.get("constraints", [])
    if len(constraints) > MAX_CONSTRAINTS:
        yield too_many(f"{where}.constraints", len(constraints), MAX_CONSTRAINTS)
    for index, constraint in enumerate(constraints):
        one = f"{where}.constraints[{index}]"
        yield from _references(f"{one}.requests", constraint.get("requests", []), known)
        attribute = constraint.get("matchAttribute") or constraint.get("distinctAttribute")
        if not attribute:
            yield required(f"{one}.matchAttribute")
        elif "/" not in attribute:
            yield invalid(f"{one}.matchAttribute", attribute, _NO_DOMAIN[release.words is Words.OLD])
        else:
            yield from qualified_name(f"{one}.matchAttribute", attribute)
    yield from _configs(f"{where}.config", devices.get("config", []), known, release)


def _request(path: str, request: JSON, release: Release) -> Errors:
    yield from named(f"{path}.name", request.get("name", ""), label_problems)
    exactly, subs = request.get("exactly"), request.get("firstAvailable", [])
    if exactly is None and not subs:
        yield required(path, "exactly one of `exactly` or `firstAvailable` is required")
    elif exactly is not None and subs:
        yield invalid(
            path,
            None,
            "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
        )
    if exactly is not None:
        yield from _wanted(f"{path}.exactly", exactly, release)
    if len(subs) > MAX_SUB_REQUESTS:
        yield too_many(f"{path}.firstAvailable", len(subs), MAX_SUB_REQUESTS)
    names: set[str] = set()
    for index, sub in enumerate(subs):
        one = f"{path}.firstAvailable[{index}]"
        yield from named(f"{one}.name", sub.get("name", ""), label_problems)
        if sub.get("name") in names:
            yield twice(one, sub, "name", release)
        names.add(sub.get("name", ""))
        yield from _wanted(one, sub, release)


def _wanted(path: str, request: JSON, release: Release) -> Errors:
    if not request.get("deviceClassName"):
        yield required(f"{path}.deviceClassName")
    else:
        yield from named(f"{path}.deviceClassName", request["deviceClassName"], subdomain_problems)
    mode, count = request.get("allocationMode"), request.get("count")
    if mode not in _MODES:
        yield unsupported(f"{path}.allocationMode", mode, _MODES)
    elif mode == "All" and count is not None:
        yield invalid(f"{path}.count", count, "must not be specified when allocationMode is 'All'")
    elif mode == "ExactCount" and (count is None or count <= 0):
        yield invalid(f"{path}.count", count or 0, "must be greater than zero")
    yield from _selectors(f"{path}.selectors", request.get("selectors", []))
    yield from _tolerations(f"{path}.tolerations", request.get("tolerations", []), release)
    for name in request.get("capacity", {}).get("requests", {}):
        yield from qualified_name(f"{path}.capacity.requests[{name}]", name)


def _selectors(path: str, selectors: Sequence[JSON]) -> Errors:
    if len(selectors) > MAX_SELECTORS:
        yield too_many(path, len(selectors), MAX_SELECTORS)
    for index, selector in enumerate(selectors):
        where = f"{path}[{index}].cel"
        if "cel" not in selector:
            yield required(where)
        elif not selector["cel"].get("expression"):
            yield invalid(f"{where}.expression", "", f"compilation failed: {EMPTY_EXPRESSION}")
        elif len(selector["cel"]["expression"]) > MAX_CEL_BYTES:
            yield too_long(f"{where}.expression", MAX_CEL_BYTES)


def _tolerations(path: str, tolerations: Sequence[JSON], release: Release) -> Errors:
    if len(tolerations) > MAX_TOLERATIONS:
        yield too_many(path, len(tolerations), MAX_TOLERATIONS)
    for index, one in enumerate(tolerations):
        where = f"{path}[{index}]"
        if one.get("operator") not in ("Equal", "Exists"):
            yield unsupported(f"{where}.operator", one.get("operator"), ("Equal", "Exists"))
        if one.get("operator") == "Exists" and one.get("value"):
            yield invalid(f"{where}.value", one["value"], "must be empty for operator `Exists`")
        if one.get("operator") == "Equal" and not one.get("key"):
            yield required(f"{where}.key", "must not be empty for operator `Equal`")
        if one.get("effect") and one["effect"] not in release.taint_effects:
            yield unsupported(f"{where}.effect", one["effect"], release.taint_effects)


def _references(path: str, names: Sequence[str], known: set[str]) -> Errors:
    for index, name in enumerate(names):
        if name not in known:
            yield invalid(
                f"{path}[{index}]",
                name,
                "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
            )


def _configs(path: str, configs: Sequence[JSON], known: set[str] | None, release: Release) -> Errors:
    if len(configs) > MAX_CONFIGS:
        yield too_many(path, len(configs), MAX_CONFIGS)
    for index, config in enumerate(configs):
        where = f"{path}[{index}]"
        if known is not None:
            yield from _references(f"{where}.requests", config.get("requests", []), known)
        opaque = config.get("opaque")
        if opaque is None:
            yield required(f"{where}.opaque", "")
            continue
        yield from _driver(f"{where}.opaque.driver", opaque.get("driver", ""), release)
        yield from _raw(f"{where}.opaque.parameters", opaque.get("parameters"))


def _driver(path: str, text: str, release: Release) -> Errors:
    if text and release.words is Words.DECLARATIVE:
        yield from (invalid(path, text, problem) for problem in caseless_subdomain_problems(text))
    else:
        yield from driver_name(path, text, release)


def _raw(path: str, value: object) -> Errors:
    if value is None:
        yield required(path)
    elif not isinstance(value, dict):
        yield invalid(path, "<value omitted>", "error parsing data as JSON: must be an object")
    elif len(json.dumps(value, separators=(",", ":"))) > MAX_OPAQUE_BYTES:
        yield too_long(path, MAX_OPAQUE_BYTES)


def allocated(status: JSON) -> set[tuple[str, str, str, str]]:
    """(driver, pool, device, share) of every device that the claim holds."""
    results = status.get("allocation", {}).get("devices", {}).get("results", [])
    return {(one["driver"], one["pool"], one["device"], one.get("shareID", "")) for one in results}


def claim_status(new: JSON, old: JSON) -> Errors:
    """Complaints about the status of a claim whose stored form is ``old``."""
    status, before = new.get("status", {}), old.get("status", {})
    allocation, previous = status.get("allocation"), before.get("allocation")
    if allocation is not None and previous is not None and allocation != previous:
        yield invalid("status.allocation", allocation, "field is immutable")
    results = (allocation or {}).get("devices", {}).get("results", [])
    if len(results) > MAX_RESULTS:
        yield too_many("status.allocation.devices.results", len(results), MAX_RESULTS)
    reserved = status.get("reservedFor", [])
    if reserved and allocation is None:
        yield forbidden_field("status.reservedFor", "may not be specified when `allocated` is not set")
    if len(reserved) > MAX_RESERVED:
        yield too_many("status.reservedFor", len(reserved), MAX_RESERVED)
    if (
        reserved
        and new.get("metadata", {}).get("deletionTimestamp")
        and len(reserved) > len(before.get("reservedFor", []))
    ):
        yield forbidden_field("status.reservedFor", "new reservations may not be added during deallocation or deletion")
    yield from _device_statuses(status)


def _device_statuses(status: JSON) -> Errors:
    held = allocated(status)
    seen: set[tuple[str, str, str, str]] = set()
    for index, one in enumerate(status.get("devices", [])):
        path = f"status.devices[{index}]"
        key = (one.get("driver", ""), one.get("pool", ""), one.get("device", ""), one.get("shareID", ""))
        shown = dict(zip(("Driver", "Pool", "Device", "ShareID"), key, strict=True))
        if key not in held:
            yield invalid(path, shown, "must be an allocated device in the claim")
        if key in seen:
            yield duplicate(path, shown)
        seen.add(key)
        conditions = one.get("conditions", [])
        if len(conditions) > MAX_STATUS_CONDITIONS:
            yield too_many(f"{path}.conditions", len(conditions), MAX_STATUS_CONDITIONS)
        for number, condition in enumerate(conditions):
            yield from _condition(f"{path}.conditions[{number}]", condition)
        if "data" in one:
            yield from _raw(f"{path}.data", one["data"])
        ips = one.get("networkData", {}).get("ips", [])
        if len(ips) > MAX_IPS:
            yield too_many(f"{path}.networkData.ips", len(ips), MAX_IPS)


def _condition(path: str, condition: JSON) -> Errors:
    yield from named(f"{path}.type", condition.get("type", ""), label_key_problems)
    if condition.get("status") not in _CONDITION_STATUS:
        yield unsupported(f"{path}.status", condition.get("status", ""), _CONDITION_STATUS)
    if not condition.get("lastTransitionTime"):
        yield required(f"{path}.lastTransitionTime")
    reason = condition.get("reason", "")
    if not reason:
        yield required(f"{path}.reason")
    elif not re.fullmatch(_REASON, reason):
        yield invalid(
            f"{path}.reason",
            reason,
            _REASON_TEXT,
        )


def admin_access(plural: str, obj: JSON, labels: dict[str, str]) -> list[FieldError]:
    """adminAccess is for namespaces whose label says so; ``labels`` are the namespace's."""
    if labels.get(ADMIN_ACCESS_LABEL) == "true":
        return []
    path, spec = "spec", obj.get("spec", {})
    if plural == "resourceclaimtemplates":
        path, spec = "spec.spec", spec.get("spec", {})
    return [
        forbidden_field(
            f"{path}.devices.requests[{index}].exactly.adminAccess",
            f"admin access to devices requires the `{ADMIN_ACCESS_LABEL}: true` label on the containing namespace",
        )
        for index, request in enumerate(spec.get("devices", {}).get("requests", []))
        if request.get("exactly", {}).get("adminAccess")
    ]
