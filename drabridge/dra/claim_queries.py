"""Ask the API server which claims of the cluster have devices."""

from __future__ import annotations

import logging
from typing import TypeVar

from msgspec import Struct

from drabridge.dra.lifecycle import ClaimSide
from drabridge.errors import ClusterError
from drabridge.kube.api import Listing, UnreachableError, resource_claims, served_version
from drabridge.kube.connection import ApiServer
from drabridge.kube.json_reader import ClaimFields, Json, ObjectView
from drabridge.ledger.entries import ClaimRef
from drabridge.ledger.events import ClaimDevices

T = TypeVar("T")
log = logging.getLogger(__name__)


class ClaimQueries(Struct, frozen=True):
    """LISTs of the cluster's claims, each for one question. Every call costs the API server a whole LIST.

    ``claims`` says which pool is this node's, and which version of resource.k8s.io is in use.
    """

    api_server: ApiServer
    driver: str
    node: str
    claims: ClaimSide

    @property
    def nobody_to_ask(self) -> bool:
        """Whether this agent talks to no API server at all."""
        return self.api_server.cluster is None

    async def allocated(self) -> tuple[ClaimDevices, ...] | None:
        """Return the claims allocated with devices of this node. None: the API server cannot be asked."""
        from drabridge.dra.allocation import allocation_here

        pool = self.claims.pool
        try:
            listed = await self._list(ObjectView(lambda claim: allocation_here(claim, self.driver, pool), ClaimFields))
            if listed.unreadable:  # the API allows a claim that we cannot read, and it may have any device
                raise UnreachableError(f"what claim {listed.unreadable[0]} is allocated cannot be read")
        except ClusterError as error:
            log.warning("who has devices by claims is not known", extra={"reason": str(error)})
            return None
        return tuple(allocation for allocation in listed.items if allocation is not None)

    async def allocated_by(self, driver: str) -> frozenset[str] | None:
        """Return the names of this node's devices of ``driver`` (ours or another one) that claims have.

        None: the API server cannot be asked.
        """
        from drabridge.dra.allocation import devices_on

        try:
            listed = await self._list(ObjectView(lambda claim: devices_on(claim, driver, self.node), ClaimFields))
        except ClusterError:
            return None
        return None if listed.unreadable else frozenset(name for names in listed.items for name in names)

    async def find(self, uid: str) -> ClaimRef | None:
        """Return the allocated claim with this UID; None where the API server shows none. Raises ClusterError."""
        from drabridge.dra.allocation import is_allocated

        def found(claim: Json) -> ClaimRef | None:
            metadata = claim.get("metadata") or {}
            if not is_allocated(ClaimRef(uid), claim):
                return None
            return ClaimRef(uid, str(metadata.get("namespace") or ""), str(metadata.get("name") or ""))

        listed = await self._list(ObjectView(found, ClaimFields))
        return next((claim for claim in listed.items if claim is not None), None)

    async def _list(self, view: ObjectView[T]) -> Listing[T]:
        """List every claim of the cluster; none where it serves no DRA. Raises ClusterError."""
        cluster = self.api_server.cluster
        if cluster is None:
            raise UnreachableError("there is no API server to talk to")
        version = self.claims.api_version or await served_version(cluster)
        return await cluster.list(resource_claims(version), view=view) if version else Listing((), "")
