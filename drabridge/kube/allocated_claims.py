"""Find the claims of a cluster that have devices of one driver: an uninstall would leave them stuck."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from drabridge.kube.api import Cluster, resource_claims, resource_slices, served_version
from drabridge.kube.json_reader import ClaimFields, Json, ObjectView, fields, list_of
from drabridge.system.untrusted import cut

UNKNOWN = "?"


class ClaimInUse(Struct, frozen=True):
    """An allocated claim with devices of the driver.

    ``nodes`` and ``pods`` are for people; ``pods`` as ``ns/name``.
    """

    namespace: str
    name: str
    uid: str
    nodes: tuple[str, ...]
    devices: tuple[str, ...]
    pods: tuple[str, ...]


class Usage(Struct, frozen=True):
    """``claims``: those that have devices. ``offered``: node -> number of devices that slices offer to claims."""

    claims: tuple[ClaimInUse, ...]
    offered: Mapping[str, int]


_SliceFields = fields(spec=fields(nodeName=str, pool=fields(name=str), devices=list_of(fields())))


async def usage(cluster: Cluster, driver: str) -> Usage:
    """Ask the API server which claims of the cluster use the driver, and what it offers. Raises ClusterError."""
    version = await served_version(cluster)  # the fields that are read here are the same in every version
    if not version:
        return Usage((), {})
    slices = await cluster.list(
        resource_slices(version), field_selector=f"spec.driver={driver}", view=ObjectView(dict, _SliceFields)
    )
    node_of, offered = {}, Counter[str]()
    for one in slices.items:
        spec = one.get("spec") or {}
        pool, node = (spec.get("pool") or {}).get("name") or "", spec.get("nodeName") or ""
        if node:
            node_of[pool] = node
        offered[node or pool] += len(spec.get("devices") or ())
    offered[UNKNOWN] += len(slices.unreadable)  # each may offer devices
    view = ObjectView(lambda claim: in_use(claim, driver, node_of), ClaimFields)
    claims = await cluster.list(resource_claims(version), view=view)
    found = sorted(filter(None, claims.items), key=lambda one: (one.nodes, one.namespace, one.name))
    found += [
        ClaimInUse(  # an unreadable claim may have any device
            cut(one.namespace or UNKNOWN),
            cut(one.name or UNKNOWN),
            one.uid or "",
            (UNKNOWN,),
            ("devices that cannot be read",),
            (),
        )
        for one in claims.unreadable
    ]
    return Usage(tuple(found), dict(sorted((+offered).items())))


def in_use(claim: Json, driver: str, node_of: Mapping[str, str]) -> ClaimInUse | None:
    """Read a claim; None if it has no device of ``driver``. Malformed data raises any exception."""
    metadata, status = claim["metadata"], claim.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    ours = [result for result in results if result["driver"] == driver]
    if not ours:
        return None
    namespace = str(metadata.get("namespace", ""))
    users = [one for one in status.get("reservedFor") or () if one.get("resource") == "pods"]
    return ClaimInUse(
        namespace,
        str(metadata["name"]),
        str(metadata.get("uid", "")),
        tuple(dict.fromkeys(node_of.get(one["pool"], str(one["pool"])) for one in ours)),
        tuple(dict.fromkeys(str(one["device"]) for one in ours)),
        tuple(f"{namespace}/{one.get('name', UNKNOWN)}" for one in users),
    )
