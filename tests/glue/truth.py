"""What really happens on the node: which container has which device, whatever anybody believes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from drabridge.inventory.model import device_id_of
from drabridge.sim.apiserver.objects import Objects
from drabridge.sim.kubelet.pods import Container, PodSpec
from drabridge.sim.kubelet.runtime import MemoryRuntime, RunOptions

Use = tuple[str, str, str]  # device, "limits" or the claim's name, the pod's UID


class TrueRuntime(MemoryRuntime):
    """Starts every container, and writes down each device that then has two holders.

    Not written down is what the agent cannot prevent: kubelet itself gives one device to two pods with limits.
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
        for _, unit in options.device_ids:
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
