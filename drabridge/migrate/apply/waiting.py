"""Report progress, and wait for what others do: mostly rollouts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct

from drabridge.errors import ClusterError
from drabridge.kube.api import Cluster, ConflictError, ExpiredError, Kind, NotFoundError, UnreachableError
from drabridge.migrate.report.document import number
from drabridge.migrate.report.readers import WORKLOADS
from drabridge.migrate.switch import marks

POLL_SECONDS = 1.0
POLL_MOST_SECONDS = 5.0  # between two questions at most; a large cluster needs seconds for an answer


class Event(Struct, frozen=True):
    """Something that was done, or is waited for. ``waited``: seconds so far; None if it is done."""

    step: str
    object: str
    message: str
    waited: float | None = None


Tell = Callable[[Event], None]


class Waiting:
    """Waits for one step. ``seconds``: how long for each thing."""

    def __init__(self, step: str, tell: Tell, seconds: float) -> None:
        self._step = step
        self._tell = tell
        self._seconds = seconds

    def say(self, what: str, message: str) -> None:
        self._tell(Event(self._step, what, message))

    async def until(
        self,
        what: str,
        lacking: Callable[[], Awaitable[str]],
        *,
        hint: str = "Mend that",
        at_most_seconds: float = math.inf,
    ) -> None:
        """Call ``lacking`` until it returns ""; its text says what is missing. Also waits while the API server is away.

        ``at_most_seconds``: a limit below the step's. Raises ClusterError after the limit, with ``hint`` and how to
        continue.
        """
        loop = asyncio.get_running_loop()
        began, pause = loop.time(), POLL_SECONDS
        most = min(self._seconds, at_most_seconds)
        while True:
            try:
                words = await lacking()
            except (UnreachableError, ExpiredError, ConflictError) as error:
                words = error.message
            if not words:
                return
            waited = loop.time() - began
            if waited > most:
                raise ClusterError(
                    f"{what}: {words}, after {waited:.0f} s",
                    hint=f"{hint}. The same command goes on here; drabridge migrate rollback goes back",
                )
            self._tell(Event(self._step, what, words, waited))
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, POLL_MOST_SECONDS)


# --- rollouts -------------------------------------------------------------------------------------------------------

Json = Mapping[str, Any]
RESTARTED = "kubectl.kubernetes.io/restartedAt"
"""The annotation that `kubectl rollout restart` sets in a pod template: a new value makes a new revision."""


def kind_of(name: str) -> Kind:
    """Return the API kind for a kind's name. Raises ClusterError for a kind without rollouts."""
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
    """Return a workload; None if it is gone. Raises ClusterError."""
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
    """Return what a rollout still lacks; "" if it is complete. Raises ClusterError if its deadline has passed.

    The rules are those of `kubectl rollout status` (k8s.io/kubectl, pkg/polymorphichelpers/rollout_status.go).
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
