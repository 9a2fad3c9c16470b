"""List the features that some clusters lack: how each is detected, what is missing without it, what provides it.

No version numbers are compared: the server or kubelet is asked, or its answers are examined. To add a feature, add a
row here and to :func:`needed_by`, and its question where it is asked. One of slices is a row of ``GATED`` in
``offers/slices.py`` alone.

Metadata files in containers (KEP-5304) have no row: no server takes part in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from drabridge.config.schema import Config
from drabridge.offers.slices import GATED
from podresources import KubeletFeatures, Support


class FeatureState(StrEnum):
    """What is known of one feature."""

    THERE = "there"
    MISSING = "missing"
    UNKNOWN = "unknown"  # not asked yet, or nobody here may ask

    @classmethod
    def of(cls, found: bool | None) -> FeatureState:
        """Return the state for yes, no and not known."""
        return cls.UNKNOWN if found is None else cls.THERE if found else cls.MISSING


class AskedBy(StrEnum):
    """How a feature is detected, in words."""

    DISCOVERY = "discovery of admissionregistration.k8s.io"
    DEVICE_CLASS = "a dry run of a DeviceClass"
    SLICE = "a dry run of a ResourceSlice"
    CLAIM_STATUS = "what the API server keeps of the first claim's status that the agent writes"
    HEALTH_STREAM = "whether kubelet opens the stream of devices' health"
    POD_RESOURCES = "kubelet's PodResources answers"


class ClusterFeature(Struct, frozen=True):
    """One row. ``name`` is its feature gate's or its kind's; ``lacks``, ``given_by`` and ``without`` are phrases."""

    name: str
    asked_by: AskedBy
    lacks: str
    given_by: str
    without: str

    @property
    def sentence(self) -> str:
        """Say in one sentence what is missing, what that means, and what gives it."""
        return f"{self.lacks} ({self.given_by}): {self.without}"


class FeatureRow(Struct, frozen=True, rename="camel"):
    """One feature of one cluster, as documents have it. ``sentence`` is empty unless the feature is missing."""

    name: str
    state: FeatureState
    asked_by: AskedBy
    sentence: str


POLICIES = "MutatingAdmissionPolicy"
EXTENDED_NAMES = "DRAExtendedResource"
DEVICE_STATUS = "DRAResourceClaimDeviceStatus"
HEALTH_IN_PODS = "ResourceHealthStatus"
CLAIMS_IN_LIST = "KubeletPodResourcesDynamicResources"
GET_OF_ONE_POD = "KubeletPodResourcesGet"

_ON_IN_1_34 = "kubelet's gate {}, on by default from Kubernetes 1.34"

FEATURES: Mapping[str, ClusterFeature] = {
    row.name: row
    for row in (
        ClusterFeature(
            POLICIES,
            AskedBy.DISCOVERY,
            "the API server has no MutatingAdmissionPolicy",
            "Kubernetes 1.36 and later; in 1.34 and 1.35 its gate MutatingAdmissionPolicy with "
            "--runtime-config=admissionregistration.k8s.io/v1beta1=true, both of the API server",
            "namespaces cannot be switched to claims, so their manifests must be rewritten",
        ),
        ClusterFeature(
            EXTENDED_NAMES,
            AskedBy.DEVICE_CLASS,
            "the API server keeps no extendedResourceName of a DeviceClass",
            f"gate {EXTENDED_NAMES}, on by default from Kubernetes 1.36",
            "pods with limits get devices from kubelet alone, and only pods that name claims get them from DRA",
        ),
        *(
            ClusterFeature(feature, AskedBy.SLICE, row.lacks, row.given_by, row.without)
            for feature, row in GATED.items()
        ),
        ClusterFeature(
            DEVICE_STATUS,
            AskedBy.CLAIM_STATUS,
            "the API server keeps no status.devices of a claim",
            f"gate {DEVICE_STATUS}, on by default from Kubernetes 1.33",
            "a claim does not show the state of its devices, and drabridge status does",
        ),
        ClusterFeature(
            HEALTH_IN_PODS,
            AskedBy.HEALTH_STREAM,
            "kubelet does not ask for the health of devices",
            f"gate {HEALTH_IN_PODS} of kubelet and API server, on by default from Kubernetes 1.36",
            "the status of a pod does not say that a device of its claims is faulty, and drabridge status does",
        ),
        ClusterFeature(
            CLAIMS_IN_LIST,
            AskedBy.POD_RESOURCES,
            "kubelet's PodResources List shows no claims",
            _ON_IN_1_34.format(CLAIMS_IN_LIST),
            "which pods have devices by claims is known from the agent's own records and the API server alone",
        ),
        ClusterFeature(
            GET_OF_ONE_POD,
            AskedBy.POD_RESOURCES,
            "kubelet's PodResources has no Get",
            _ON_IN_1_34.format(GET_OF_ONE_POD),
            "podresources get reads the whole List, which may have pods that have ended",
        ),
    )
}


def of_kubelet(found: KubeletFeatures) -> Mapping[str, FeatureState]:
    """Return the features that kubelet's PodResources answers have shown."""
    known = {Support.YES: FeatureState.THERE, Support.NO: FeatureState.MISSING, Support.UNKNOWN: FeatureState.UNKNOWN}
    return {CLAIMS_IN_LIST: known[found.dynamic_resources], GET_OF_ONE_POD: known[found.get]}


def feature_rows(states: Mapping[str, FeatureState]) -> list[FeatureRow]:
    """Return a row for every feature, in the table's order. What ``states`` does not have is unknown."""
    return [
        FeatureRow(
            row.name,
            state := states.get(row.name, FeatureState.UNKNOWN),
            row.asked_by,
            row.sentence if state is FeatureState.MISSING else "",
        )
        for row in FEATURES.values()
    ]


def needed_by(config: Config, *, leases: bool) -> frozenset[str]:
    """Return the features that this configuration uses. ``leases``: a device shall be offered to both sides.

    No configuration needs the feature that shows health in a pod's status: only readers of that status do.
    """
    serving = [one for one in config.resources if one.lanes.uses_dra] if config.dra.enabled else []
    classes = [one.device_class for one in serving if one.device_class is not None]
    uses: Mapping[str, bool] = {
        **{feature: row.needed(serving, leases) for feature, row in GATED.items()},
        EXTENDED_NAMES: any(one.extended_resource_name for one in classes),
        DEVICE_STATUS: bool(serving) and config.dra.claim_status,
        CLAIMS_IN_LIST: bool(serving),
    }
    return frozenset(name for name, is_used in uses.items() if is_used)


def reference() -> str:
    """Return the table of all features for ``docs/reference/features.md``, as Markdown."""
    head = ["| feature | found out by | what is told where it is missing |", "|---|---|---|"]
    return "\n".join([*head, *(f"| `{row.name}` | {row.asked_by} | {row.sentence} |" for row in FEATURES.values())])
