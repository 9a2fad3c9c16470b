"""Extended resources: from a device plugin's count, or through DRA (KEP-5004).

A class serves one by its ``extendedResourceName``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from drabridge.sim.apiserver.quantity import Quantity
from drabridge.sim.apiserver.status import JSON
from drabridge.sim.apiserver.validation import is_extended_resource_name
from drabridge.sim.releases import Release
from drabridge.sim.scheduler.allocator import UnsatisfiableError
from drabridge.sim.scheduler.claim_controller import EXTENDED_ANNOTATION, ended, pod_owner


@dataclass(frozen=True, slots=True)
class Ask:
    """One container's number of one resource; ``request`` is the name its claim request would get."""

    container: str
    resource: str
    count: int
    request: str
    plain_init: bool


def asks(pod: JSON) -> list[Ask]:
    """Yield every extended resource of every container; a quantity of 0 does not count."""
    spec = pod["spec"]
    containers = [*spec.get("initContainers", []), *spec.get("containers", [])]
    found = []
    for index, container in enumerate(containers):
        is_init = index < len(spec.get("initContainers", []))
        plain = is_init and container.get("restartPolicy") != "Always"
        requests = container.get("resources", {}).get("requests", {})
        for number, name in enumerate(sorted(requests)):
            count = int(Quantity.parse(requests[name]).value)
            if is_extended_resource_name(name) and count:
                request = f"container-{index}-request-{number}"
                found.append(Ask(container["name"], name, count, request, plain))
    return found


def total(pod_asks: Iterable[Ask], resource: str) -> int:
    """Return what a pod needs of a resource at once: plain init containers run before the others, one at a time."""
    mine = [ask for ask in pod_asks if ask.resource == resource]
    running = sum(ask.count for ask in mine if not ask.plain_init)
    return max([running, *(ask.count for ask in mine if ask.plain_init)])


def class_for(resource: str, classes: Mapping[str, JSON]) -> str | None:
    """Return the class that serves a resource: the newest, then by name.

    The scheduler's ``extendedDeviceClass`` cache.
    """
    serving = [name for name, one in classes.items() if one["spec"].get("extendedResourceName") == resource]
    serving.sort()
    serving.sort(key=lambda name: str(classes[name]["metadata"]["creationTimestamp"]), reverse=True)
    return serving[0] if serving else None


def used_on(node: str, pods: Iterable[JSON], resource: str) -> int:
    """Return the scheduler's count for a node (``NodeInfo.Requested``).

    Pods that are served through DRA are in it as well.
    """
    return sum(
        total(wanted, resource)
        for pod in pods
        if pod["spec"].get("nodeName") == node and not ended(pod)
        if (wanted := [ask for ask in asks(pod) if ask.resource == resource])
    )


def split(
    pod: JSON,
    node: str,
    allocatable: Mapping[str, str],
    classes: Mapping[str, JSON],
    pods: Sequence[JSON],
    *,
    dra: bool,
) -> Mapping[str, str]:
    """Return the device classes of the resources that go through DRA on a node. Raises UnsatisfiableError.

    Per resource, never mixed: allocatable above 0 means device plugin, also when it is exhausted.
    """
    wanted = asks(pod)
    by_claim: dict[str, str] = {}
    for resource in sorted({ask.resource for ask in wanted}):
        count = int(Quantity.parse(allocatable.get(resource, "0")).value)
        device_class = class_for(resource, classes) if dra else None
        if count > 0 or device_class is None:
            if used_on(node, pods, resource) + total(wanted, resource) > count:
                raise UnsatisfiableError(f"Insufficient {resource}")
        else:
            by_claim[resource] = device_class
    return by_claim


def special_claim(pod: JSON, by_claim: Mapping[str, str], release: Release) -> tuple[JSON, list[JSON]]:
    """Return (the claim, ``requestMappings``) for the resources that go through DRA.

    Every container has a request of its own. Real plain init containers share those of later ones.
    """
    wanted = [ask for ask in asks(pod) if ask.resource in by_claim]
    requests = [
        {
            "name": ask.request,
            "exactly": {
                "deviceClassName": by_claim[ask.resource],
                "allocationMode": "ExactCount",
                "count": ask.count,
            },
        }
        for ask in wanted
    ]
    mappings = [
        {"containerName": ask.container, "resourceName": ask.resource, "requestName": ask.request} for ask in wanted
    ]
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "generateName": f"{pod['metadata']['name']}-extended-resources-",
            "namespace": pod["metadata"]["namespace"],
            "annotations": {EXTENDED_ANNOTATION: "true"},
            "ownerReferences": [pod_owner(pod, release)],
        },
        "spec": {"devices": {"requests": requests}},
    }
    return claim, mappings
