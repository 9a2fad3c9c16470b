"""The table of resources that the simulated API server serves; everything else reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from drabridge.sim.apiserver import schema, schema_dra
from drabridge.sim.apiserver.schema import Schema
from drabridge.sim.apiserver.status import JSON

DRA_GROUP = "resource.k8s.io"
DRA_VERSIONS = ("v1", "v1beta2", "v1beta1")


@dataclass(frozen=True, slots=True)
class Resource:
    """One row: how a kind is named, what it stores and which of its fields can be selected on."""

    plural: str
    kind: str
    schema: Schema
    group: str = ""
    version: str = "v1"
    """Storage version; only resource.k8s.io is served in others as well."""
    namespaced: bool = True
    subresources: tuple[str, ...] = ()
    selectable: tuple[str, ...] = ()
    """Field selectors beside metadata.name and metadata.namespace."""
    counts_generations: bool = False
    """metadata.generation starts at 1 and grows with each change of the spec."""
    newer_selectable: Mapping[str, int] = field(default_factory=dict)
    """Those of ``selectable`` that came with 1.<minor>."""
    since: int = 0
    """The 1.<minor> that serves the kind first, as ``version`` alone."""
    gate: str = ""
    """The feature gate that the kind is behind."""
    delete_returns_object: bool = False
    blank: Mapping[str, object] = field(default_factory=dict)
    """What Go prints for an empty object of the kind: the body of bookmarks, the zero of field ownership."""
    storage_hash: str = ""

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources

    def blank_object(self) -> JSON:
        return {"metadata": {}, **self.blank}


@dataclass(frozen=True, slots=True)
class Served:
    """What one server serves of the table."""

    minor: int
    dra_versions: tuple[str, ...]
    """Served versions of resource.k8s.io, in order of preference."""
    gates: Mapping[str, bool]

    def versions(self, resource: Resource) -> tuple[str, ...]:
        """Return in which versions; nothing for a kind that comes later, or is switched off."""
        if resource.since > self.minor or (resource.gate and not self.gates[resource.gate]):
            return ()
        if resource.group != DRA_GROUP:
            return (resource.version,)
        known = (resource.version,) if resource.since else DRA_VERSIONS
        return tuple(one for one in self.dra_versions if one in known)

    def selectable(self, resource: Resource) -> tuple[str, ...]:
        """Return the field selectors beside metadata.name and metadata.namespace."""
        newer = resource.newer_selectable
        return tuple(path for path in resource.selectable if newer.get(path, 0) <= self.minor)


_SLICE_BLANK = {"spec": {"driver": "", "pool": {"name": "", "generation": 0, "resourceSliceCount": 0}}}
_BLANK: dict[str, object] = {"spec": {}, "status": {}}
_CLAIM_BLANK: dict[str, object] = {"spec": {"devices": {}}, "status": {}}

RESOURCES: tuple[Resource, ...] = (
    Resource(
        "deviceclasses",
        "DeviceClass",
        schema_dra.DEVICE_CLASS,
        DRA_GROUP,
        namespaced=False,
        counts_generations=True,
        delete_returns_object=True,
        blank={"spec": {}},
        storage_hash="Yk2PTc1Ybxk=",
    ),
    Resource(
        "devicetaintrules",
        "DeviceTaintRule",
        schema_dra.DEVICE_TAINT_RULE,
        DRA_GROUP,
        namespaced=False,
        subresources=("status",),
        since=37,  # before: beta, in versions that are off by default
        gate="DRADeviceTaintRules",
        counts_generations=True,
        delete_returns_object=True,
        blank={"spec": {"taint": {"key": "", "effect": ""}}, "status": {}},
    ),
    Resource(
        "resourceclaims",
        "ResourceClaim",
        schema_dra.RESOURCE_CLAIM,
        DRA_GROUP,
        subresources=("status",),
        delete_returns_object=True,
        blank=_CLAIM_BLANK,
        storage_hash="wgAZaHcZxUg=",
    ),
    Resource(
        "resourceclaimtemplates",
        "ResourceClaimTemplate",
        schema_dra.RESOURCE_CLAIM_TEMPLATE,
        DRA_GROUP,
        delete_returns_object=True,
        blank={"spec": {"metadata": {}, "spec": {"devices": {}}}},
        storage_hash="TuzjC49aUfM=",
    ),
    Resource(
        "resourceslices",
        "ResourceSlice",
        schema_dra.RESOURCE_SLICE,
        DRA_GROUP,
        namespaced=False,
        selectable=("spec.nodeName", "spec.driver", "spec.pool.name"),
        newer_selectable={"spec.pool.name": 37},  # kubernetes#138456
        counts_generations=True,
        delete_returns_object=True,
        blank=_SLICE_BLANK,
        storage_hash="KsC072WgaEY=",
    ),
    Resource(
        "nodes", "Node", schema.NODE, namespaced=False, subresources=("status",), blank={"spec": {}, "status": {}}
    ),
    Resource(
        "pods",
        "Pod",
        schema.POD,
        subresources=("status", "binding", "eviction"),
        selectable=(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ),
        counts_generations=True,
        delete_returns_object=True,
        blank={"spec": {}, "status": {}},
    ),
    Resource(
        "events",
        "Event",
        schema.OPEN_KIND,
        selectable=(
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ),
    ),
    Resource(
        "namespaces",
        "Namespace",
        schema.OPEN_KIND,
        namespaced=False,
        subresources=("status",),
        selectable=("status.phase",),
        blank={"spec": {}, "status": {}},
    ),
    Resource("configmaps", "ConfigMap", schema.OPEN_KIND),
    Resource("leases", "Lease", schema.OPEN_KIND, "coordination.k8s.io", blank={"spec": {}}),
    Resource("resourcequotas", "ResourceQuota", schema.OPEN_KIND, blank=_BLANK),
    Resource("replicasets", "ReplicaSet", schema.OPEN_KIND, "apps", blank=_BLANK),
    *(
        Resource(
            plural, kind, schema.OPEN_KIND, "apps", subresources=("status",), counts_generations=True, blank=_BLANK
        )
        for plural, kind in (("deployments", "Deployment"), ("statefulsets", "StatefulSet"))
    ),
    Resource("daemonsets", "DaemonSet", schema.OPEN_KIND, "apps", blank=_BLANK),
    Resource("cronjobs", "CronJob", schema.OPEN_KIND, "batch", blank=_BLANK),
    Resource(
        "mutatingadmissionpolicies",
        "MutatingAdmissionPolicy",
        schema.OPEN_KIND,
        "admissionregistration.k8s.io",
        namespaced=False,
        since=36,
        blank={"spec": {}},
    ),
    Resource("jobs", "Job", schema.JOB, "batch", subresources=("status",), counts_generations=True),
)
BY_PLURAL: Mapping[str, Resource] = MappingProxyType({one.plural: one for one in RESOURCES})
BY_KIND: Mapping[str, Resource] = MappingProxyType({one.kind: one for one in RESOURCES})
