"""How long pods take from their creation to Running, as a watch shows it: for each API its median and p99."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from statistics import median

from drabridge.errors import ClusterError
from drabridge.kube.json_reader import Json, ObjectIdentity, ObjectView


class Starts:
    """Follows the pods of the load. The name of one with limits begins so; all others have claims."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}  # pod UID -> monotonic, until it runs
        self._seconds: dict[str, list[float]] = {}
        self._never: Counter[str] = Counter()  # ended before they ran, most of them because the load deleted them
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
            self._never[_api(metadata)] += self._seen.pop(metadata["uid"], None) is not None
        elif phase == "Running" and (began := self._seen.pop(metadata["uid"], None)) is not None:
            self._seconds.setdefault(_api(metadata), []).append(time.monotonic() - began)

    def unreadable(self, kind: str, identity: ObjectIdentity) -> None:
        """It is not timed."""

    def lost(self, error: ClusterError) -> None:
        """The next list forgets the pods that are on their way."""

    def lines(self) -> Iterator[str]:
        """A line for each API whose pods ran."""
        for name, seconds in sorted(self._seconds.items()):
            ordered = sorted(seconds)
            p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
            yield (
                f"create to Running, {name}: {len(ordered)} pods, median {median(ordered):.2f} s, p99 {p99:.2f} s, "
                f"fastest {ordered[0]:.2f} s, slowest {ordered[-1]:.2f} s; "
                f"{self._never[name]} ended before they ran"
            )


def _api(metadata: Json) -> str:
    return "limits" if str(metadata["name"]).startswith("limits-") else "claims"
