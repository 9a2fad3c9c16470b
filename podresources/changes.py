"""Find what changed between snapshots, without believing every absence. Pure; times are passed in.

Assignments are believed at once. An absence is believed only when two complete snapshots in a row agree: kubelet shows
no claim of a container while it does not know one of them, and an empty node while it restarts. After a restart,
absences are not even counted until kubelet has had time to settle.
"""

from __future__ import annotations

from msgspec import Struct

from podresources.errors import KubeletUnavailable, PodResourcesError, SocketMissing
from podresources.model import Allocatable, AllocationKey, NodeSnapshot, PodAllocation, SocketIdentity

SETTLE_SECONDS = 30.0
"""After a restart kubelet first serves this API, then hears of its pods from the API server (seconds later), and device
plugins register again after up to 10 s (observed on 1.36.2); DRA drivers after about 3 s."""

ABSENCES_BELIEVED = 2
"""Consecutive complete snapshots without an allocation before it counts as released."""


class DeviceAssigned(Struct, frozen=True):
    """A container holds a device that it did not hold in the last snapshot."""

    allocation: PodAllocation


class DeviceReleased(Struct, frozen=True):
    """A container no longer holds the device.

    A pod re-created under its name with the same device is not seen.
    """

    allocation: PodAllocation


class CapacityChanged(Struct, frozen=True):
    """The healthy devices of a device-plugin resource changed.

    Never reported for DRA, which has no such list.
    """

    resource: str
    before: int
    after: int
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


Change = DeviceAssigned | DeviceReleased | CapacityChanged
Held = dict[AllocationKey, PodAllocation]


class ChangeTracker:
    """Turns complete snapshots into changes.

    ``held`` is what is believed to be held now. ``capacity`` maps each resource to its healthy device ids.
    Times are seconds of any monotonic clock.
    """

    def __init__(self, snapshot: NodeSnapshot, allocatable: Allocatable | None, settle_seconds: float = SETTLE_SECONDS):
        self.held: Held = {allocation.key: allocation for allocation in snapshot.allocations}
        self.capacity = _ids_by_resource(allocatable)
        self._settle_seconds = settle_seconds
        self._socket: SocketIdentity = snapshot.socket
        self._absences: dict[AllocationKey, int] = {}
        self._settled_at = float("-inf")

    def failed(self, error: PodResourcesError, now: float) -> None:
        """Note a failed poll: the count of absences starts again; after a lost connection, once kubelet has settled."""
        self._absences.clear()
        if isinstance(error, (KubeletUnavailable, SocketMissing)):
            self._settled_at = now + self._settle_seconds

    def step(self, snapshot: NodeSnapshot, allocatable: Allocatable | None, now: float) -> list[Change]:
        """Return what the next complete snapshot changes.

        ``allocatable`` is None if this kubelet does not serve it.
        """
        if snapshot.socket != self._socket:
            self._socket = snapshot.socket
            self._absences.clear()
            self._settled_at = now + self._settle_seconds
        settled = now >= self._settled_at
        seen = {allocation.key: allocation for allocation in snapshot.allocations}
        changes: list[Change] = [*self._released(seen, settled), *self._assigned(seen)]
        if allocatable is not None and allocatable.socket == snapshot.socket:  # else kubelet restarted in between
            changes += self._capacity_changes(_ids_by_resource(allocatable), settled)
        return changes

    def _assigned(self, seen: Held) -> list[DeviceAssigned]:
        found = [DeviceAssigned(allocation) for key, allocation in seen.items() if key not in self.held]
        self.held.update(seen)
        return found

    def _released(self, seen: Held, settled: bool) -> list[DeviceReleased]:
        if not settled:
            return []
        missing = [key for key in self.held if key not in seen]
        self._absences = {key: self._absences.get(key, 0) + 1 for key in missing}
        gone = [key for key in missing if self._absences[key] >= ABSENCES_BELIEVED]
        for key in gone:
            del self._absences[key]
        return [DeviceReleased(self.held.pop(key)) for key in gone]

    def _capacity_changes(self, now_healthy: dict[str, frozenset[str]], settled: bool) -> list[CapacityChanged]:
        """Compare capacities: growth is believed at once, shrinking only from a settled kubelet."""
        changes = []
        for resource in sorted(self.capacity.keys() | now_healthy.keys()):
            before = self.capacity.get(resource, frozenset())
            after = now_healthy.get(resource, frozenset())
            if before == after or (not settled and before - after):
                continue
            self.capacity[resource] = after
            added, removed = tuple(sorted(after - before)), tuple(sorted(before - after))
            changes.append(CapacityChanged(resource, len(before), len(after), added, removed))
        return changes


def _ids_by_resource(allocatable: Allocatable | None) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for device in allocatable.devices if allocatable else ():
        found.setdefault(device.resource, set()).add(device.device_id)
    return {resource: frozenset(ids) for resource, ids in found.items()}
