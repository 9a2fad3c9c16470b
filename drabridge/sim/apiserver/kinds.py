"""The table of resources that the simulated API server serves; everything else reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from drabridge.sim.apiserver import schema, schema_dra
from drabridge.sim.apiserver.schema import Schema
from drabridge.sim.apiserver.status import JSON
from drabridge.sim.releases import Release

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
    """Only resource.k8s.io is served in others as well; this is the simulation's own form of its objects."""
    namespaced: bool = True
    subresources: tuple[str, ...] = ()
    selectable: tuple[str, ...] = ()
    """Field selectors beside metadata.name and metadata.namespace."""
    counts_generations: bool = False
    """metadata.generation starts at 1 and grows with each change of the spec."""
    optional: bool = False
    """Not every release serves the kind (``Release.kinds``), and none but as ``version``."""
    gate: str = ""
    """The feature gate that the kind is behind."""
    beta_gate: str = ""
    """Releases that do not serve the kind serve it as v1beta1 with this gate (and their runtime-config)."""
    blank: Mapping[str, object] = field(default_factory=dict)
    """What Go prints for an empty object of the kind: the body of bookmarks, the zero of field ownership."""

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def delete_returns_object(self) -> bool:
        """Whether the answer to a deletion is the object, and not a Status (recorded)."""
        return self.group == DRA_GROUP or self.plural == "pods"

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources

    def blank_object(self) -> JSON:
        return {"metadata": {}, **self.blank}


@dataclass(frozen=True, slots=True)
class Served:
    """What one server serves of the table."""

    release: Release
    dra_versions: tuple[str, ...]
    """Served versions of resource.k8s.io, in order of preference."""
    gates: Mapping[str, bool]

    def versions(self, resource: Resource) -> tuple[str, ...]:
        """Return in which versions; nothing for a kind that comes later, or is switched off."""
        if resource.optional and resource.plural not in self.release.kinds:
            return ("v1beta1",) if resource.beta_gate and self.gates[resource.beta_gate] else ()
        if resource.gate and not self.gates[resource.gate]:
            return ()
        if resource.group != DRA_GROUP:
            return (resource.version,)
        known = (resource.version,) if resource.optional else DRA_VERSIONS
        return tuple(one for one in self.dra_versions if one in known)

    def selectable(self, resource: Resource) -> tuple[str, ...]:
        """Return the field selectors beside metadata.name and metadata.namespace."""
        return self.release.slice_selectors if resource.plural == "resourceslices" else resource.selectable


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
        blank={"spec": {}},
    ),
    Resource(
        "devicetaintrules",
        "DeviceTaintRule",
        schema_dra.DEVICE_TAINT_RULE,
        DRA_GROUP,
        namespaced=False,
        subresources=("status",),
        optional=True,
        gate="DRADeviceTaintRules",
        counts_generations=True,
        blank={"spec": {"taint": {"key": "", "effect": ""}}, "status": {}},
    ),
    Resource(
        "resourceclaims",
        "ResourceClaim",
        schema_dra.RESOURCE_CLAIM,
        DRA_GROUP,
        subresources=("status",),
        blank=_CLAIM_BLANK,
    ),
    Resource(
        "resourceclaimtemplates",
        "ResourceClaimTemplate",
        schema_dra.RESOURCE_CLAIM_TEMPLATE,
        DRA_GROUP,
        blank={"spec": {"metadata": {}, "spec": {"devices": {}}}},
    ),
    Resource(
        "resourceslices",
        "ResourceSlice",
        schema_dra.RESOURCE_SLICE,
        DRA_GROUP,
        namespaced=False,
        selectable=("spec.nodeName", "spec.driver", "spec.pool.name"),
        counts_generations=True,
        blank=_SLICE_BLANK,
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
        optional=True,
        beta_gate="MutatingAdmissionPolicy",
        blank={"spec": {}},
    ),
    Resource("jobs", "Job", schema.JOB, "batch", subresources=("status",), counts_generations=True),
)
BY_PLURAL: Mapping[str, Resource] = MappingProxyType({one.plural: one for one in RESOURCES})
BY_KIND: Mapping[str, Resource] = MappingProxyType({one.kind: one for one in RESOURCES})
