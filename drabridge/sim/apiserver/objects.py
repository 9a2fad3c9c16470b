"""Create, update, apply and delete objects.

Each goes through defaults, gates, validation and ownership.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from drabridge.sim.apiserver import admission, status
from drabridge.sim.apiserver.apply import Manager, after_update, apply, managers_of, owners, write_managers
from drabridge.sim.apiserver.auth import SYSTEM, User
from drabridge.sim.apiserver.codec import check_typed, decode
from drabridge.sim.apiserver.convert import from_version
from drabridge.sim.apiserver.defaults import set_defaults
from drabridge.sim.apiserver.gates import drop_disabled
from drabridge.sim.apiserver.kinds import BY_KIND, BY_PLURAL, DRA_GROUP, STORED, Resource
from drabridge.sim.apiserver.selectors import predicate
from drabridge.sim.apiserver.status import JSON, bad_request, clone
from drabridge.sim.apiserver.store import Key, Store, key_of
from drabridge.sim.releases import DEFAULT, RELEASES, Release

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
"""Letters of generated names (apimachinery ``rand``): no vowels, nothing that reads as another."""
_BASE_LIMIT = 58
"""generateName keeps 58 characters and adds 5 (``names/generate.go``)."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes, and how: the request's side of a write."""

    user: User = SYSTEM
    manager: str = "sim"
    version: str = "v1"
    """Version that the client speaks; its group is the object's."""
    strict: bool = False
    force: bool = False
    dry_run: bool = False
    """Whether everything is done except for the write itself (``dryRun=All``)."""


SIMULATOR = Writer()


def timestamp(seconds: float = 0.0) -> str:
    """Return the time in ``seconds`` from now, in RFC 3339 with whole seconds, as Kubernetes writes it."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Objects:
    """Direct access for simulated parts and tests; the HTTP server calls the same methods.

    The caller may change every object that it passes or gets, except those of :meth:`peek`. Every refusal is an
    ApiError.
    """

    def __init__(self, store: Store, gates: Mapping[str, bool], release: Release = RELEASES[DEFAULT]) -> None:
        self.store = store
        self.gates = gates
        self.release = release
        for namespace in ("default", "kube-system"):
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})

    # -- reading

    def get(self, plural: str, name: str, namespace: str = "") -> JSON:
        """Return a copy of one object in storage version, with kind and apiVersion. ApiError 404."""
        resource = BY_PLURAL[plural]
        return self._shown(resource, self._require(resource, (namespace, name)))

    def find(self, plural: str, name: str, namespace: str = "") -> JSON | None:
        """Do what :meth:`get` does, but return None for a missing object."""
        resource = BY_PLURAL[plural]
        found = self.store.get(resource, (namespace, name))
        return self._shown(resource, found) if found is not None else None

    def list(self, plural: str, namespace: str | None = None, *, labels: str = "", fields: str = "") -> Sequence[JSON]:
        """Return copies in order of (namespace, name); ``namespace`` None means all of them."""
        resource = BY_PLURAL[plural]
        return [self._shown(resource, obj) for obj in self.peek(plural, namespace, labels=labels, fields=fields)]

    def peek(self, plural: str, namespace: str | None = None, *, labels: str = "", fields: str = "") -> Sequence[JSON]:
        """Return the stored objects themselves, for reading only (no kind and apiVersion in them)."""
        resource = BY_PLURAL[plural]
        return list(filter(predicate(resource, namespace, fields, labels), self.store.listed(resource)))

    # -- writing

    def create(self, body: JSON, *, namespace: str = "", by: Writer = SIMULATOR) -> JSON:
        """Store a new object. ``namespace``: of the URL; "default" if neither the URL nor the object has one."""
        return self._insert(_resource_of(body), body, namespace, by, None)

    def _insert(
        self, resource: Resource, body: JSON, namespace: str, by: Writer, managers: Sequence[Manager] | None
    ) -> JSON:
        new = self._decode(resource, body, by)
        meta = new.setdefault("metadata", {})
        self._enter_namespace(resource, meta, namespace)
        self._name(resource, meta)
        key = key_of(new)
        if self.store.get(resource, key) is not None:
            raise status.already_exists(resource.group, resource.plural, key[1])
        for field in ("resourceVersion", "managedFields", "deletionTimestamp", "deletionGracePeriodSeconds"):
            meta.pop(field, None)
        if resource.has_status and resource.plural != "nodes":
            new.pop("status", None)
        now = timestamp()
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now}
        meta |= {"generation": 1} if resource.counts_generations else {}
        set_defaults(resource.plural, new, now)
        if managers is None:  # before fields are dropped, so these have an owner, too (recorded)
            writer = self._manager(resource, by, "Update", "")
            managers = after_update([], writer, resource.schema, {"metadata": {}, "spec": {}, "status": {}}, new)
        drop_disabled(resource.schema, new, self.gates, self.release)
        self._check(resource, new, None, "", by)
        meta["managedFields"] = write_managers(managers)
        return self._shown(resource, self._put(resource, new, by))

    def update(self, body: JSON, *, namespace: str = "", subresource: str = "", by: Writer = SIMULATOR) -> JSON:
        """Replace an object, or its status.

        A stale resourceVersion is a conflict. Without one, the write is unconditional.
        """
        resource = _resource_of(body)
        new = self._decode(resource, body, by)
        self._enter_namespace(resource, new.setdefault("metadata", {}), namespace)
        old = self._require(resource, key_of(new))
        return self._replace(resource, old, new, subresource, by, None)

    def modify(
        self, plural: str, name: str, change: Callable[[JSON], object], *, namespace: str = "", subresource: str = ""
    ) -> JSON:
        """Read an object, let ``change`` edit the copy, and write it: atomic, because nothing awaits in between."""
        obj = self.get(plural, name, namespace)
        change(obj)
        return self.update(obj, subresource=subresource)

    def apply(
        self,
        plural: str,
        name: str,
        config: JSON,
        *,
        namespace: str = "",
        subresource: str = "",
        by: Writer = SIMULATOR,
    ) -> tuple[JSON, bool]:
        """Server-side apply; the answer says whether the object is new."""
        resource = BY_PLURAL[plural]
        stored_form = from_version(resource, config, by.version)
        where = f"{namespace}/{name}; {resource.group_version(by.version)}, Kind={resource.kind}"
        check_typed(resource.schema, stored_form, where)
        meta = stored_form.get("metadata", {})
        if meta.get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        old = self.store.get(resource, (namespace, name))
        if old is not None:
            self._guard(resource, old, meta)
        elif subresource:
            raise status.not_found(resource.group, resource.plural, name)
        elif meta.get("uid"):
            raise status.conflict(
                resource.group, resource.plural, name, "it has a uid, and no existing object was found"
            )
        wanted = _applicable(resource, stored_form, subresource)
        manager = self._manager(resource, by, "Apply", subresource)
        live = _bare(old) if old is not None else {}
        merged, managers = apply(
            resource.schema, live, wanted, manager, managers_of(old) if old else [], force=by.force
        )
        merged.setdefault("metadata", {})["name"] = name
        merged |= {"kind": resource.kind, "apiVersion": resource.group_version()}
        if old is not None:
            new = self._decode(resource, merged, replace(by, version=STORED, strict=False))
            return self._replace(resource, old, new, subresource, by, managers), False
        if namespace:
            merged["metadata"]["namespace"] = namespace
        created = self._insert(resource, merged, namespace, replace(by, version=STORED), managers)
        return created, True

    def delete(
        self,
        plural: str,
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        grace_seconds: int | None = None,
        by: Writer = SIMULATOR,
    ) -> JSON:
        """Delete now, or mark as being deleted while finalizers or a pod's grace period hold it."""
        resource = BY_PLURAL[plural]
        old = self._require(resource, (namespace, name))
        meta = old["metadata"]
        for what, given, now, cause in (
            ("UID", uid, meta["uid"], "deleted and then recreated"),
            ("ResourceVersion", resource_version, meta["resourceVersion"], "modified"),
        ):
            if given and given != now:
                why = f"the {what} in the precondition ({given}) does not match the {what} in record ({now}). "
                why += f"The object might have been {cause}"
                raise status.conflict(resource.group, resource.kind, name, why)
        admission.check(resource, old, old, by.user, deleting=True, gates=self.gates)
        if plural == "namespaces" and not by.dry_run:
            self._empty_namespace(name)
        grace = _grace_period(old, grace_seconds) if plural == "pods" else 0
        if not meta.get("finalizers") and grace == 0:
            return self._shown(resource, self._remove(resource, old, by))
        if meta.get("deletionTimestamp") and meta.get("deletionGracePeriodSeconds", 0) <= grace:
            return self._shown(resource, old)
        marked = clone(old)
        marked["metadata"] |= {"deletionTimestamp": timestamp(grace), "deletionGracePeriodSeconds": grace}
        if resource.counts_generations:
            marked["metadata"]["generation"] = meta.get("generation", 0) + 1
        return self._shown(resource, self._put(resource, marked, by))

    # -- the steps

    def _put(self, resource: Resource, obj: JSON, by: Writer) -> JSON:
        return obj if by.dry_run else self.store.put(resource, obj)

    def _remove(self, resource: Resource, obj: JSON, by: Writer) -> JSON:
        return obj if by.dry_run else self.store.remove(resource, key_of(obj))

    def _decode(self, resource: Resource, body: JSON, by: Writer) -> JSON:
        stored = from_version(resource, body, by.version)
        new = decode(resource.schema, resource.kind, by.version, stored, strict=by.strict)
        new.pop("kind", None)
        new.pop("apiVersion", None)
        return new

    def _enter_namespace(self, resource: Resource, meta: JSON, namespace: str) -> None:
        if not resource.namespaced:
            meta.pop("namespace", None)
            return
        given = meta.setdefault("namespace", namespace or "default")
        if namespace and given != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        found = self.store.get(BY_PLURAL["namespaces"], ("", given))
        if found is None:
            raise status.not_found("", "namespaces", given)

    def _name(self, resource: Resource, meta: JSON) -> None:
        if not meta.get("name"):
            if not meta.get("generateName"):
                error = status.FieldError("metadata.name", "name or generateName is required")
                raise status.unprocessable(resource.group, resource.kind, "", [error])
            suffix = "".join(secrets.choice(_SUFFIX) for _ in range(5))
            meta["name"] = meta["generateName"][:_BASE_LIMIT] + suffix

    def _check(self, resource: Resource, new: JSON, old: JSON | None, subresource: str, by: Writer) -> None:
        admission.check(resource, new, old, by.user, deleting=False, gates=self.gates)
        admission.validate(resource, new, old, subresource, self.release)

    def _replace(
        self,
        resource: Resource,
        old: JSON,
        body: JSON,
        subresource: str,
        by: Writer,
        managers: Sequence[Manager] | None,
    ) -> JSON:
        """Write the outcome of update or apply.

        ``managers``: those that apply has computed; None for an update.
        """
        self._guard(resource, old, body["metadata"])
        new = _sections(resource, old, body, subresource)
        new["metadata"] = _kept_metadata(
            old["metadata"], body["metadata"], frozen=bool(subresource) and resource.group == DRA_GROUP
        )
        set_defaults(resource.plural, new, timestamp())
        drop_disabled(resource.schema, new, self.gates, self.release)
        admission.forget_deallocated(resource, new, old)
        if resource.counts_generations and _counted_spec(resource, new) != _counted_spec(resource, old):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        if managers is None:
            writer = self._manager(resource, by, "Update", subresource)
            managers = after_update(managers_of(old), writer, resource.schema, _bare(old), _bare(new))
        unchanged = _bare(old) == _bare(new) and owners(managers) == owners(managers_of(old))
        entries = old["metadata"].get("managedFields", []) if unchanged else write_managers(managers)
        new["metadata"]["managedFields"] = entries  # admission sees who has written what
        self._check(resource, new, old, subresource, by)
        if unchanged:
            return self._shown(resource, old)
        stored = self._put(resource, new, by)
        held = resource.plural == "pods" or stored["metadata"].get("finalizers")
        if stored["metadata"].get("deletionTimestamp") and not held:
            stored = self._remove(resource, stored, by)
        return self._shown(resource, stored)

    def _guard(self, resource: Resource, old: JSON, meta: JSON) -> None:
        """Check optimistic concurrency: the body's uid and resourceVersion, if given, must equal the stored ones."""
        name, now = old["metadata"]["name"], old["metadata"]
        if meta.get("uid", now["uid"]) != now["uid"]:
            why = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {now['uid']}"
            raise status.conflict(resource.group, resource.plural, name, why)
        if meta.get("resourceVersion", now["resourceVersion"]) not in ("", now["resourceVersion"]):
            raise status.conflict(resource.group, resource.plural, name)

    def _manager(self, resource: Resource, by: Writer, operation: str, subresource: str) -> Manager:
        version = resource.group_version(by.version)
        return Manager(by.manager, operation, version, frozenset(), timestamp(), subresource)

    def _require(self, resource: Resource, key: Key) -> JSON:
        found = self.store.get(resource, key)
        if found is None:
            raise status.not_found(resource.group, resource.plural, key[1])
        return found

    def _empty_namespace(self, name: str) -> None:
        for resource, obj in list(self.store.everything()):
            if resource.namespaced and obj["metadata"].get("namespace") == name:
                self.store.remove(resource, key_of(obj))

    @staticmethod
    def _shown(resource: Resource, obj: JSON) -> JSON:
        return {"kind": resource.kind, "apiVersion": resource.group_version(), **clone(obj)}


# --- what a write may change, and what it keeps ---------------------------------------------------------------------


def _resource_of(body: JSON) -> Resource:
    kind = body.get("kind", "")
    if kind not in BY_KIND:
        raise bad_request(f'no kind "{kind}" is registered for version "{body.get("apiVersion", "")}"')
    return BY_KIND[kind]


def _grace_period(pod: JSON, asked: int | None) -> int:
    """Return the seconds until a pod may be removed: 0 if it has no node yet, or has ended."""
    if not pod.get("spec", {}).get("nodeName") or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    return int(pod["spec"].get("terminationGracePeriodSeconds", 30)) if asked is None else asked


def _bare(obj: JSON) -> JSON:
    """Return the object without what a write changes by itself."""
    meta = {name: value for name, value in obj["metadata"].items() if name not in ("managedFields", "resourceVersion")}
    return {**obj, "metadata": meta}


def _sections(resource: Resource, old: JSON, body: JSON, subresource: str) -> JSON:
    """Return which top-level parts a write may change.

    Through /status it is the status alone, otherwise everything but the status.
    """
    if subresource == "status":
        return {**clone(old), "status": body.get("status", {})}
    if resource.has_status:
        kept = {"status": clone(old["status"])} if "status" in old else {}
        return {name: value for name, value in body.items() if name != "status"} | kept
    return dict(body)


def _kept_metadata(old: JSON, new: JSON, *, frozen: bool) -> JSON:
    """Return the metadata after a write.

    Identity is the server's. Through /status of DRA kinds nothing of it changes.
    """
    times = ("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
    mine = ("uid", "generation", "resourceVersion", *times)
    if frozen:
        return {**old}
    meta = {name: value for name, value in new.items() if name not in (*mine, "managedFields")}
    meta |= {name: old[name] for name in (*mine, "name", "namespace", "generateName") if name in old}
    return meta


def _applicable(resource: Resource, config: JSON, subresource: str) -> JSON:
    """Return the part of an applied configuration that the endpoint owns.

    The rest is reset, as ``GetResetFields`` does.
    """
    if subresource == "status":
        return {"status": config.get("status", {})}
    kept = {name: value for name, value in config.items() if not (name == "status" and resource.has_status)}
    meta = {name: value for name, value in config.get("metadata", {}).items() if name != "resourceVersion"}
    return {**kept, "metadata": meta}


def _counted_spec(resource: Resource, obj: JSON) -> JSON:
    """Return the part of the spec whose changes count as generations.

    Binding a pod to a node does not count (recorded).
    """
    spec: JSON = obj.get("spec", {})
    return {name: value for name, value in spec.items() if not (resource.plural == "pods" and name == "nodeName")}
