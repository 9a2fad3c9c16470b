"""Say which cluster an API server belongs to."""

from __future__ import annotations

from drabridge.errors import ClusterError
from drabridge.kube.api import Cluster, DeniedError, NotFoundError
from drabridge.migrate.report.reads import NAMESPACES

_EVERYWHERE = "kube-system"  # every cluster has it, and its UID is what others take for the cluster's, too


async def cluster_id(cluster: Cluster) -> str:
    """Return the UID of the namespace kube-system. Raises ClusterError."""
    try:
        return str((await cluster.get(NAMESPACES, _EVERYWHERE))["metadata"]["uid"])
    except (DeniedError, NotFoundError) as error:
        hint = f"A plan says by its UID which cluster it is for: allow `get` of namespace {_EVERYWHERE}"
        raise ClusterError(error.message, hint=hint) from error
