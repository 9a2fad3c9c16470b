"""Filter allocations by globs on namespace, pod, resource and driver."""

from __future__ import annotations

from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace

from podresources.model import Allocatable, NodeSnapshot, PodAllocation


class Filters(Struct, frozen=True):
    """Each field is a set of globs of which one must match; an empty one matches everything.

    A device has a resource or a driver, never both, so naming both selects devices that match either.
    """

    namespaces: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()

    def of_pod(self, namespace: str, pod: str) -> bool:
        """Tell whether the pod is selected."""
        return _any(self.namespaces, namespace) and _any(self.pods, pod)

    def of_resource(self, resource: str) -> bool:
        """Tell whether a resource name, such as ``cpu`` or ``nvidia.com/gpu``, is selected."""
        return _any(self.resources, resource) if self.resources else not self.drivers

    def of_driver(self, driver: str) -> bool:
        """Tell whether a DRA driver is selected."""
        return _any(self.drivers, driver) if self.drivers else not self.resources

    @property
    def by_pod(self) -> bool:
        """Whether only some pods are selected."""
        return bool(self.namespaces or self.pods)

    def matches(self, allocation: PodAllocation) -> bool:
        """Tell whether the allocation is selected."""
        if not self.of_pod(allocation.namespace, allocation.pod):
            return False
        if allocation.resource is not None:
            return self.of_resource(allocation.resource)
        return self.of_driver(allocation.driver or "")

    def snapshot(self, whole: NodeSnapshot) -> NodeSnapshot:
        """Return the selected part of a snapshot.

        Pods keep all their containers; CPUs and memory go with ``of_resource``.
        """
        pods = tuple(pod for pod in whole.pods if self.of_pod(pod.namespace, pod.name))
        return replace(whole, pods=pods, allocations=tuple(filter(self.matches, whole.allocations)))

    def allocatable(self, whole: Allocatable) -> Allocatable:
        """Return the selected part of the capacity."""
        return replace(
            whole,
            devices=tuple(device for device in whole.devices if self.of_resource(device.resource)),
            cpu_ids=whole.cpu_ids if self.of_resource("cpu") else (),
            memory=tuple(block for block in whole.memory if self.of_resource(block.memory_type)),
        )


def _any(globs: tuple[str, ...], value: str) -> bool:
    return not globs or any(fnmatchcase(value, glob) for glob in globs)
