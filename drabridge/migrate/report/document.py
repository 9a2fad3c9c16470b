"""Define the report: JSON and YAML show it, and tables and the page are made from it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from drabridge.kube.features import FeatureRow
from drabridge.migrate.report.codes import Code, Severity


class Ways(Struct, rename="camel"):
    """A number of pods, or of devices, by the way in which pods get devices.

    ``kubelet``: limits, served by a device plugin. ``dra``: limits, served by DRA. ``claims``: ResourceClaims.
    ``pending``: no node yet, whatever the pod asks for.
    """

    kubelet: int = 0
    dra: int = 0
    claims: int = 0
    pending: int = 0

    @property
    def total(self) -> int:
        return self.kubelet + self.dra + self.claims + self.pending

    @property
    def done_percent(self) -> int | None:
        """The percentage of those with a node that DRA serves, rounded down; None if there are none."""
        placed = self.kubelet + self.dra + self.claims
        return 100 * (self.dra + self.claims) // placed if placed else None

    def add(self, way: str, count: int) -> None:
        setattr(self, way, getattr(self, way) + count)


class ResourceUse(Struct, rename="camel"):
    """One extended resource. ``allocatable``: what kubelet offers; ``in_slices``: what DRA drivers offer."""

    name: str
    classes: list[str]
    nodes: int
    allocatable: int
    in_slices: int
    free_in_slices: int
    pods: Ways
    devices: Ways
    done_percent: int | None = None


class NamespaceUse(Struct, rename="camel"):
    """What a namespace uses of one resource."""

    resource: str
    pods: Ways
    devices: Ways
    done_percent: int | None = None


class NamespaceSwitch(Struct, frozen=True, rename="camel"):
    """The switch of a namespace: the percentage of owners of pods, and the selector of its pods ("": all)."""

    percent: int
    selector: str


class Namespace(Struct, rename="camel"):
    """``fits`` says how its pods come to DRA: ``done``, ``switched``, ``convert``, ``switch`` or ``limits``.

    ``because`` says why. ``switch`` is None where it is not switched, and where Namespaces could not be read.
    """

    name: str
    uses: list[NamespaceUse]
    fits: str
    because: str
    switch: NamespaceSwitch | None = None


class Workload(Struct, rename="camel"):
    """The last owner in a pod's chain of owners. ``chain`` begins with Pod. ``per_pod``: devices."""

    namespace: str
    kind: str
    name: str
    chain: list[str]
    resource: str
    per_pod: int
    pods: Ways
    devices: Ways


class Obstacle(Struct, rename="camel"):
    """One blocker or trap at one object. ``seen``: what was found there; ``pods``: how many pods it is about."""

    code: Code
    severity: Severity
    namespace: str
    object: str
    resource: str
    seen: str
    pods: int
    why: str
    action: str


class Unread(Struct, rename="camel"):
    """Something that could not be read: permission is missing, or an object is malformed."""

    verb: str
    resource: str
    reason: str


class Filter(Struct, frozen=True):
    """The namespaces and resources that the report is limited to, sorted; an empty list means all."""

    namespaces: Sequence[str] = ()
    resources: Sequence[str] = ()


class Report(Struct, rename="camel"):
    """All that is known. Lists are sorted, so that two reports can be compared."""

    server_version: str
    nodes: int
    pods: int
    resources: list[ResourceUse]
    namespaces: list[Namespace]
    workloads: list[Workload]
    obstacles: list[Obstacle]
    unread: list[Unread]
    filter: Filter
    features: list[FeatureRow]

    def count(self, severity: Severity) -> int:
        return sum(one.severity is severity for one in self.obstacles)


def number(count: int, word: str) -> str:
    """Return ``1 pod`` or ``2,000 pods``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"
