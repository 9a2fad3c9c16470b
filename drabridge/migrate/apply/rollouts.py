"""Roll workloads out, and see how far they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drabridge.errors import ClusterError
from drabridge.kube.api import Cluster, Kind, NotFoundError
from drabridge.migrate.apply.waiting import Waiting
from drabridge.migrate.report.model import number
from drabridge.migrate.report.reads import WORKLOADS
from drabridge.migrate.switch import marks

Json = Mapping[str, Any]
RESTARTED = "kubectl.kubernetes.io/restartedAt"
"""What `kubectl rollout restart` sets in a pod template: a new value is a new revision."""


def kind_of(name: str) -> Kind:
    """Return where objects of a kind are. Raises ClusterError for one that has no rollouts."""
    if name not in WORKLOADS:
        raise ClusterError(
            f"a {name} cannot be changed by a plan", hint="Set `how: byHand` for it, and change it yourself"
        )
    return WORKLOADS[name]


def split(object_: str) -> tuple[str, str]:
    """Return (kind, name) of ``Deployment/chat``."""
    kind, _, name = object_.partition("/")
    return kind, name


async def find(cluster: Cluster, namespace: str, object_: str) -> dict[str, Any] | None:
    """Return a workload; None where it is gone. Raises ClusterError."""
    kind, name = split(object_)
    try:
        return dict(await cluster.get(kind_of(kind), name, namespace=namespace))
    except NotFoundError:
        return None


async def restart(cluster: Cluster, namespace: str, object_: str, stamp: str) -> None:
    """Ask for a rollout; asking again with the same stamp changes nothing. Raises ClusterError."""
    kind, name = split(object_)
    where = kind_of(kind)
    body = {
        "apiVersion": f"{where.group}/{where.version}",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"template": {"metadata": {"annotations": {RESTARTED: stamp}}}},
    }
    await cluster.apply(where, body, manager=marks.MANAGER, namespace=namespace)


async def wait(cluster: Cluster, namespace: str, object_: str, waiting: Waiting) -> None:
    """Wait until every pod is of the newest revision and available. Raises ClusterError."""

    async def lacking() -> str:
        found = await find(cluster, namespace, object_)
        return "" if found is None else left_of(found)

    await waiting.until(object_, lacking)


def left_of(workload: Json) -> str:
    """Say what a rollout still lacks; "" when it is complete. Raises ClusterError where its deadline has passed.

    As `kubectl rollout status` decides it (k8s.io/kubectl, pkg/polymorphichelpers/rollout_status.go).
    """
    spec, status = workload.get("spec") or {}, workload.get("status") or {}
    wanted = 1 if spec.get("replicas") is None else spec["replicas"]
    updated, ready = status.get("updatedReplicas") or 0, status.get("readyReplicas") or 0
    available = status.get("availableReplicas") or 0
    if (status.get("observedGeneration") or 0) < (workload["metadata"].get("generation") or 0):
        return "its controller has not seen the change yet"
    for one in status.get("conditions") or ():
        if one.get("type") == "Progressing" and one.get("reason") == "ProgressDeadlineExceeded":
            raise ClusterError(
                f"{workload['metadata']['namespace']}/{workload['metadata']['name']}: its rollout does not go on: "
                f"{one.get('message')}",
                hint="kubectl describe its new pods; then apply again, or go back: drabridge migrate rollback",
            )
    if updated < wanted:
        return f"{updated} of {wanted} pods are new"
    if (status.get("replicas") or 0) > updated:
        left = status["replicas"] - updated
        return f"{number(left, 'old pod')} to end"
    if workload.get("kind") == "StatefulSet" or "currentRevision" in status:
        if ready < wanted:
            return f"{ready} of {wanted} pods are ready"
        return "" if status.get("currentRevision") == status.get("updateRevision") else "old pods are to end"
    return "" if available >= wanted else f"{available} of {wanted} pods are available"
