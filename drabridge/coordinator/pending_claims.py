"""Follow all claims of the cluster and keep those that wait for a lease of one driver, by pool."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from drabridge.errors import ClusterError
from drabridge.kube.claim_hints import MOST_CLAIMS, ClaimHint
from drabridge.kube.json_reader import ClaimFields, Json, ObjectIdentity, ObjectView
from drabridge.offers.slices import lease_condition, lease_denied_condition


class WaitingClaim(Struct, frozen=True):
    """A claim, and the pools that it waits for; none if it waits for no lease."""

    uid: str
    pools: tuple[str, ...] = ()
    namespace: str = ""
    name: str = ""
    resource_version: str = ""
    allocated: str = ""  # time of the allocation, which also distinguishes it from the next one


def waiting_claim(obj: Json, driver: str) -> WaitingClaim:
    """Read a claim. Malformed data raises any exception."""
    metadata, status = obj["metadata"], obj.get("status") or {}
    uid, allocation = str(metadata["uid"]), status.get("allocation") or {}
    pools = tuple(_waits_for(allocation, status.get("devices") or (), driver))
    if not pools:
        return WaitingClaim(uid)
    return WaitingClaim(
        uid,
        tuple(sys.intern(pool) for pool in dict.fromkeys(pools)),
        sys.intern(str(metadata["namespace"])),
        str(metadata["name"]),
        str(metadata["resourceVersion"]),
        sys.intern(str(allocation.get("allocationTimestamp", ""))),
    )


def _waits_for(allocation: Json, devices: Any, driver: str) -> Iterator[str]:
    """Yield the pool of each device, also with admin access, that waits for a condition of its agent."""
    condition = lease_condition(driver)
    ends = {condition, lease_denied_condition(driver)}
    ended = {
        (entry.get("pool"), entry.get("device"), entry.get("shareID"))
        for entry in devices
        if entry.get("driver") == driver
        and any(one.get("type") in ends and one.get("status") == "True" for one in entry.get("conditions") or ())
    }
    for result in (allocation.get("devices") or {}).get("results") or ():
        if result.get("driver") != driver or condition not in (result.get("bindingConditions") or ()):
            continue
        if (result["pool"], result["device"], result.get("shareID")) not in ended:
            yield str(result["pool"])


class PendingClaims:
    """The claims that wait, by pool: a follower of :func:`drabridge.kube.watch.follow`."""

    def __init__(self, driver: str, changed: Callable[[str], None]) -> None:
        """Begin without a claim. ``changed`` is called with each pool whose claims changed."""
        self._changed = changed
        self._claims: dict[str, WaitingClaim] = {}
        self._pools: dict[str, set[str]] = {}  # pool -> UIDs of its claims
        self.complete = False  # whether all claims have been listed once
        self.lost_at: float | None = time.monotonic()  # since when claims are not followed; None while they are
        self.view = ObjectView(lambda obj: waiting_claim(obj, driver), ClaimFields)

    def __len__(self) -> int:
        return len(self._claims)

    @property
    def pools(self) -> frozenset[str]:
        """Return the pools that claims wait for."""
        return frozenset(self._pools)

    def hints(self, pool: str) -> tuple[ClaimHint, ...]:
        """Return the claims that wait for a pool, the oldest allocation first, ``MOST_CLAIMS`` at most."""
        claims = [self._claims[uid] for uid in self._pools.get(pool, ())]
        claims.sort(key=lambda one: (one.allocated, one.namespace, one.name))
        return tuple(ClaimHint(one.namespace, one.name, one.uid, one.resource_version) for one in claims[:MOST_CLAIMS])

    # The methods of kube.watch.Follower.

    def listed(self, objects: tuple[WaitingClaim, ...]) -> None:
        self.complete, self.lost_at = True, None
        waiting = {one.uid: one for one in objects if one.pools}
        for uid in self._claims.keys() - waiting.keys():
            self._forget(uid)
        for one in waiting.values():
            self._keep(one)

    def changed(self, kind: str, obj: WaitingClaim) -> None:
        if kind == "DELETED" or not obj.pools:
            self._forget(obj.uid)
        else:
            self._keep(obj)

    def unreadable(self, kind: str, identity: ObjectIdentity) -> None:
        """Give the claim no hint; the scheduler gives up in the end."""
        self._forget(str(identity.uid))

    def lost(self, error: ClusterError) -> None:
        if self.lost_at is None:
            self.lost_at = time.monotonic()

    def _keep(self, claim: WaitingClaim) -> None:
        before = self._claims.get(claim.uid)
        if before is not None and (before.pools, before.allocated) == (claim.pools, claim.allocated):
            return  # the claim waits as before, so agents are told nothing
        self._forget(claim.uid)
        self._claims[claim.uid] = claim
        for pool in claim.pools:
            self._pools.setdefault(pool, set()).add(claim.uid)
            self._changed(pool)

    def _forget(self, uid: str) -> None:
        if (before := self._claims.pop(uid, None)) is None:
            return
        for pool in before.pools:
            self._pools[pool].discard(uid)
            if not self._pools[pool]:
                del self._pools[pool]
            self._changed(pool)
