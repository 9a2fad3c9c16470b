"""Check a decoded object before it is stored: what it says, and who may write it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from drabridge.sim.apiserver import validation
from drabridge.sim.apiserver.auth import User, check_device_status, check_own_node
from drabridge.sim.apiserver.kinds import Resource
from drabridge.sim.apiserver.status import JSON, FieldError, unprocessable
from drabridge.sim.releases import Release

_GRANULAR = "DRAResourceClaimGranularStatusAuthorization"
_IMMUTABLE = ("resourceclaims", "resourceclaimtemplates")


def validate(resource: Resource, new: JSON, old: JSON | None, subresource: str, release: Release) -> None:
    """Check an object. Raises ApiError 422 with every complaint."""
    name, errors = new["metadata"]["name"], validation.Complaints()
    if old is None and not re.fullmatch(validation.SUBDOMAIN, name):
        errors.append(FieldError("metadata.name", f"Invalid value: {name}: must match {validation.SUBDOMAIN}"))
    if resource.plural == "resourceslices":
        errors += validation.resource_slice(new, old, release)
    elif resource.plural == "resourceclaims" and old is not None and subresource == "status":
        errors += validation.claim_status(new, old)
    elif resource.plural in _IMMUTABLE and old is not None:
        errors.unless(new.get("spec") == old.get("spec"), "spec", "field is immutable")
    if errors:
        raise unprocessable(resource.group, resource.kind, name, errors)


def check(
    resource: Resource, new: JSON, old: JSON | None, user: User, *, deleting: bool, gates: Mapping[str, bool]
) -> None:
    """Check a write. Raises ApiError 403 where the user's node or drivers do not allow the write."""
    refusal = None
    if resource.plural == "resourceslices":
        refusal = check_own_node(user, new, old)
    elif resource.plural == "resourceclaims" and old is not None and not deleting and gates[_GRANULAR]:
        refusal = check_device_status(user, new, old)
    if refusal is not None:
        raise refusal


def forget_deallocated(resource: Resource, new: JSON, old: JSON) -> None:
    """Remove entries of status.devices whose device has just been deallocated, as the server itself does."""
    if resource.plural != "resourceclaims" or not new.get("status", {}).get("devices"):
        return
    was, held = validation.allocated(old.get("status", {})), validation.allocated(new["status"])
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
