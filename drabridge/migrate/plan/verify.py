"""Say of each workload whether it is on claims, after steps of a plan or of any other way. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from drabridge.migrate.report.model import Report, Workload

CLAIMS = "on claims"
DRA = "limits, served by DRA"
LIMITS = "on limits"
BACK = "fell back to limits"
PENDING = "pending"
IDLE = "no pods"


def verified(report: Report, done: Set[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return a row for each workload with devices, what fell back first.

    ``done``: (namespace, ``Deployment/chat``) of what steps of a plan have brought to claims. A workload fell back
    where it has pods with limits although its step is done, or beside others with claims.
    """
    rows = [
        {
            "namespace": one.namespace,
            "workload": f"{one.kind}/{one.name}",
            "resource": one.resource,
            "limits": one.pods.kubelet,
            "claims": one.pods.claims,
            "state": _state(one, (one.namespace, f"{one.kind}/{one.name}") in done),
        }
        for one in report.workloads
    ]
    return sorted(rows, key=lambda row: (row["state"] != BACK, row["namespace"], row["workload"], row["resource"]))


def _state(one: Workload, done: bool) -> str:
    pods = one.pods
    if pods.kubelet:
        return BACK if done or pods.claims else LIMITS
    if pods.claims:
        return CLAIMS
    if pods.dra:
        return DRA
    return PENDING if pods.pending else IDLE


def gone(done: Iterable[tuple[str, str]], rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield what steps have brought to claims and has no devices any more, or is gone."""
    there = {(row["namespace"], row["workload"]) for row in rows}
    yield from sorted(set(done) - there)
