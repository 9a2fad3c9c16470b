"""Decide whether a pod may run: texts of a rejection, and the predicate on extended resources.

No sockets here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from drabridge.sim.kubelet.pods import PodSpec


class RejectedError(Exception):
    """A pod is refused for good; ``reason`` and the message are what its status and its event carry."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def allocate_failed(error: Exception) -> RejectedError:
    """Return the rejection that an error of Allocate becomes (cm/admission/errors.go, GetPodAdmitResult); observed."""
    return RejectedError("UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected")


def status_message(message: str) -> str:
    """Return a rejected pod's ``status.message``; the Event has the bare text (kubelet.go, rejectPod; observed)."""
    return f"Pod was rejected: {message}"


def pod_requests(pod: PodSpec) -> dict[str, int]:
    """Return a pod's requests for extended resources, without those that a claim serves (lifecycle/predicate.go).

    Sidecars and containers are added up. Plain init containers run before them, so they only raise the maximum.
    """
    total: dict[str, int] = {}
    largest_init: dict[str, int] = {}
    for container in pod.init_containers:
        for resource, number in _own_limits(pod, container.name).items():
            if container.is_sidecar:
                total[resource] = total.get(resource, 0) + number
            else:
                needed = total.get(resource, 0) + number
                largest_init[resource] = max(largest_init.get(resource, 0), needed)
    for container in pod.containers:
        for resource, number in _own_limits(pod, container.name).items():
            total[resource] = total.get(resource, 0) + number
    return {r: max(total.get(r, 0), largest_init.get(r, 0)) for r in total.keys() | largest_init.keys()}


def _own_limits(pod: PodSpec, container: str) -> dict[str, int]:
    limits = pod.container(container).limits
    return {resource: n for resource, n in limits.items() if not pod.served_by_claim(container, resource)}


def check_node_fits(
    pod: PodSpec, others: Iterable[PodSpec], allocatable: Mapping[str, int], held: Mapping[str, int]
) -> None:
    """Check the predicate that follows allocation. Raises RejectedError ``OutOf<resource>``.

    ``allocatable`` is the kubelet's cached Node; ``held`` is how many devices are allocated, which raises it where the
    Node lags behind (manager.go, sanitizeNodeAllocatable). A resource the Node does not name at all is ignored: the
    container then starts without the device (predicate.go, removeMissingExtendedResources).
    """
    used: dict[str, int] = {}
    for other in others:
        for resource, number in pod_requests(other).items():
            used[resource] = used.get(resource, 0) + number
    limits = dict(allocatable) | {r: max(n, allocatable.get(r, 0)) for r, n in held.items() if n}
    for resource, number in sorted(pod_requests(pod).items()):
        if resource in limits and number + used.get(resource, 0) > limits[resource]:
            raise RejectedError(
                f"OutOf{resource}",
                f"Node didn't have enough resource: {resource}, requested: {number}, "
                f"used: {used.get(resource, 0)}, capacity: {limits[resource]}",
            )
