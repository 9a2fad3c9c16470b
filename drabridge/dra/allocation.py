"""Read which devices of this driver a ResourceClaim is allocated. The claim is not trusted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from drabridge.config.fabric import is_fabric_pool
from drabridge.config.quantity import parse
from drabridge.errors import PeerError
from drabridge.ledger import events
from drabridge.ledger.entries import ClaimRef, ClaimShare
from drabridge.ledger.events import DeviceUse
from drabridge.offers.slices import lease_condition
from drabridge.system.untrusted import reading

POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"  # annotation of claims made from templates, since 1.36
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # what a pod may call a claim (core validation, DNS label)


class AllocationResult(Struct, frozen=True):
    """One device that the scheduler gave to one request of a claim."""

    request: str
    pool: str
    device: str
    share_id: str = ""
    admin: bool = False
    consumed: Mapping[str, int] = {}
    lease: bool = False  # the allocation has our binding condition

    @property
    def base_request(self) -> str:
        """Return ``gpu`` for ``gpu/large``: containers name the request, not the chosen alternative."""
        return self.request.partition("/")[0]

    def use(self) -> DeviceUse:
        """Return the device in the ledger's words."""
        share = ClaimShare(self.share_id, tuple(sorted(self.consumed.items()))) if self.share_id else None
        return DeviceUse(self.device, share, self.admin, self.lease)


class ClaimAllocation(Struct, frozen=True):
    """An allocated claim with this driver's devices."""

    claim: ClaimRef
    results: tuple[AllocationResult, ...]
    config: tuple[Mapping[str, Any], ...] = ()  # allocation.devices.config, all drivers'
    pod_claim_name: str = ""

    @property
    def uses(self) -> tuple[DeviceUse, ...]:
        """This node's devices in the ledger's words."""
        return tuple(result.use() for result in self.results if not is_fabric_pool(result.pool))


def allocation_of(claim: ClaimRef, obj: Mapping[str, Any], driver: str) -> ClaimAllocation:
    """Return the allocation that ``obj``, the object of ``claim``, has, with the devices of ``driver``.

    Raises PeerError if it is another claim of that name, if it is not allocated, or if it cannot be read.
    """
    with reading(f"the allocation of claim {claim.namespace}/{claim.name}"):
        metadata = obj.get("metadata") or {}
        if metadata.get("uid") != claim.uid:
            raise PeerError(
                f"claim {claim.namespace}/{claim.name} was replaced: "
                f"it has the UID {metadata.get('uid')}, not {claim.uid}",
                hint="Delete the pod; a new one gets the new claim",
            )
        allocation = (obj.get("status") or {}).get("allocation")
        if not allocation:
            raise PeerError(
                f"claim {claim.namespace}/{claim.name} is not allocated any more",
                hint="Kubelet tries again; if it stays so, delete the pod",
            )
        devices = allocation.get("devices") or {}
        results = tuple(_result(entry) for entry in devices.get("results") or () if entry["driver"] == driver)
        config = tuple(devices.get("config") or ())
        pod_claim_name = pod_claim_name_of((metadata.get("annotations") or {}).get(POD_CLAIM_NAME))
    return ClaimAllocation(claim, results, config, pod_claim_name)


def pod_claim_name_of(value: Any) -> str:
    """Return the annotation's value; "" if no pod can use it as the name of a claim.

    Users write the annotation, and its value becomes part of a path.
    """
    return value if isinstance(value, str) and _LABEL.fullmatch(value) else ""


def is_allocated(claim: ClaimRef, obj: Mapping[str, Any] | None) -> bool:
    """Whether ``obj`` is this very claim and still allocated. None: the server has no such object."""
    if obj is None or (obj.get("metadata") or {}).get("uid") != claim.uid:
        return False
    return bool((obj.get("status") or {}).get("allocation"))


def allocation_here(obj: Mapping[str, Any], driver: str, pool: str) -> events.ClaimDevices | None:
    """Read a claim with all its devices of ``pool``; None if it has none there. Raises PeerError.

    It reads all of them, because for the ledger a missing device is deallocated.
    """
    metadata = obj.get("metadata") or {}
    if not (obj.get("status") or {}).get("allocation"):
        return None
    if not isinstance(uid := metadata.get("uid"), str):
        raise PeerError("an allocated claim has no UID")
    claim = ClaimRef(uid, str(metadata.get("namespace") or ""), str(metadata.get("name") or ""))
    uses = tuple(result.use() for result in allocation_of(claim, obj, driver).results if result.pool == pool)
    return events.ClaimDevices(claim, uses) if uses else None


def devices_on(obj: Mapping[str, Any], driver: str, node: str) -> tuple[str, ...]:
    """List a claim's devices of ``driver``; () if the claim can only be used on other nodes. Raises PeerError.

    Devices of every pool count, except those of fabric pools.
    """
    with reading("the allocation of a claim"):
        allocation = (obj.get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or ()
        ours = (entry for entry in results if entry["driver"] == driver and not is_fabric_pool(entry["pool"]))
        names = tuple(str(entry["device"]) for entry in ours)
        return () if _elsewhere(allocation, node) else names


def _elsewhere(allocation: Mapping[str, Any], node: str) -> bool:
    """Whether every term of the node selector names nodes, but not this one.

    Devices from slices of one node give such a selector.
    """
    terms = (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or ()
    named = [
        any(
            (field["key"], field["operator"]) == ("metadata.name", "In") and node not in field["values"]
            for field in term.get("matchFields") or ()
        )
        for term in terms
    ]
    return bool(named) and all(named)


def _result(entry: Mapping[str, Any]) -> AllocationResult:
    consumed = {str(name): _amount(value) for name, value in (entry.get("consumedCapacity") or {}).items()}
    return AllocationResult(
        str(entry["request"]),
        str(entry["pool"]),
        str(entry["device"]),
        str(entry.get("shareID") or ""),
        bool(entry.get("adminAccess")),
        consumed,
        lease_condition(str(entry["driver"])) in (entry.get("bindingConditions") or ()),
    )


def _amount(value: Any) -> int:
    """Return the quantity, rounded up to whole units."""
    return -(-parse(str(value)) // 1)
