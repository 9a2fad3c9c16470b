"""Binding conditions (KEP-5007): whether a claim's devices are ready for the pod to be bound."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

JSON = dict[str, Any]


class Readiness(StrEnum):
    """``READY`` also stands for a claim without conditions."""

    READY = "ready"
    PENDING = "pending"
    FAILED = "failed"


def readiness(claim: JSON) -> Readiness:
    """One failure condition that is True fails; every binding condition of every device must be True to be ready."""
    status = claim.get("status", {})
    true_ones = {
        (one["driver"], one["pool"], one["device"], one.get("shareID", "")): {
            condition["type"] for condition in one.get("conditions", []) if condition["status"] == "True"
        }
        for one in status.get("devices", [])
    }
    answer = Readiness.READY
    for result in status.get("allocation", {}).get("devices", {}).get("results", []):
        key = (result["driver"], result["pool"], result["device"], result.get("shareID", ""))
        now = true_ones.get(key, set())
        if now & set(result.get("bindingFailureConditions", [])):
            return Readiness.FAILED
        if not set(result.get("bindingConditions", [])) <= now:
            answer = Readiness.PENDING
    return answer
