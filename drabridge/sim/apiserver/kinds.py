"""The table of resources that the simulated API server serves; everything else reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from drabridge.sim.apiserver import schema, schema_dra
from drabridge.sim.apiserver.schema import Schema
from drabridge.sim.releases import Release

DRA_GROUP = "resource.k8s.io"
DRA_VERSIONS = ("v1", "v1beta2", "v1beta1")
STORED = "v1"
"""The version in which the simulation stores objects. Only resource.k8s.io is served in others as well."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One row: how a kind is named, what it stores and which of its fields can be selected on."""

    plural: str
    kind: str
    schema: Schema
    group: str = ""
    namespaced: bool = True
    subresources: tuple[str, ...] = ()
    selectable: tuple[str, ...] = ()
    """Field selectors beside metadata.name and metadata.namespace."""
    counts_generations: bool = False
    """metadata.generation starts at 1 and grows with each change of the spec."""
    optional: bool = False
    """Only some releases serve the kind (``Release.kinds``), and only as v1."""
    gate: str = ""
    """The feature gate that the kind is behind."""
    beta_gate: str = ""
    """Releases that do not serve the kind serve it as v1beta1 with this gate (and their runtime-config)."""

    @property
    def singular(self) -> str:
        return self.kind.lower()

    def group_version(self, version: str = STORED) -> str:
        """Return what ``apiVersion`` says in this version."""
        return f"{self.group}/{version}" if self.group else version

    @property
    def delete_returns_object(self) -> bool:
        """Whether the answer to a deletion is the object, and not a Status (recorded)."""
        return self.group == DRA_GROUP or self.plural == "pods"

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources


@dataclass(frozen=True, slots=True)
class Served:
    """What one server serves of the table."""

    release: Release
    dra_versions: tuple[str, ...]
    """Served versions of resource.k8s.io, in order of preference."""
    gates: Mapping[str, bool]

    def versions(self, resource: Resource) -> tuple[str, ...]:
        """Return the served versions of a kind; () if the release does not have it yet, or a gate is off."""
        if resource.optional and resource.plural not in self.release.kinds:
            return ("v1beta1",) if resource.beta_gate and self.gates[resource.beta_gate] else ()
        if resource.gate and not self.gates[resource.gate]:
            return ()
        if resource.group != DRA_GROUP:
            return (STORED,)
        known = (STORED,) if resource.optional else DRA_VERSIONS
        return tuple(one for one in self.dra_versions if one in known)


_POD_SELECTORS = (
    *("spec.nodeName", "spec.restartPolicy", "spec.schedulerName"),
    *("status.phase", "status.podIP", "status.nominatedNodeName"),
)
_EVENT_SELECTORS = (
    *(f"involvedObject.{name}" for name in ("kind", "namespace", "name", "uid")),
    *("reason", "reportingComponent", "source", "type"),
)
_STATUS = ("status",)


def _dra(plural: str, kind: str, schema: Schema, **more: Any) -> Resource:
    return Resource(plural, kind, schema, DRA_GROUP, **more)


def _open(plural: str, kind: str, group: str = "", **more: Any) -> Resource:
    """Return a kind whose fields are kept as they come: an agent reads few of them."""
    return Resource(plural, kind, schema.OPEN_KIND, group, **more)


RESOURCES: tuple[Resource, ...] = (
    _dra("deviceclasses", "DeviceClass", schema_dra.DEVICE_CLASS, namespaced=False, counts_generations=True),
    _dra(
        "devicetaintrules",
        "DeviceTaintRule",
        schema_dra.DEVICE_TAINT_RULE,
        namespaced=False,
        subresources=_STATUS,
        optional=True,
        gate="DRADeviceTaintRules",
        counts_generations=True,
    ),
    _dra("resourceclaims", "ResourceClaim", schema_dra.RESOURCE_CLAIM, subresources=_STATUS),
    _dra("resourceclaimtemplates", "ResourceClaimTemplate", schema_dra.RESOURCE_CLAIM_TEMPLATE),
    _dra(
        "resourceslices",
        "ResourceSlice",
        schema_dra.RESOURCE_SLICE,
        namespaced=False,
        selectable=("spec.nodeName", "spec.driver"),
        counts_generations=True,
    ),
    Resource("nodes", "Node", schema.NODE, namespaced=False, subresources=_STATUS),
    Resource(
        "pods",
        "Pod",
        schema.POD,
        subresources=("status", "binding", "eviction"),
        selectable=_POD_SELECTORS,
        counts_generations=True,
    ),
    _open("events", "Event", selectable=_EVENT_SELECTORS),
    _open("namespaces", "Namespace", namespaced=False, subresources=_STATUS, selectable=("status.phase",)),
    _open("configmaps", "ConfigMap"),
    _open("leases", "Lease", "coordination.k8s.io"),
    _open("resourcequotas", "ResourceQuota"),
    _open("replicasets", "ReplicaSet", "apps"),
    _open("deployments", "Deployment", "apps", subresources=_STATUS, counts_generations=True),
    _open("statefulsets", "StatefulSet", "apps", subresources=_STATUS, counts_generations=True),
    _open("daemonsets", "DaemonSet", "apps"),
    _open("cronjobs", "CronJob", "batch"),
    _open(
        "mutatingadmissionpolicies",
        "MutatingAdmissionPolicy",
        "admissionregistration.k8s.io",
        namespaced=False,
        optional=True,
        beta_gate="MutatingAdmissionPolicy",
    ),
    Resource("jobs", "Job", schema.JOB, "batch", subresources=_STATUS, counts_generations=True),
)
BY_PLURAL: Mapping[str, Resource] = MappingProxyType({one.plural: one for one in RESOURCES})
BY_KIND: Mapping[str, Resource] = MappingProxyType({one.kind: one for one in RESOURCES})
