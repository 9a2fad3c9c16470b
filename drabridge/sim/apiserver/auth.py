"""Define who sends a request, and the two admission rules that depend on it."""

from __future__ import annotations

from dataclasses import dataclass

from drabridge.sim.apiserver.status import JSON, ApiError, forbidden
from drabridge.sim.apiserver.validation import allocated

NODE_NAME_EXTRA = "authentication.kubernetes.io/node-name"


@dataclass(frozen=True, slots=True)
class User:
    """An identity.

    ``node`` is set for a service account token that is bound to a pod on that node (projected tokens since 1.32).
    """

    name: str
    groups: tuple[str, ...] = ()
    node: str = ""
    drivers: frozenset[str] | None = None
    """Drivers whose entries of claim.status.devices the user may write (``resourceclaims/driver``); None: all."""

    @property
    def info(self) -> JSON:
        """``userInfo`` as in SelfSubjectReview and in admission requests."""
        found: JSON = {"username": self.name, "groups": [*self.groups, "system:authenticated"]}
        return found | ({"extra": {NODE_NAME_EXTRA: [self.node]}} if self.node else {})


ADMIN = User("kubernetes-admin", ("system:masters",))
SYSTEM = User("system:sim", ("system:masters",))
"""The simulated controllers, scheduler and kubelets, which call without HTTP."""


def check_own_node(user: User, obj: JSON, old: JSON | None) -> ApiError | None:
    """Return the refusal of the ValidatingAdmissionPolicy of node agents (slices of the own node only); else None."""
    if not user.node:
        return None
    name = obj["metadata"].get("name", "")
    nodes = {one.get("spec", {}).get("nodeName", "") for one in (obj, old) if one is not None}
    if nodes == {user.node}:
        return None
    why = (
        "ValidatingAdmissionPolicy 'own-node-resourceslices' with binding 'own-node-resourceslices' denied request: "
        f"the token is bound to node {user.node}, the ResourceSlice is of node {', '.join(sorted(nodes)) or '(none)'}"
    )
    return forbidden("resource.k8s.io", "resourceslices", name, why)


def check_device_status(user: User, new: JSON, old: JSON) -> ApiError | None:
    """Return the refusal of a change of status.devices by anybody but the device's driver; None if it is allowed.

    This is DRAResourceClaimGranularStatusAuthorization (1.36). For a node-bound user, the claim must also be allocated
    to its node alone (``associated-node``).
    """
    if not user.node and user.drivers is None:
        return None
    touched = _changed_drivers(new.get("status", {}), old.get("status", {}))
    denied = sorted(touched - user.drivers) if user.drivers is not None else []
    name = new["metadata"]["name"]
    if denied:
        verb = "associated-node:update" if user.node else "arbitrary-node:update"
        why = f'user "{user.name}" may not {verb} resourceclaims/driver for driver "{denied[0]}"'
        return forbidden("resource.k8s.io", "resourceclaims", name, why)
    if touched and user.node and allocated(new.get("status", {})) and allocation_node(new) != user.node:
        why = f'user "{user.name}" is bound to node "{user.node}", to which the claim is not allocated'
        return forbidden("resource.k8s.io", "resourceclaims", name, why)
    return None


def _changed_drivers(new: JSON, old: JSON) -> set[str]:
    before, after = (
        {(one["driver"], one["pool"], one["device"], one.get("shareID", "")): one for one in status.get("devices", [])}
        for status in (old, new)
    )
    return {key[0] for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def allocation_node(claim: JSON) -> str:
    """Return the one node of an allocation for ``metadata.name In [node]``; empty for every other selector."""
    selector = claim.get("status", {}).get("allocation", {}).get("nodeSelector", {})
    match selector:
        case {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}:
            return str(node)
    return ""
