"""List the kinds that the report reads, and the ClusterRole that allows that and nothing else."""

from __future__ import annotations

from typing import Any

from drabridge.kube.api import NODES, PODS, Kind, device_classes, resource_claims, resource_slices
from drabridge.kube.versions import NEWEST_RESOURCE_VERSION, RESOURCE_GROUP

NAMESPACES = Kind("", "v1", "namespaces", namespaced=False)
QUOTAS = Kind("", "v1", "resourcequotas")
WORKLOADS = {  # kind -> where it is
    "ReplicaSet": Kind("apps", "v1", "replicasets"),
    "Deployment": Kind("apps", "v1", "deployments"),
    "StatefulSet": Kind("apps", "v1", "statefulsets"),
    "DaemonSet": Kind("apps", "v1", "daemonsets"),
    "Job": Kind("batch", "v1", "jobs"),
    "CronJob": Kind("batch", "v1", "cronjobs"),
}


def is_built_in(kind: str) -> bool:
    """Whether a kind that makes pods, or is one, is Kubernetes' own."""
    return kind in WORKLOADS or kind == "Pod"


def claim_templates(version: str) -> Kind:
    return Kind(RESOURCE_GROUP, version, "resourceclaimtemplates")


def all_kinds(version: str = NEWEST_RESOURCE_VERSION) -> tuple[Kind, ...]:
    """Return every kind that is listed, with this version of resource.k8s.io."""
    dra = (device_classes(version), resource_slices(version), resource_claims(version), claim_templates(version))
    return (NODES, NAMESPACES, PODS, QUOTAS, *WORKLOADS.values(), *dra)


def cluster_role(name: str = "drabridge-migrate-report") -> dict[str, Any]:
    """Return the ClusterRole. It reads no Secrets and no ConfigMaps, and writes nothing.

    Which versions a server has needs no rule: every user may ask (ClusterRole system:discovery).
    """
    by_group: dict[str, list[str]] = {}
    for kind in all_kinds():
        by_group.setdefault(kind.group, []).append(kind.plural)
    rules = [{"apiGroups": [group], "resources": plurals, "verbs": ["list"]} for group, plurals in by_group.items()]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": rules,
    }
