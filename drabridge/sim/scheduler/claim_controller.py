"""Make ResourceClaims from templates, reserve, release and delete them (the resourceclaim controller)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum

from drabridge.sim.apiserver.objects import Objects
from drabridge.sim.apiserver.status import JSON, ApiError
from drabridge.sim.releases import Release

FINALIZER = "resource.kubernetes.io/delete-protection"
POD_CLAIM_ANNOTATION = "resource.kubernetes.io/pod-claim-name"
EXTENDED_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
ENDED = ("Succeeded", "Failed")


class NotReadyError(Exception):
    """Something that the pod needs is missing: the pod is not queued, and no Event says so (recorded)."""


def ended(pod: JSON) -> bool:
    return pod.get("status", {}).get("phase") in ENDED


def pod_owner(pod: JSON, release: Release) -> JSON:
    """Return the owner reference of generated claims."""
    meta = pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
    return owner | ({"blockOwnerDeletion": True} if release.claims_block_owner else {})


def sync_templates(objects: Objects) -> None:
    """Create the missing claims of pods that name a template, and write their names into the pods' status."""
    for pod in objects.peek("pods"):
        if pod["metadata"].get("deletionTimestamp") or ended(pod):
            continue
        known = {one["name"] for one in pod.get("status", {}).get("resourceClaimStatuses", [])}
        for entry in pod["spec"].get("resourceClaims", []):
            template = entry.get("resourceClaimTemplateName")
            if template and entry["name"] not in known:
                _from_template(objects, pod, entry["name"], template)


def _from_template(objects: Objects, pod: JSON, pod_claim: str, template_name: str) -> None:
    meta = pod["metadata"]
    template = objects.find("resourceclaimtemplates", template_name, meta["namespace"])
    if template is None:
        return
    inner = template["spec"].get("metadata", {})
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "generateName": f"{meta['name']}-{pod_claim}-",
            "namespace": meta["namespace"],
            "annotations": {**inner.get("annotations", {}), POD_CLAIM_ANNOTATION: pod_claim},
            "ownerReferences": [pod_owner(pod, objects.release)],
            **({"labels": inner["labels"]} if inner.get("labels") else {}),
        },
        "spec": template["spec"]["spec"],
    }
    try:
        claim = objects.create(body)
    except ApiError:
        return  # its namespace is being deleted
    entry = {"name": pod_claim, "resourceClaimName": claim["metadata"]["name"]}

    def note(obj: JSON) -> None:
        obj["status"].setdefault("resourceClaimStatuses", []).append(entry)

    objects.modify("pods", meta["name"], note, namespace=meta["namespace"], subresource="status")


def of_pod(objects: Objects, pod: JSON) -> Sequence[JSON]:
    """Return the claims that a pod names, in its order.

    Raises NotReadyError for one that is missing or being deleted.
    """
    namespace = pod["metadata"]["namespace"]
    generated = {one["name"]: one.get("resourceClaimName") for one in pod["status"].get("resourceClaimStatuses", [])}
    found = []
    for entry in pod["spec"].get("resourceClaims", []):
        name = entry.get("resourceClaimName") or generated.get(entry["name"])
        if not name:
            why = f'resourceclaimtemplate "{entry.get("resourceClaimTemplateName")}" has produced no claim yet'
            raise NotReadyError(why)
        claim = objects.find("resourceclaims", name, namespace)
        if claim is None:
            raise NotReadyError(f'resourceclaim "{name}" not found')
        if claim["metadata"].get("deletionTimestamp"):
            raise NotReadyError(f'resourceclaim "{name}" is being deleted')
        if entry.get("resourceClaimTemplateName") and not _owned_by(claim, pod):
            raise NotReadyError(f"PodResourceClaim {entry['name']}: not owned by pod {pod['metadata']['name']}")
        found.append(claim)
    return found


def _owned_by(claim: JSON, pod: JSON) -> bool:
    return any(one["uid"] == pod["metadata"]["uid"] for one in claim["metadata"].get("ownerReferences", []))


def _modify(objects: Objects, claim: JSON, change: Callable[[JSON], object], subresource: str = "") -> None:
    meta = claim["metadata"]
    objects.modify("resourceclaims", meta["name"], change, namespace=meta["namespace"], subresource=subresource)


def reserve(objects: Objects, claim: JSON, pod: JSON, allocation: JSON | None) -> None:
    """Write ``allocation`` (None keeps the present one) and the pod's reservation, behind the finalizer."""
    if allocation is not None and FINALIZER not in claim["metadata"].get("finalizers", []):
        _modify(objects, claim, lambda obj: obj["metadata"].setdefault("finalizers", []).append(FINALIZER))
    consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}

    def write(obj: JSON) -> None:
        if allocation is not None:
            obj["status"]["allocation"] = allocation
        reserved = obj["status"].setdefault("reservedFor", [])
        if consumer["uid"] not in [one["uid"] for one in reserved]:
            reserved.append(consumer)

    _modify(objects, claim, write, "status")


def unreserve(objects: Objects, claim: JSON, pod_uid: str) -> None:
    """Take a pod's reservation back.

    The allocation stays until :func:`release` or the next scheduling attempt.
    """

    def write(obj: JSON) -> None:
        kept = [one for one in obj["status"].get("reservedFor", []) if one["uid"] != pod_uid]
        obj["status"]["reservedFor"] = kept

    _modify(objects, claim, write, "status")


def deallocate(objects: Objects, claim: JSON, *, for_another_try: bool = False) -> None:
    """Clear the allocation of a claim that nobody uses, then its finalizer.

    A claim that is being deleted is gone after that. The scheduler, ``for_another_try``, leaves the finalizer.
    """

    def clear(obj: JSON) -> None:
        obj["status"].pop("allocation", None)
        obj["status"].pop("reservedFor", None)

    def unprotect(obj: JSON) -> None:
        kept = [one for one in obj["metadata"].get("finalizers", []) if one != FINALIZER]
        obj["metadata"]["finalizers"] = kept

    _modify(objects, claim, clear, "status")
    if not for_another_try:
        _modify(objects, claim, unprotect)


def release(objects: Objects) -> None:
    """Drop reservations of pods that ended or are gone.

    Then deallocate what nobody reserves any more, and delete generated claims. Only the scheduler takes
    back an allocation whose binding failed, unless the claim is being deleted (``syncClaim`` of 1.36.3).
    """
    pods = {pod["metadata"]["uid"]: pod for pod in objects.peek("pods")}
    for claim in objects.peek("resourceclaims"):
        meta, status = claim["metadata"], claim.get("status", {})
        reserved = status.get("reservedFor", [])
        for_pods = [one["uid"] for one in reserved if one["resource"] == "pods"]
        gone = [uid for uid in for_pods if uid not in pods or ended(pods[uid])]
        for uid in gone:
            unreserve(objects, claim, uid)
        unused = len(gone) == len(reserved)
        if unused and ((gone and "allocation" in status) or (meta.get("deletionTimestamp") and meta.get("finalizers"))):
            deallocate(objects, claim)
        left = objects.find("resourceclaims", meta["name"], meta["namespace"])
        if left is not None and _generated_for_nobody(claim, pods) and not meta.get("deletionTimestamp"):
            objects.delete("resourceclaims", meta["name"], meta["namespace"])


def _generated_for_nobody(claim: JSON, pods: dict[str, JSON]) -> bool:
    owners = [one["uid"] for one in claim["metadata"].get("ownerReferences", []) if one.get("kind") == "Pod"]
    return bool(owners) and all(uid not in pods or ended(pods[uid]) for uid in owners)


# --- binding conditions (KEP-5007) ------------------------------------------------------------------------------------


class Readiness(StrEnum):
    """``READY`` is also the state of a claim without conditions."""

    READY = "ready"
    PENDING = "pending"
    FAILED = "failed"


def readiness(claim: JSON) -> Readiness:
    """Return whether a claim's devices are ready for the pod to be bound.

    One failure condition that is True fails. Every binding condition of every device must be True to be ready.
    """
    if binding_failure(claim):
        return Readiness.FAILED
    ready = all(set(result.get("bindingConditions", [])) <= now.keys() for result, now in _true_conditions(claim))
    return Readiness.READY if ready else Readiness.PENDING


def binding_failure(claim: JSON) -> str:
    """Say which claim's device has a failure condition that is True; "" where none has (observed on 1.36.2)."""
    for result, now in _true_conditions(claim):
        for kind in result.get("bindingFailureConditions", []):
            if kind in now:
                found = now[kind]
                name, reason, message = claim["metadata"]["name"], found.get("reason", ""), found.get("message", "")
                return f'device binding failed: claim={name}, reason={reason}, message="{message}"'
    return ""


def _true_conditions(claim: JSON) -> Iterator[tuple[JSON, dict[str, JSON]]]:
    """Yield each allocated device with its conditions that are True, by type."""
    status = claim.get("status", {})
    said = {
        (one["driver"], one["pool"], one["device"], one.get("shareID", "")): {
            condition["type"]: condition for condition in one.get("conditions", []) if condition["status"] == "True"
        }
        for one in status.get("devices", [])
    }
    for result in status.get("allocation", {}).get("devices", {}).get("results", []):
        yield result, said.get((result["driver"], result["pool"], result["device"], result.get("shareID", "")), {})
