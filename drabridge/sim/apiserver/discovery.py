"""Discovery documents: which groups, versions and resources are served."""

from __future__ import annotations

from drabridge.sim.apiserver.kinds import DRA_GROUP, RESOURCES, Resource, Served
from drabridge.sim.apiserver.status import JSON
from drabridge.sim.releases import Release

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_SUBRESOURCE_VERBS = {"status": ["get", "patch", "update"], "binding": ["create"], "eviction": ["create"]}
_SUBRESOURCE_KINDS = {"binding": "Binding", "eviction": "Eviction"}


def _version(release: Release) -> JSON:
    """Return the answer to ``/version`` as the real server gives it (recorded), without details of its build."""
    return {
        "major": "1",
        "minor": str(release.minor),
        "emulationMajor": "1",
        "emulationMinor": str(release.minor),
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": str(release.minor - 1),
        "gitVersion": release.version,
    }


def document(path: str, served: Served) -> JSON | None:
    """Return the answer for a discovery path.

    None when ``path`` is not one, or its group or version is not served.
    """
    match path.strip("/").split("/"):
        case ["version"]:
            return _version(served.release)
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["api", "v1"]:
            return _resources("", "v1", served)
        case ["apis"]:
            groups = [one for group in _groups() if (one := _group(group, served)) is not None]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ["apis", group]:
            found = _group(group, served)
            return {"kind": "APIGroup", "apiVersion": "v1", **found} if found is not None else None
        case ["apis", group, version] if version in _versions(group, served):
            return _resources(group, version, served)
    return None


def _groups() -> list[str]:
    return sorted({one.group for one in RESOURCES if one.group})


def _versions(group: str, served: Served) -> tuple[str, ...]:
    if group == DRA_GROUP:
        return served.dra_versions
    beta = any(one.group == group and "v1beta1" in served.versions(one) for one in RESOURCES)
    return (("v1", "v1beta1") if beta else ("v1",)) if group in _groups() else ()


def _group(group: str, served: Served) -> JSON | None:
    versions = [{"groupVersion": f"{group}/{one}", "version": one} for one in _versions(group, served)]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]} if versions else None


def _resources(group: str, version: str, served: Served) -> JSON:
    listed: list[JSON] = []
    for one in RESOURCES:
        if one.group == group and version in served.versions(one):
            listed.append(_entry(one))
            listed += [_subentry(one, name) for name in one.subresources]
    name = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": listed}


def _entry(one: Resource) -> JSON:
    entry: JSON = {"name": one.plural, "singularName": one.singular, "namespaced": one.namespaced, "kind": one.kind}
    return entry | {"verbs": _VERBS}


def _subentry(one: Resource, name: str) -> JSON:
    verbs, kind = _SUBRESOURCE_VERBS[name], _SUBRESOURCE_KINDS.get(name, one.kind)
    entry: JSON = {"name": f"{one.plural}/{name}", "singularName": "", "namespaced": one.namespaced, "kind": kind}
    return entry | {"verbs": verbs}
