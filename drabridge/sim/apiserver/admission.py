"""Check a decoded object before it is stored: validation by kind, and who may write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from drabridge.sim.apiserver import validation, validation_claims
from drabridge.sim.apiserver.auth import User, check_device_status, check_own_node
from drabridge.sim.apiserver.kinds import Resource
from drabridge.sim.apiserver.names import subdomain_problems
from drabridge.sim.apiserver.status import JSON, unprocessable
from drabridge.sim.apiserver.validation import Errors, named
from drabridge.sim.releases import Release

_GRANULAR = "DRAResourceClaimGranularStatusAuthorization"
Validator = Callable[[JSON, JSON | None, Release], Errors]

_VALIDATORS: Mapping[str, Validator] = MappingProxyType(
    {
        "resourceslices": validation.resource_slice,
        "devicetaintrules": validation.device_taint_rule,
        "resourceclaims": validation_claims.resource_claim,
        "resourceclaimtemplates": validation_claims.resource_claim_template,
        "deviceclasses": validation_claims.device_class,
    }
)


def validate(
    resource: Resource,
    new: JSON,
    old: JSON | None,
    subresource: str,
    namespace_labels: dict[str, str],
    release: Release,
) -> None:
    """Raises ApiError 422 with every complaint of the release."""
    name = new["metadata"]["name"]
    errors = list(named("metadata.name", name, subdomain_problems)) if old is None else []
    if subresource == "status" and resource.plural == "resourceclaims" and old is not None:
        errors += validation_claims.claim_status(new, old)
    elif resource.plural in _VALIDATORS:
        errors += _VALIDATORS[resource.plural](new, old, release)
        if old is None and resource.plural in ("resourceclaims", "resourceclaimtemplates"):
            errors += validation_claims.admin_access(resource.plural, new, namespace_labels)
    if errors:
        raise unprocessable(resource.group, resource.kind, name, errors)


def check(
    resource: Resource, new: JSON, old: JSON | None, user: User, *, deleting: bool, gates: Mapping[str, bool]
) -> None:
    """Raises ApiError 403 where the user's node or drivers do not allow the write."""
    refusal = None
    if resource.plural == "resourceslices":
        refusal = check_own_node(user, new, old)
    elif resource.plural == "resourceclaims" and old is not None and not deleting and gates[_GRANULAR]:
        refusal = check_device_status(user, new, old)
    if refusal is not None:
        raise refusal


def forget_deallocated(resource: Resource, new: JSON, old: JSON) -> None:
    """The server itself removes entries of status.devices whose device has just been deallocated."""
    if resource.plural != "resourceclaims" or not new.get("status", {}).get("devices"):
        return
    was, held = validation_claims.allocated(old.get("status", {})), validation_claims.allocated(new["status"])
    if not was - held:
        return
    kept = [
        one
        for one in new["status"]["devices"]
        if (one["driver"], one["pool"], one["device"], one.get("shareID", "")) not in was - held
    ]
    new["status"].pop("devices")
    if kept:
        new["status"]["devices"] = kept
