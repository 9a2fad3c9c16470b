"""A server's part in a slice plan: stores what a plan writes, in canonical form, with the real server's refusals."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from drabridge.config.quantity import canonical, parse
from drabridge.offers.slice_writes import Verb, Write


class Refused(Exception):
    """What the real server would answer with 4xx."""


class SliceServer:
    """Slices by name. ``drops``: device fields whose gate is off."""

    def __init__(self, drops: Iterable[str] = ()) -> None:
        self.slices: dict[str, dict[str, Any]] = {}
        self.drops = tuple(drops)
        self._numbers = itertools.count(1)

    def apply(self, write: Write) -> Mapping[str, Any] | None:
        held = self.slices.get(write.name)
        if write.verb is Verb.DELETE:
            if held is None or held["metadata"]["uid"] != write.uid:
                raise Refused("precondition")
            del self.slices[write.name]
            return None
        assert write.body is not None
        body = copy.deepcopy(dict(write.body))
        if write.verb is Verb.CREATE:
            if held is not None:
                raise Refused("already exists")
            body["metadata"]["uid"] = f"uid-{next(self._numbers)}"
        elif held is None or held["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise Refused("conflict")
        elif any(held["spec"][key] != body["spec"][key] for key in ("driver", "nodeName")):
            raise Refused("immutable")
        body["metadata"]["resourceVersion"] = str(next(self._numbers))
        self._store(body["spec"])
        self.slices[write.name] = body
        return body

    def _store(self, spec: dict[str, Any]) -> None:
        devices = spec.get("devices", [])
        if len(devices) > 64:
            raise Refused("too many devices")
        if not devices:
            spec.pop("devices", None)
        for device in devices:
            for field in self.drops:
                device.pop(field, None)
            for taint in device.get("taints", ()):
                taint.setdefault("timeAdded", "2026-11-21T00:00:00Z")
            for capacity in device.get("capacity", {}).values():
                capacity["value"] = canonical(int(parse(capacity["value"])))
        if "sharedCounters" in spec and devices:
            raise Refused("devices and counters in one slice")

    def complete_pool(self) -> list[str]:
        """Device names of the pool as the allocator sees it; raises if it would not allocate from it."""
        generation = max(s["spec"]["pool"]["generation"] for s in self.slices.values())
        seen = [s for _, s in sorted(self.slices.items()) if s["spec"]["pool"]["generation"] == generation]
        if any(s["spec"]["pool"]["resourceSliceCount"] != len(seen) for s in seen):
            raise Refused("incomplete pool")
        return [device["name"] for s in seen for device in s["spec"].get("devices", ())]
