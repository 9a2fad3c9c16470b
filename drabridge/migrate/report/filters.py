"""Limit what the report shows to some namespaces and resources. Pure.

Counts of nodes and of devices in slices stay those of the whole cluster, because all namespaces share them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from msgspec import Struct

from drabridge.config.problems import did_you_mean
from drabridge.errors import ConfigError
from drabridge.migrate.report.model import Obstacle
from drabridge.migrate.report.tally import WorkloadTally


class Filter(Struct, frozen=True):
    """What the caller asked for; an empty set means all."""

    namespaces: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()


class Shown:
    """Says what a filter leaves. ``row_of`` returns the row of a resource, ``workloads`` are all of the cluster."""

    def __init__(
        self, wanted: Filter, row_of: Callable[[str], str], workloads: Mapping[tuple[str, str, str], WorkloadTally]
    ) -> None:
        self._namespaces = wanted.namespaces
        self._resources = frozenset(map(row_of, wanted.resources))
        self._row_of = row_of
        self._of_others = {
            (namespace, f"{kind}/{name}")
            for (namespace, kind, name), one in workloads.items()
            if one.uses and not any(map(self.resource, one.uses))
        }

    def namespace(self, name: str) -> bool:
        return not self._namespaces or name in self._namespaces

    def resource(self, name: str) -> bool:
        return not self._resources or self._row_of(name) in self._resources

    def workload(self, one: WorkloadTally) -> bool:
        return self.namespace(one.chain.namespace) and any(map(self.resource, one.uses))

    def is_left(self, one: WorkloadTally) -> bool:
        """Return whether a workload has limits of a resource that is shown."""
        return one.has_limits and any(map(self.resource, one.per_pod))

    def obstacle(self, one: Obstacle) -> bool:
        """Return whether an obstacle is shown; one without a namespace or a resource is about all of them."""
        if one.namespace and not self.namespace(one.namespace):
            return False
        return self.resource(one.resource) if one.resource else (one.namespace, one.object) not in self._of_others


def check_namespaces(wanted: Filter, known: Collection[str]) -> None:
    """Raise ConfigError for a namespace that is not there: a slip would look like one without devices."""
    for name in sorted(wanted.namespaces - set(known)):
        hint = did_you_mean(name, sorted(known)) or "kubectl get namespaces lists them"
        raise ConfigError(f"there is no namespace {name}", hint=hint)


def check_classes(said: Collection[str], known: Collection[str]) -> None:
    """Raise ConfigError for a DeviceClass that is not there and that no claim names: a slip would count nothing."""
    for name in sorted(set(said) - set(known)):
        hint = did_you_mean(name, sorted(known)) or f"There {_are(sorted(known))}; kubectl get deviceclasses lists them"
        raise ConfigError(f"there is no DeviceClass {name}", hint=hint)


def _are(names: list[str]) -> str:
    return f"is {names[0]}" if len(names) == 1 else f"are {', '.join(names)}" if names else "is none"


def check_resources(wanted: Filter, row_of: Callable[[str], str], known: Collection[str]) -> None:
    """Raise ConfigError for a resource that the cluster does not have: a slip would look like one that nobody uses."""
    for name in sorted(wanted.resources):
        if row_of(name) not in known:
            hint = did_you_mean(name, sorted(known)) or "`drabridge migrate report` without --resource shows all"
            raise ConfigError(f"nothing in the cluster has or asks for {name}", hint=hint)
