"""Read and write ResourceClaims at the API server, in the version that it serves."""

from __future__ import annotations

from collections.abc import Sequence

from drabridge.dra.claim_encoding import with_devices
from drabridge.kube.api import Cluster, InvalidError, UnreachableError, resource_claims
from drabridge.kube.json_reader import Json
from drabridge.kube.versions import NEWEST_RESOURCE_VERSION
from drabridge.ledger.entries import ClaimRef
from drabridge.system.untrusted import reading

ALLOCATION = "status.allocation: "  # the field that a refusal complains about, though nothing here changes it


class ClaimObjects:
    """The claims of the cluster, one at a time.

    ``version`` is the newest one until the server has said which versions it serves.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.version = NEWEST_RESOURCE_VERSION
        self.keeps_device_status: bool | None = None  # as the server's last answer showed; None: no answer yet

    async def get(self, claim: ClaimRef) -> Json:
        """Return the object of this name, whatever its UID. Raises NotFoundError or another ClusterError."""
        return await self._cluster.get(resource_claims(self.version), claim.name, namespace=claim.namespace)

    async def apply_devices(
        self, claim: ClaimRef, entries: Sequence[Json], *, manager: str, resource_version: str = ""
    ) -> None:
        """Apply ``status.devices`` as ``manager``; other entries that it applied are removed. Raises ClusterError.

        With ``resource_version`` it raises ConflictError if the claim has changed since. Claims that the server does
        not let anybody patch (:mod:`drabridge.dra.claim_encoding`) are read and written whole.
        """
        kind = resource_claims(self.version)
        metadata = {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid}
        if resource_version:
            metadata["resourceVersion"] = resource_version
        body = {
            "apiVersion": f"{kind.group}/{kind.version}",
            "kind": "ResourceClaim",
            # The UID makes the server refuse a claim of the same name that came after this one.
            "metadata": metadata,
            "status": {"devices": list(entries)},
        }
        try:
            answer = await self._cluster.apply(
                kind, body, manager=manager, namespace=claim.namespace, subresource="status"
            )
        except InvalidError as error:
            if ALLOCATION not in str(error):
                raise
            await self._cluster.rewrite(
                kind,
                claim.name,
                lambda data: with_devices(data, claim, entries, resource_version),
                manager=manager,
                namespace=claim.namespace,
                subresource="status",
            )
            return
        if entries:
            with reading(f"the answer to the status of claim {claim}", UnreachableError):
                self.keeps_device_status = bool((answer.get("status") or {}).get("devices"))
