"""Define what a coordinator tells an agent: a ConfigMap for each pool, with the names of claims that wait for a lease.

It is a hint and grants nothing: an agent reads each claim itself before it does anything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from msgspec import Struct

from drabridge.config.names import is_dns_subdomain
from drabridge.errors import PeerError
from drabridge.kube.api import Kind
from drabridge.kube.json_reader import Json, fields
from drabridge.system.untrusted import reading

CONFIG_MAPS = Kind("", "v1", "configmaps")
LEASES = Kind("coordination.k8s.io", "v1", "leases")
PREFIX = "drabridge-claims."  # the chart's policy lets the coordinator write no other ConfigMaps
VERSION = "1"
MOST_CLAIMS = 1000  # of one pool: about 400 KB with names of maximal length; etcd takes 1.5 MB
MOST_NAME = 253
LABEL = "drabridge/claims-of"  # on each ConfigMap; its value is the driver


class ClaimHint(Struct, frozen=True):
    """One claim that waits for a lease. ``resource_version`` differs each time that it begins to wait."""

    namespace: str
    name: str
    uid: str
    resource_version: str


def hints_name(driver: str, pool: str) -> str:
    """Return the name of a pool's ConfigMap. It has the driver's name: drivers may share a namespace."""
    name = f"{PREFIX}{_counted(driver)}.{pool}"
    if is_dns_subdomain(name, MOST_NAME):
        return name
    return f"{PREFIX}{_counted(driver)}.{hashlib.sha256(pool.encode('utf-8', 'replace')).hexdigest()[:40]}.hash"


def _counted(driver: str) -> str:
    """Begin with the number of labels: so ``a.b`` on the node ``c.n`` is another name than ``a.b.c`` on ``n``."""
    return f"{driver.count('.') + 1}.{driver}"


def is_of_before(driver: str, name: str) -> bool:
    """Whether a ConfigMap has its name from a coordinator up to 0.2.0, which no agent of now reads."""
    return name.startswith(f"{PREFIX}{driver}.") and not name.startswith(f"{PREFIX}{_counted(driver)}.")


def lock_name(driver: str) -> str:
    """Return the name of the Lease by which the coordinators of a driver elect their leader.

    Up to 0.2.0 it was another, as were the ConfigMaps': while one side is upgraded, agents find no leader and watch
    pods.
    """
    return f"drabridge-coordinator.{_counted(driver)}"


def hints_text(hints: Iterable[ClaimHint]) -> str:
    """Return the value of the ConfigMap's key ``claims``."""
    rows = [
        {"namespace": one.namespace, "name": one.name, "uid": one.uid, "resourceVersion": one.resource_version}
        for one in hints
    ]
    return json.dumps(rows, separators=(",", ":"))


def hints_object(driver: str, pool: str, text: str) -> Json:
    """Return a pool's ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": hints_name(driver, pool), "labels": {LABEL: driver}},
        "data": {"version": VERSION, "pool": pool, "claims": text},
    }


# What is read of a ConfigMap of hints.
HintsFields = fields(metadata=fields(name=str), data=fields(version=str, pool=str, claims=str))


def read_hints(obj: Json) -> tuple[ClaimHint, ...]:
    """Read a ConfigMap of hints, the first ``MOST_CLAIMS`` of them. Raises PeerError."""
    data = obj.get("data") or {}
    if (version := data.get("version")) != VERSION:
        raise PeerError(f"hints of version {version!r}, and this agent knows {VERSION}")
    with reading("the hints of a coordinator"):
        rows = json.loads(data.get("claims") or "[]")[:MOST_CLAIMS]
        return tuple(ClaimHint(*(str(row.get(key) or "") for key in _KEYS)) for row in rows)


_KEYS = ("namespace", "name", "uid", "resourceVersion")
