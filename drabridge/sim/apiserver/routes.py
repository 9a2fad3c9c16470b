"""From a URL to what it addresses: resource, version, namespace, name, subresource, and the verb of RBAC."""

from __future__ import annotations

from dataclasses import dataclass

from drabridge.sim.apiserver.kinds import BY_PLURAL, DRA_VERSIONS, Resource

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

    def verb(self, method: str, *, watch: bool) -> str:
        """The verb that RBAC would be asked about; empty when the method does not exist here."""
        if self.name:
            return _NAMED_VERBS.get(method, "")
        verb = _LIST_VERBS.get(method, "")
        return "watch" if verb == "list" and watch else verb


def parse(path: str, dra_versions: tuple[str, ...]) -> Target | None:
    """None when nothing is served at ``path``."""
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
    if resource is None or resource.group != group or version not in resource.versions(dra_versions):
        return None
    if version not in DRA_VERSIONS or (namespace and not resource.namespaced) or len(after) > 2:
        return None
    name, subresource = (*after, "", "")[:2]
    if subresource and subresource not in resource.subresources:
        return None
    if name and resource.namespaced and not namespace:
        return None
    return Target(resource, version, namespace, name, subresource)
