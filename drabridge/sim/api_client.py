"""What the simulated kubelet asks of an API server; any implementation will do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class ClusterApi(Protocol):
    """Two requests. Both raise drabridge.errors.ClusterError when the server cannot be asked or refuses."""

    async def get_claim(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """A ResourceClaim of ``resource.k8s.io/v1`` as its JSON object, or None if there is none."""

    async def delete_slices(self, node_name: str, driver: str | None) -> None:
        """DeleteCollection of ResourceSlices by ``spec.nodeName``, and by ``spec.driver`` unless it is None."""
