"""Events that the simulated control plane posts about objects."""

from __future__ import annotations

from typing import Any

from drabridge.sim.api.objects import Objects, timestamp

JSON = dict[str, Any]


def post(objects: Objects, kind: str, obj: JSON, reason: str, message: str, severity: str = "Warning") -> None:
    """Create an Event, or count it up when the last one about this object says the same."""
    meta = obj["metadata"]
    namespace, now = meta.get("namespace", "default"), timestamp()
    fields = f"involvedObject.uid={meta['uid']},reason={reason}"
    for known in objects.peek("events", namespace, fields=fields):
        if known["message"] == message:

            def again(event: JSON) -> None:
                event["count"] += 1
                event["lastTimestamp"] = now

            objects.modify("events", known["metadata"]["name"], again, namespace=namespace)
            return
    involved = {"kind": kind, "name": meta["name"], "uid": meta["uid"]}
    involved |= {"namespace": meta["namespace"]} if "namespace" in meta else {}
    objects.create(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{meta['name']}.", "namespace": namespace},
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
