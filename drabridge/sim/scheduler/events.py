"""Events that the simulated control plane posts about objects."""

from __future__ import annotations

import hashlib

from drabridge.sim.apiserver.kinds import BY_PLURAL
from drabridge.sim.apiserver.objects import Objects, timestamp
from drabridge.sim.apiserver.status import JSON

KEPT = 1000
"""Events in the store; the oldest go first. Stands for their one hour to live (apiserver ``--event-ttl``)."""


def post(objects: Objects, kind: str, obj: JSON, reason: str, message: str, severity: str = "Warning") -> None:
    """Create an Event, or count it up when the same was said about this object before."""
    meta = obj["metadata"]
    namespace, now = meta.get("namespace", "default"), timestamp()
    digest = hashlib.sha256("\0".join((meta["uid"], reason, message)).encode()).hexdigest()[:16]
    name = f"{meta['name']}.{digest}"
    if objects.find("events", name, namespace) is not None:

        def again(event: JSON) -> None:
            event["count"] += 1
            event["lastTimestamp"] = now

        objects.modify("events", name, again, namespace=namespace)
        return
    if objects.store.count(BY_PLURAL["events"]) >= KEPT:
        oldest = objects.store.oldest(BY_PLURAL["events"])["metadata"]
        objects.delete("events", oldest["name"], oldest["namespace"])
    involved = {"kind": kind, "name": meta["name"], "uid": meta["uid"]}
    involved |= {"namespace": meta["namespace"]} if "namespace" in meta else {}
    objects.create(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": involved,
            "reason": reason,
            "message": message,
            "type": severity,
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "reportingComponent": "drabridge-sim",
        }
    )
