"""What a write may change and what it keeps: sections, metadata, ownership times.

Pure functions over JSON.
"""

from __future__ import annotations

from typing import Any

from drabridge.sim.apiserver.kinds import BY_KIND, Resource
from drabridge.sim.apiserver.status import JSON, bad_request, clone


def resource_of(body: JSON) -> Resource:
    kind = body.get("kind", "")
    if kind not in BY_KIND:
        raise bad_request(f'no kind "{kind}" is registered for version "{body.get("apiVersion", "")}"')
    return BY_KIND[kind]


def precondition_text(field: str, given: str, stored: str, what_happened: str) -> str:
    """Why a delete with preconditions is refused."""
    return (
        f"the {field} in the precondition ({given}) does not match the {field} in record ({stored}). "
        f"The object might have been {what_happened}"
    )


def grace_period(pod: JSON, asked: int | None) -> int:
    """Seconds until a pod may be removed: none before it has a node, or once it has ended."""
    if not pod.get("spec", {}).get("nodeName") or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    return int(pod["spec"].get("terminationGracePeriodSeconds", 30)) if asked is None else asked


def bare(obj: JSON) -> JSON:
    """The object without what a write changes by itself."""
    meta = {name: value for name, value in obj["metadata"].items() if name not in ("managedFields", "resourceVersion")}
    return {**obj, "metadata": meta}


def sections(resource: Resource, old: JSON, body: JSON, subresource: str) -> JSON:
    """Return which top-level parts a write may change.

    Through /status it is the status alone, otherwise everything but the status.
    """
    if subresource == "status":
        return {**clone(old), "status": body.get("status", {})}
    if resource.has_status:
        kept = {"status": clone(old["status"])} if "status" in old else {}
        return {name: value for name, value in body.items() if name != "status"} | kept
    return dict(body)


def kept_metadata(old: JSON, new: JSON, *, frozen: bool) -> JSON:
    """Return the metadata after a write.

    Identity is the server's. Through /status of DRA kinds nothing of it changes.
    """
    mine = (
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "resourceVersion",
    )
    if frozen:
        return {**old}
    meta = {name: value for name, value in new.items() if name not in (*mine, "managedFields")}
    meta |= {name: old[name] for name in (*mine, "name", "namespace", "generateName") if name in old}
    return meta


def applicable(resource: Resource, config: JSON, subresource: str) -> JSON:
    """Return the part of an applied configuration that the endpoint owns.

    The rest is reset, as ``GetResetFields`` does.
    """
    if subresource == "status":
        return {"status": config.get("status", {})}
    kept = {name: value for name, value in config.items() if not (name == "status" and resource.has_status)}
    meta = {name: value for name, value in config.get("metadata", {}).items() if name != "resourceVersion"}
    return {**kept, "metadata": meta}


def settled(entries: list[JSON], old: JSON, *, unchanged: bool) -> list[JSON]:
    """Entries whose fields did not change keep their time while the object did not change."""
    before: dict[tuple[Any, ...], JSON] = {_identity(one): one for one in old["metadata"].get("managedFields", [])}
    out = []
    for entry in entries:
        previous = before.get(_identity(entry))
        same = previous is not None and previous["fieldsV1"] == entry["fieldsV1"]
        out.append(previous if same and unchanged and previous is not None else entry)
    return out


def _identity(entry: JSON) -> tuple[Any, ...]:
    return entry["manager"], entry["operation"], entry["apiVersion"], entry.get("subresource", "")


def counted_spec(resource: Resource, obj: JSON) -> JSON:
    """Return the part of the spec whose changes count as generations.

    Binding a pod to a node does not count (recorded).
    """
    spec: JSON = obj.get("spec", {})
    return {name: value for name, value in spec.items() if not (resource.plural == "pods" and name == "nodeName")}
