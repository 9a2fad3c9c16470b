"""Read and write pods as JSON.

For the control channel, and for a node's state between processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from drabridge.sim.kubelet.pods import (
    Container,
    ContainerClaim,
    ExtendedClaim,
    Phase,
    PodClaim,
    PodRecord,
    PodSpec,
    PodStatus,
    RequestMapping,
)


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
    extended = status.get("extendedResourceClaimStatus")
    more = {"uid": metadata["uid"]} if metadata.get("uid") else {}
    return PodSpec(
        metadata.get("namespace", "default"),
        metadata["name"],
        **more,
        containers=tuple(map(_container, spec.get("containers", []))),
        init_containers=tuple(map(_container, spec.get("initContainers", []))),
        resource_claims=pod_claims,
        extended_claim=_extended(extended) if extended else None,
        restart_policy=spec.get("restartPolicy", "Always"),
    )


def _container(container: Mapping[str, Any]) -> Container:
    """Extended resources are the limits with a domain; ``runSeconds`` is ours."""
    resources = container.get("resources", {})
    return Container(
        container["name"],
        {name: int(number) for name, number in resources.get("limits", {}).items() if "/" in name},
        tuple(ContainerClaim(c["name"], c.get("request", "")) for c in resources.get("claims", [])),
        container.get("restartPolicy", ""),
        container.get("runSeconds"),
    )


def _extended(status: Mapping[str, Any]) -> ExtendedClaim:
    mappings = status.get("requestMappings", [])
    return ExtendedClaim(
        status["resourceClaimName"],
        tuple(RequestMapping(m["containerName"], m["resourceName"], m["requestName"]) for m in mappings),
    )


def status_to_json(status: PodStatus) -> dict[str, Any]:
    return asdict(status) | {"completed": sorted(status.completed)}


def record_to_json(record: PodRecord) -> dict[str, Any]:
    """Everything of a record; read back by :func:`record_from_json`."""
    return {
        "spec": asdict(record.spec),
        "phase": record.phase,
        "reason": record.reason,
        "message": record.message,
        "running": sorted(record.running),
        "completed": sorted(record.completed),
        "restarts": record.restarts,
        "terminating": record.terminating,
        "ending": record.ending,
    }


def record_from_json(document: Mapping[str, Any]) -> PodRecord:
    """Raises KeyError or ValueError for a document that :func:`record_to_json` did not write."""
    spec = dict(document["spec"])
    spec["resource_claims"] = tuple(PodClaim(**claim) for claim in spec["resource_claims"])
    spec["cpu_ids"] = tuple(spec["cpu_ids"])
    for kind in ("containers", "init_containers"):
        spec[kind] = tuple(
            Container(**(c | {"claims": tuple(ContainerClaim(**claim) for claim in c["claims"])})) for c in spec[kind]
        )
    if (extended := spec["extended_claim"]) is not None:
        mappings = tuple(RequestMapping(**m) for m in extended["mappings"])
        spec["extended_claim"] = ExtendedClaim(extended["claim_name"], mappings)
    return PodRecord(
        PodSpec(**spec),
        Phase(document["phase"]),
        document["reason"],
        document["message"],
        set(document["running"]),
        set(document["completed"]),
        restarts=dict(document["restarts"]),
        terminating=document["terminating"],
        ending=document["ending"] and Phase(document["ending"]),
    )
