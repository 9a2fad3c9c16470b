"""The devices an exporter has seen, so that none vanishes when its holder lets go.

The device-plugin side has a list of capacity, but it leaves out devices that are unhealthy or whose plugin is gone; the
DRA side has no list at all. What was seen once is therefore remembered for the life of the process, as long as there
is room: the least recently seen go first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from podresources.model import DeviceKey


class KnownDevices:
    """A set of device keys that keeps at most ``limit``."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._seen: dict[DeviceKey, None] = {}  # insertion order is age

    def __iter__(self) -> Iterator[DeviceKey]:
        return iter(self._seen)

    def __len__(self) -> int:
        return len(self._seen)

    def see(self, keys: Iterable[DeviceKey]) -> int:
        """Note that these devices are there now. Returns how many had to be forgotten for them."""
        for key in keys:
            self._seen.pop(key, None)
            self._seen[key] = None
        excess = list(self._seen)[: max(len(self._seen) - self.limit, 0)]
        for key in excess:
            del self._seen[key]
        return len(excess)
