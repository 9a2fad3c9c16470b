"""How long pods take from their creation to Running, as a watch shows it: for each kind its median and p99."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

from drabridge.errors import ClusterError
from drabridge.kube.json_reader import Json, ObjectIdentity, ObjectView


class Starts:
    """Follows the pods of the load; their kind is the first word of their name."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}  # pod UID -> monotonic, until it runs
        self._seconds: dict[str, list[float]] = {}
        self.view: ObjectView[Json] = ObjectView(dict)

    # The methods of kube.watch.Follower.

    def listed(self, objects: tuple[Json, ...]) -> None:
        """Pods from before this watch began are not timed: nobody saw when they came."""
        self._seen.clear()

    def changed(self, kind: str, obj: Json) -> None:
        metadata, phase = obj["metadata"], obj.get("status", {}).get("phase")
        if kind == "ADDED":
            self._seen[metadata["uid"]] = time.monotonic()
        elif kind == "DELETED" or phase in ("Failed", "Succeeded"):
            self._seen.pop(metadata["uid"], None)
        elif phase == "Running" and (began := self._seen.pop(metadata["uid"], None)) is not None:
            name = str(metadata["name"]).partition("-")[0]
            self._seconds.setdefault(name, []).append(time.monotonic() - began)

    def unreadable(self, kind: str, identity: ObjectIdentity) -> None:
        """It is not timed."""

    def lost(self, error: ClusterError) -> None:
        """The next list forgets the pods that are on their way."""

    def lines(self) -> Iterator[str]:
        """A line for each kind that ran."""
        for name, seconds in sorted(self._seconds.items()):
            ordered = sorted(seconds)
            p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
            yield (
                f"create to Running, {name}: {len(ordered)} pods, median {median(ordered):.2f} s, p99 {p99:.2f} s, "
                f"fastest {ordered[0]:.2f} s, slowest {ordered[-1]:.2f} s"
            )
