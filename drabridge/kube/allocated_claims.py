"""Find the claims of a cluster that have devices of one driver: what an uninstall would strand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from drabridge.kube.api import Cluster, resource_claims, resource_slices, served_version
from drabridge.kube.json_reader import ClaimFields, ObjectView
from drabridge.system.untrusted import UnreadableError, cut, reading

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

    def __str__(self) -> str:
        who = f", reserved for pod {', '.join(self.pods)}" if self.pods else ""
        return f"claim {self.namespace}/{self.name} has {', '.join(self.devices)} of {', '.join(self.nodes)}{who}"


class Usage(Struct, frozen=True):
    """``claims`` hold devices. ``offered``: node -> how many devices the scheduler may give to claims."""

    claims: tuple[ClaimInUse, ...]
    offered: Mapping[str, int]


async def usage(cluster: Cluster, driver: str) -> Usage:
    """Ask the API server what the driver is used for in the whole cluster. Raises ClusterError."""
    version = await served_version(cluster)  # all that is read here is the same in each
    if not version:
        return Usage((), {})
    slices = (await cluster.list(resource_slices(version), field_selector=f"spec.driver={driver}")).items
    claims = await cluster.list(resource_claims(version), view=ObjectView(dict, ClaimFields))
    unread = [_unread({"metadata": {"namespace": one.namespace, "name": one.name}}) for one in claims.unreadable]
    node_of = {pool: node for one in slices for pool, node in [_place(one)] if node}
    found = (*in_use(claims.items, driver, node_of), *filter(None, unread))
    return Usage(found, _offered(slices))


def in_use(claims: Iterable[Mapping[str, Any]], driver: str, node_of: Mapping[str, str]) -> list[ClaimInUse]:
    """Return those of ``claims`` with devices of ``driver``; one that cannot be read counts as such."""
    found = []
    for obj in claims:
        try:
            with reading("a ResourceClaim"):
                one = _in_use(obj, driver, node_of)
        except UnreadableError:
            one = _unread(obj)
        if one is not None:
            found.append(one)
    return sorted(found, key=lambda one: (one.nodes, one.namespace, one.name))


def _in_use(obj: Mapping[str, Any], driver: str, node_of: Mapping[str, str]) -> ClaimInUse | None:
    metadata, status = obj["metadata"], obj.get("status") or {}
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


def _unread(obj: Any) -> ClaimInUse | None:
    """Return an unreadable claim, which may have any device; None where it is no object at all."""
    metadata = obj.get("metadata") if isinstance(obj, Mapping) else None
    if not isinstance(metadata, Mapping):
        return None
    namespace, name = (cut(str(metadata.get(key, UNKNOWN))) for key in ("namespace", "name"))
    return ClaimInUse(namespace, name, str(metadata.get("uid", "")), (UNKNOWN,), ("devices that cannot be read",), ())


def _place(obj: Mapping[str, Any]) -> tuple[str, str]:
    """Return (pool, node) of a slice; empty for what cannot be read."""
    spec = obj.get("spec")
    pool = spec.get("pool") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(pool, Mapping):
        return "", ""
    return str(pool.get("name", "")), str(spec.get("nodeName") or "")


def _offered(slices: Iterable[Mapping[str, Any]]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for obj in slices:
        pool, node = _place(obj)
        devices = obj["spec"].get("devices") if pool else None
        if isinstance(devices, list) and devices:
            found[node or pool] = found.get(node or pool, 0) + len(devices)
    return dict(sorted(found.items()))
