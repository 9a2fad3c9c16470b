"""Carry out the verbs: what each does with a request.

No sockets here: the server sends what these return.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from drabridge.sim.apiserver import status
from drabridge.sim.apiserver.objects import Objects
from drabridge.sim.apiserver.request import APPLY_TYPES, MERGE_TYPE, Request
from drabridge.sim.apiserver.status import JSON, ApiError, bad_request, expired
from drabridge.sim.apiserver.store import Store

Answer = tuple[int, JSON]
_SUCCESS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
LISTS_KEPT = 100
"""At most so many lists that are not read to their end; the limit stands for the compaction of revisions."""


def not_allowed() -> ApiError:
    return ApiError(405, "the server does not allow this method on the requested resource", "MethodNotAllowed")


def get(objects: Objects, request: Request) -> Answer:
    return 200, request.shown(objects.get(request.resource, request.name, request.namespace))


def list_(objects: Objects, request: Request) -> Answer:
    """Items of a list carry no kind and apiVersion of their own (recorded)."""
    found, metadata = _page(objects.store, request)
    items = [
        {name: value for name, value in request.shown(obj).items() if name not in ("kind", "apiVersion")}
        for obj in found
    ]
    kind, version = f"{request.target.kind}List", request.target.group_version(request.version)
    return 200, {"kind": kind, "apiVersion": version, "metadata": metadata, "items": items}


def _page(store: Store, request: Request) -> tuple[Sequence[JSON], JSON]:
    """Return one page of a list, and the list's metadata. All pages are of one moment.

    Raises ApiError 400 for an invalid token, 410 for one that is too old.
    """
    token, limit = request.query.get("continue", ""), request.number("limit")
    if not token:
        revision, rest = store.revision, list(filter(request.wanted, store.listed(request.target)))
    elif token in store.unread:
        revision, rest = store.unread[token]
    elif not token.isdecimal():
        raise bad_request("invalid continue token: continue key is not valid: it is no number")
    else:
        raise expired("The provided continue parameter is too old to display a consistent list result.")
    metadata: JSON = {"resourceVersion": str(revision)}
    if limit and limit < len(rest):
        metadata["continue"] = str(secrets.randbits(64))
        store.unread[metadata["continue"]] = revision, rest[limit:]
        while len(store.unread) > LISTS_KEPT:
            del store.unread[next(iter(store.unread))]
    return rest[: limit or None], metadata


def create(objects: Objects, request: Request) -> Answer:
    if request.subresource == "eviction":
        conditions = (request.json().get("deleteOptions") or {}).get("preconditions") or {}
        objects.delete("pods", request.name, request.namespace, uid=conditions.get("uid", ""), by=request.writer)
        return 201, {**_SUCCESS, "code": 201}
    if request.name:
        raise not_allowed()
    return 201, request.shown(objects.create(request.object(), namespace=request.namespace, by=request.writer))


def update(objects: Objects, request: Request, body: JSON | None = None) -> Answer:
    """Replace the object by the request's, or by ``body``."""
    new = request.object() if body is None else body
    new["metadata"]["name"] = request.name
    done = objects.update(new, namespace=request.namespace, subresource=request.subresource, by=request.writer)
    return 200, request.shown(done)


def patch(objects: Objects, request: Request) -> Answer:
    if request.content_type in APPLY_TYPES:
        return _apply(objects, request)
    if request.content_type != MERGE_TYPE:
        text = "the body of the request was in an unknown format - accepted media types include: "
        raise ApiError(415, text + ", ".join([MERGE_TYPE, *APPLY_TYPES]), "UnsupportedMediaType")
    return update(objects, request, merge_patch(get(objects, request)[1], request.json()))


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: null deletes, objects merge, everything else (lists included) replaces."""
    if not isinstance(patch, dict):
        return patch
    out = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            out.pop(name, None)
        else:
            out[name] = merge_patch(out.get(name), value)
    return out


def _apply(objects: Objects, request: Request) -> Answer:
    if not request.query.get("fieldManager"):
        error = status.FieldError("fieldManager", "is required for apply patch")
        raise status.unprocessable("meta.k8s.io", "PatchOptions", "", [error])
    where = {"namespace": request.namespace, "subresource": request.subresource}
    done, new = objects.apply(request.resource, request.name, request.object(), **where, by=request.writer)
    return 201 if new else 200, request.shown(done)


def delete(objects: Objects, request: Request) -> Answer:
    """Delete one object, or what the selectors match; then the answer is the list as it was before (recorded)."""
    options = request.json()
    conditions, grace = options.get("preconditions") or {}, options.get("gracePeriodSeconds")
    if grace is None and "gracePeriodSeconds" in request.query:
        grace = request.number("gracePeriodSeconds")
    if not request.name:
        answer = list_(objects, request)
        for one in answer[1]["items"]:
            meta = one["metadata"]
            objects.delete(
                request.resource, meta["name"], meta.get("namespace", ""), grace_seconds=grace, by=request.writer
            )
        return answer
    gone = objects.delete(
        request.resource,
        request.name,
        request.namespace,
        uid=conditions.get("uid") or "",
        resource_version=conditions.get("resourceVersion") or "",
        grace_seconds=grace,
        by=request.writer,
    )
    if request.target.delete_returns_object:
        return 200, request.shown(gone)
    details = {"name": request.name} | ({"group": request.target.group} if request.target.group else {})
    details |= {"kind": request.resource, "uid": gone["metadata"]["uid"]}
    return 200, {**_SUCCESS, "details": details}


VERBS: Mapping[str, Callable[[Objects, Request], Answer]] = MappingProxyType(
    {
        "get": get,
        "list": list_,
        "create": create,
        "update": update,
        "patch": patch,
        "delete": delete,
        "deletecollection": delete,
    }
)
