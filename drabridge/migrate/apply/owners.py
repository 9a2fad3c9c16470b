"""Find out how a step changes a workload: by its own manifest, or by that of what owns it."""

from __future__ import annotations

from msgspec import Struct

from drabridge.kube.api import Cluster
from drabridge.migrate.apply import manifests, rollouts
from drabridge.migrate.installers import Installer, installer_of, operator_of
from drabridge.migrate.plan.document import Move, Step
from drabridge.migrate.report.reads import is_built_in


class Change(Struct, frozen=True):
    """How a step changes a workload: which manifest, what owns the workload, whether the manifest is the owner's."""

    key: manifests.ObjectKey
    converted: manifests.Converted
    owner: Installer | None
    of_owner: bool


class Owners:
    """What owns the workloads of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[manifests.ObjectKey, Installer | None] = {}  # of steps to come

    async def change(self, step: Step, move: Move, found: manifests.Manifests) -> Change | None:
        """Return how a workload is changed: by its own manifest, else by that of what owns it; None: by none."""
        owner = await self.installer(step, move)
        own = _key(step, move)
        if own in found.objects:
            return Change(own, found.objects[own], owner, of_owner=False)
        key = None if owner is None else owner.manifest_in(found.objects)
        return None if key is None else Change(key, found.objects[key], owner, of_owner=True)

    async def installer(self, step: Step, move: Move) -> Installer | None:
        """Return what owns a live object, and would undo a change of it."""
        if not can_change(move):
            return operator_of(rollouts.split(move.object)[0])
        live = await rollouts.find(self._cluster, step.namespace, move.object)
        return None if live is None else installer_of(live["metadata"])

    async def keys(self, step: Step, found: manifests.Manifests) -> set[manifests.ObjectKey]:
        """Return which objects a step changes: its workloads, or what makes them."""
        keys: set[manifests.ObjectKey] = set()
        for move in step.moves:
            own = _key(step, move)
            if own not in found.objects and own not in self._known:
                self._known[own] = await self.installer(step, move)
            owner = self._known.get(own)
            keys.add((owner.manifest_in(found.objects) if owner is not None else None) or own)
        return keys


def can_change(move: Move) -> bool:
    """Whether a workload is of a kind that Kubernetes itself has: others are changed by their operators."""
    return is_built_in(rollouts.split(move.object)[0])


def _key(step: Step, move: Move) -> manifests.ObjectKey:
    return (step.namespace, *rollouts.split(move.object))
