"""Carry out the verbs: what each does with a parsed request.

No sockets here: the server sends what these return.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import yaml

from drabridge.sim.apiserver import paging, selectors, status
from drabridge.sim.apiserver.auth import User
from drabridge.sim.apiserver.convert import to_version
from drabridge.sim.apiserver.http import HttpRequest
from drabridge.sim.apiserver.kinds import BY_PLURAL, Resource, Served
from drabridge.sim.apiserver.objects import Objects, Writer
from drabridge.sim.apiserver.selectors import Predicate
from drabridge.sim.apiserver.status import JSON, ApiError, bad_request

_NAMED_VERBS = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "POST": "create"}
_LIST_VERBS = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about."""

    resource: Resource
    version: str
    namespace: str = ""
    """Empty for cluster-scoped objects and for lists over all namespaces."""
    name: str = ""
    subresource: str = ""
    selectable: tuple[str, ...] = ()
    """Field selectors beside metadata.name and metadata.namespace."""
    shows_empty_devices: bool = False

    def shown(self, obj: JSON) -> JSON:
        """Return a stored object as the request's version has it."""
        shown = to_version(self.resource, obj, self.version)
        if self.shows_empty_devices and self.resource.plural == "resourceslices":
            shown["spec"] = {"devices": None, **shown["spec"]}
        return shown

    def verb(self, method: str, *, watch: bool) -> str:
        """Return the verb that RBAC would be asked about; empty when the method does not exist here."""
        if self.name:
            return _NAMED_VERBS.get(method, "")
        verb = _LIST_VERBS.get(method, "")
        return "watch" if verb == "list" and watch else verb


def parse_path(path: str, served: Served) -> Target | None:
    """Parse a URL's path into what it addresses; None when nothing is served there."""
    match [part for part in path.split("/") if part]:
        case ["api", "v1", *rest]:
            group, version = "", "v1"
        case ["apis", group, version, *rest]:
            pass
        case _:
            return None
    namespace = ""
    match rest:
        case ["namespaces", inside, plural, *after] if plural not in ("status", "finalize"):
            namespace = inside
        case [plural, *after]:
            pass
        case _:
            return None
    resource = BY_PLURAL.get(plural)
    if resource is None or resource.group != group or version not in served.versions(resource):
        return None
    if (namespace and not resource.namespaced) or len(after) > 2:
        return None
    name, subresource = (*after, "", "")[:2]
    if subresource and subresource not in resource.subresources:
        return None
    if name and resource.namespaced and not namespace:
        return None
    return Target(
        resource, version, namespace, name, subresource, served.selectable(resource), served.release.shows_empty_devices
    )


MERGE_TYPE = "application/merge-patch+json"
APPLY_TYPES = ("application/apply-patch+yaml", "application/apply-patch+json")


@dataclass(frozen=True, slots=True)
class Call:
    """One authenticated request for an object or a list."""

    http: HttpRequest
    target: Target
    user: User
    query: Mapping[str, str]

    @property
    def content_type(self) -> str:
        return self.http.headers.get("content-type", "application/json").split(";")[0].strip()

    @property
    def writer(self) -> Writer:
        agent = self.http.headers.get("user-agent", "").split("/")[0] or "unknown"
        return Writer(
            self.user,
            self.query.get("fieldManager") or agent,
            self.target.version,
            strict=self.query.get("fieldValidation", "") == "Strict",
            force=self.query.get("force", "").lower() in ("true", "1"),
            dry_run=self.query.get("dryRun", "") == "All",
        )

    def body(self) -> Any:
        """Return the body as JSON (YAML for apply). Raises ApiError 400."""
        try:
            if self.content_type in ("application/yaml", *APPLY_TYPES):
                return yaml.safe_load(self.http.body)
            return json.loads(self.http.body or b"{}")
        except (ValueError, yaml.YAMLError) as error:
            raise bad_request(f"the object provided is unrecognized: {error}") from error

    def object(self) -> JSON:
        """Return the body as an object of the addressed kind and version."""
        resource, body = self.target.resource, self.body()
        if not isinstance(body, dict):
            raise bad_request("the body of the request must be an object")
        group = f"{resource.group}/" if resource.group else ""
        wanted = f"{group}{self.target.version}"
        given, kind = body.setdefault("apiVersion", wanted), body.setdefault("kind", resource.kind)
        if kind != resource.kind:
            version = str(given).rpartition("/")[2]
            raise bad_request(
                f'{kind} in version "{version}" cannot be handled as a {resource.kind}: converting ({version}.{kind}) '
                f"to ({resource.group.partition('.')[0] or 'core'}.{resource.kind}): unknown conversion"
            )
        if given != wanted:
            raise bad_request(
                f"the API version in the data ({given}) does not match the expected API version ({wanted})"
            )
        name = body.setdefault("metadata", {}).get("name", self.target.name)
        if self.target.name and name != self.target.name:
            raise bad_request(
                f"the name of the object ({name}) does not match the name on the URL ({self.target.name})"
            )
        return body

    def wanted(self) -> Predicate:
        """Return the request's selectors. Raises ApiError 400."""
        resource = self.target.resource
        what = f" for {resource.group}/{self.target.version}, Kind={resource.kind}" if resource.group else ""
        fields = selectors.field_predicate(self.query.get("fieldSelector", ""), self.target.selectable, what)
        return selectors.both(fields, selectors.label_predicate(self.query.get("labelSelector", "")))

    def shown(self, obj: JSON) -> JSON:
        return self.target.shown(obj)


Answer = tuple[int, JSON]


def get(objects: Objects, call: Call) -> Answer:
    target = call.target
    return 200, call.shown(objects.get(target.resource.plural, target.name, target.namespace))


def list_(objects: Objects, call: Call) -> Answer:
    page = _page(objects, call)
    return 200, _as_list(call, page)


def _page(objects: Objects, call: Call) -> paging.Page:
    query = call.query
    return paging.list_page(
        objects.store,
        call.target.resource,
        call.target.namespace,
        call.wanted(),
        limit=number(query, "limit"),
        token=query.get("continue", ""),
    )


def _as_list(call: Call, page: paging.Page) -> JSON:
    """Items of a list carry no kind and apiVersion of their own (recorded)."""
    items = [
        {name: value for name, value in call.shown(obj).items() if name not in ("kind", "apiVersion")}
        for obj in page.items
    ]
    group = f"{call.target.resource.group}/" if call.target.resource.group else ""
    kind = f"{call.target.resource.kind}List"
    return {"kind": kind, "apiVersion": f"{group}{call.target.version}", "metadata": page.metadata, "items": items}


def create(objects: Objects, call: Call) -> Answer:
    target = call.target
    if target.subresource == "eviction":
        conditions = (call.body().get("deleteOptions") or {}).get("preconditions") or {}
        objects.delete("pods", target.name, target.namespace, uid=conditions.get("uid", ""), by=call.writer)
        return 201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
    if target.name:
        raise ApiError(405, "the server does not allow this method on the requested resource", "MethodNotAllowed")
    created = objects.create(call.object(), namespace=target.namespace, by=call.writer)
    return 201, call.shown(created)


def update(objects: Objects, call: Call) -> Answer:
    target, body = call.target, call.object()
    body["metadata"]["name"] = target.name
    done = objects.update(body, namespace=target.namespace, subresource=target.subresource, by=call.writer)
    return 200, call.shown(done)


def patch_(objects: Objects, call: Call) -> Answer:
    target = call.target
    if call.content_type in APPLY_TYPES:
        return _apply(objects, call)
    if call.content_type != MERGE_TYPE:
        text = "the body of the request was in an unknown format - accepted media types include: "
        raise ApiError(415, text + ", ".join([MERGE_TYPE, *APPLY_TYPES]), "UnsupportedMediaType")
    shown = call.shown(objects.get(target.resource.plural, target.name, target.namespace))
    body = merge_patch(shown, call.body())
    done = objects.update(body, namespace=target.namespace, subresource=target.subresource, by=call.writer)
    return 200, call.shown(done)


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: null deletes, objects merge, everything else (lists included) replaces."""
    if not isinstance(patch, dict):
        return status.clone(patch)
    out = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            out.pop(name, None)
        else:
            out[name] = merge_patch(out.get(name), value)
    return out


def _apply(objects: Objects, call: Call) -> Answer:
    target = call.target
    if not call.query.get("fieldManager"):
        error = status.FieldError("fieldManager", "is required for apply patch")
        raise status.unprocessable("meta.k8s.io", "PatchOptions", "", [error])
    done, new = objects.apply(
        target.resource.plural,
        target.name,
        call.object(),
        namespace=target.namespace,
        subresource=target.subresource,
        by=call.writer,
    )
    return 201 if new else 200, call.shown(done)


def delete(objects: Objects, call: Call) -> Answer:
    target = call.target
    gone = objects.delete(
        target.resource.plural, target.name, target.namespace, by=call.writer, **_delete_options(call)
    )
    if target.resource.delete_returns_object:
        return 200, call.shown(gone)
    details = {"name": target.name} | ({"group": target.resource.group} if target.resource.group else {})
    details |= {"kind": target.resource.plural, "uid": gone["metadata"]["uid"]}
    return 200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _delete_options(call: Call) -> dict[str, Any]:
    body = call.body() if call.http.body else {}
    given = body.get("preconditions") or {}
    grace = body.get("gracePeriodSeconds")
    if grace is None and call.query.get("gracePeriodSeconds"):
        grace = number(call.query, "gracePeriodSeconds")
    return {
        "uid": given.get("uid") or "",
        "resource_version": given.get("resourceVersion") or "",
        "grace_seconds": grace,
    }


def deletecollection(objects: Objects, call: Call) -> Answer:
    """Delete what the selectors match, and answer with the list as it was before (recorded)."""
    page = _page(objects, call)
    options = {"grace_seconds": _delete_options(call)["grace_seconds"]}
    for obj in page.items:
        meta = obj["metadata"]
        objects.delete(call.target.resource.plural, meta["name"], meta.get("namespace", ""), by=call.writer, **options)
    return 200, _as_list(call, page)


def number(query: Mapping[str, str], name: str) -> int:
    """Return a parameter that counts something, 0 when it is absent. Raises ApiError 400."""
    text = query.get(name, "") or "0"
    if not text.isdecimal():
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text)


VERBS: Mapping[str, Callable[[Objects, Call], Answer]] = MappingProxyType(
    {
        "get": get,
        "list": list_,
        "create": create,
        "update": update,
        "patch": patch_,
        "delete": delete,
        "deletecollection": deletecollection,
    }
)
