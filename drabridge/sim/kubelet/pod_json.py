"""Read pods from Kubernetes' objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drabridge.sim.kubelet.pods import Container, ContainerClaim, PodClaim, PodSpec


def pod_from_manifest(manifest: Mapping[str, Any]) -> PodSpec:
    """Parse a Kubernetes Pod object, as far as a device cares.

    Raises KeyError or ValueError for what cannot be read.
    ``status.resourceClaimStatuses`` resolves claims from templates; ``status.extendedResourceClaimStatus`` is taken
    too.
    """
    metadata, spec, status = manifest["metadata"], manifest["spec"], manifest.get("status", {})
    resolved = {s["name"]: s["resourceClaimName"] for s in status.get("resourceClaimStatuses", [])}
    pod_claims = tuple(
        PodClaim(c["name"], resolved.get(c["name"]) or c["resourceClaimName"]) for c in spec.get("resourceClaims", [])
    )
    extended = status.get("extendedResourceClaimStatus", {})
    more = {"uid": metadata["uid"]} if metadata.get("uid") else {}
    return PodSpec(
        metadata.get("namespace", "default"),
        metadata["name"],
        **more,
        containers=tuple(map(_container, spec.get("containers", []))),
        init_containers=tuple(map(_container, spec.get("initContainers", []))),
        resource_claims=pod_claims,
        extended_claim=extended.get("resourceClaimName", ""),
        extended_requests=tuple(
            (one["containerName"], one["resourceName"], one["requestName"])
            for one in extended.get("requestMappings", [])
        ),
        restart_policy=spec.get("restartPolicy", "Always"),
    )


def _container(container: Mapping[str, Any]) -> Container:
    """Read a container. Limits with a domain are extended resources; ``runSeconds`` is our own key."""
    resources = container.get("resources", {})
    return Container(
        container["name"],
        {name: int(number) for name, number in resources.get("limits", {}).items() if "/" in name},
        tuple(ContainerClaim(c["name"], c.get("request", "")) for c in resources.get("claims", [])),
        container.get("restartPolicy", ""),
        container.get("runSeconds"),
    )
