"""What really happens on the node: which container has which device, whatever anybody believes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

from drabridge.inventory.devices import device_id_of
from drabridge.ledger.entries import ClaimPhase, Lane, Ledger, Owner
from drabridge.offers.slices import lease_condition, lease_denied_condition
from drabridge.sim.apiserver.objects import Objects
from drabridge.sim.apiserver.store import Change
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Container, PodSpec
from drabridge.sim.kubelet.runtime import MemoryRuntime, RunOptions
from tests.glue.worlds import DRIVER, NODE

GIVEN = (ClaimPhase.GRANTED, ClaimPhase.PREPARED)
OF_ANOTHER_PLUGIN = "OF_ANOTHER_PLUGIN"
"""In the environment of a container whose devices another plugin gave."""
LEASE, DENIED = lease_condition(DRIVER), lease_denied_condition(DRIVER)
Use = tuple[str, str, str]  # device, "limits" or the claim's name, the pod's UID


class TrueRuntime(MemoryRuntime):
    """Starts every container, and writes down each device that then has two holders.

    Not written down is what the agent cannot prevent: kubelet itself gives one device to two pods with limits, and
    another plugin gives whatever it likes.
    """

    def __init__(self, roots: Mapping[str, str], shareable: bool = False) -> None:
        """``roots``: device -> the whole that it is a part of, or ""."""
        super().__init__()
        self.conflicts: list[str] = []
        self.shareable = shareable  # several claims may have one device
        self.starts = 0
        self.objects: Objects
        self._roots = roots
        self._uses: dict[tuple[str, str], list[Use]] = {}

    async def start_container(self, pod: PodSpec, container: Container, options: RunOptions) -> None:
        await super().start_container(pod, container, options)
        mine = [*self._of_limits(pod, options), *self._of_claims(pod, options)]
        self.starts += bool(mine)
        for other in [use for uses in self._uses.values() for use in uses]:
            for use in mine:
                if use[2] != other[2] and self._is_double(use, other):
                    self.conflicts.append(f"{use[0]} of {use[1]} of {pod.name} overlaps {other[0]} of {other[1]}")
        self._uses[pod.uid, container.name] = mine

    async def stop_container(self, pod_uid: str, container: str) -> None:
        await super().stop_container(pod_uid, container)
        self._uses.pop((pod_uid, container), None)

    def _of_limits(self, pod: PodSpec, options: RunOptions) -> Iterator[Use]:
        for _, unit in () if OF_ANOTHER_PLUGIN in options.envs else options.device_ids:
            yield device_id_of(unit), "limits", pod.uid

    def _of_claims(self, pod: PodSpec, options: RunOptions) -> Iterator[Use]:
        given = {device for _, _, device in options.dra_devices}
        for one in pod.resource_claims:
            claim = self.objects.find("resourceclaims", one.claim_name, pod.namespace) or {}
            results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
            for result in results:
                if result["device"] in given and not result.get("adminAccess"):
                    yield result["device"], one.claim_name, pod.uid

    def _is_double(self, one: Use, other: Use) -> bool:
        same, limits = one[0] == other[0], (one[1] == "limits") + (other[1] == "limits")
        if same and limits == 2:
            return False  # kubelet's own
        if same and limits == 0:
            return not self.shareable and one[1] != other[1]  # pods may share a claim
        return same or self._roots.get(one[0]) == other[0] or self._roots.get(other[0]) == one[0]


class Promises:
    """What the agent promises its peers, checked at each change: of the ledger, and of the API server's objects.

    - What a claim was granted, kubelet gives to nobody: it does not count it as healthy.
    - What pods may have is in no slice, unless as something to lease.
    - A claim is told of its lease while it is granted, and of a denial while no slice offers what it was denied.
    """

    def __init__(self, objects: Objects, kubelet: SimKubelet) -> None:
        self.broken: list[str] = []
        self.ledger = Ledger()  # of the agent that has it, as it was last
        self.theirs: Set[tuple[str, str]] = frozenset()  # units that another plugin offers as well
        self._objects = objects
        self._kubelet = kubelet
        objects.store.subscribe(self._written)

    def ledger_changed(self, ledger: Ledger, effects: object) -> None:
        """Take the ledger as the agent has it now."""
        self.ledger = ledger
        if not self._kubelet.is_running:
            return
        healthy = self._kubelet.process.manager.state.healthy
        for entry in ledger.entries.values():
            granted = [held.claim for held in entry.holders if held.phase in GIVEN]
            resource = entry.device.resource
            offered = (unit for unit in healthy.get(resource, ()) if (resource, unit) not in self.theirs)
            if granted and any(device_id_of(unit) == entry.device.id for unit in offered):
                self._note(f"kubelet may give {entry.name} away, which claim {granted[0].name} was granted")

    def _written(self, change: Change) -> None:
        if change.resource.plural != "resourceclaims" or change.type != "MODIFIED":
            return
        for device in _allocated(change.object) - _allocated(change.previous or {}):
            entry = self.ledger.entries.get(device)
            if entry is not None and (entry.owner, entry.lane, entry.move) == (Owner.NONE, Lane.LEGACY, None):
                self._note(f"{device} is for pods, and a slice offered it to claim {change.object['metadata']['name']}")
        before, after = _told(change.previous or {}), _told(change.object)
        for device in after[LEASE] - before[LEASE] - _admin(change.object):
            entry = self.ledger.entries.get(device)
            held = entry.claim(change.object["metadata"]["uid"]) if entry is not None else None
            if held is None or held.phase not in GIVEN:
                self._note(f"claim {change.object['metadata']['name']} was told that it has {device}: it has not")
        for device in after[DENIED] - before[DENIED] - _admin(change.object):
            if device in self._offered():
                self._note(f"claim {change.object['metadata']['name']} was denied {device}, which is still offered")

    def _offered(self) -> set[str]:
        slices = self._objects.peek("resourceslices", fields=f"spec.nodeName={NODE}")
        return {one["name"] for part in slices for one in part["spec"].get("devices") or () if not one.get("taints")}

    def _note(self, words: str) -> None:
        if words not in self.broken:
            self.broken.append(words)


def _told(claim: Mapping[str, Any]) -> dict[str, set[str]]:
    """The devices whose conditions are true, by condition."""
    found: dict[str, set[str]] = {LEASE: set(), DENIED: set()}
    for one in claim.get("status", {}).get("devices", ()):
        for condition in one.get("conditions", ()):
            if condition["status"] == "True" and condition["type"] in found and one["pool"] == NODE:
                found[condition["type"]].add(one["device"])
    return found


def _allocated(claim: Mapping[str, Any]) -> set[str]:
    """The devices that a claim holds here without a lease."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    mine = (one for one in results if one["pool"] == NODE and not one.get("adminAccess"))
    return {one["device"] for one in mine if not one.get("bindingConditions")}


def _admin(claim: Mapping[str, Any]) -> set[str]:
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    holds = {one["device"] for one in results if not one.get("adminAccess")}
    return {one["device"] for one in results} - holds
