"""List the Kubernetes releases: everything that the simulated parts do differently from one release to the next.

A new release is one new row. Unless a column says otherwise, its source is the release's own source code, and the
recordings in ``tests/sim/fixtures`` prove it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType


class Gate(Enum):
    """The state of a feature gate in a release. A release does not know a gate that is not in its row."""

    OFF = "off by default"
    ON = "on by default"
    LOCKED = "locked to on"


@dataclass(frozen=True, slots=True)
class Release:
    """One row. Of gates only those of DRA, and those that a simulated part looks at, are listed."""

    minor: int
    """36 for Kubernetes 1.36."""
    patch: int
    """Of the release that was recorded; what ``/version`` and the Node say."""

    # -- all programs
    gates: Mapping[str, Gate]
    """``pkg/features/kube_features.go``; ``--help`` of the programs prints the same."""

    # -- API server
    control_plane: bool = True
    """False: only the kubelet of this release is imitated."""
    resource_versions: tuple[str, ...] = ("v1",)
    """Served versions of resource.k8s.io, in order of preference. All others are off by default."""
    kinds: frozenset[str] = frozenset()
    """Kinds that this release serves and others do not."""
    slice_selectors: tuple[str, ...] = ("spec.nodeName", "spec.driver")
    """Field selectors of ResourceSlices beside metadata.name."""
    taint_effects: tuple[str, ...] = ("NoExecute", "NoSchedule", "None")
    shows_empty_devices: bool = False
    """A slice without devices is shown with ``devices: null``."""
    drops_tolerations: bool = True
    """Tolerations of claims are dropped if DRADeviceTaints is off."""
    counters_beside_devices: bool = False
    """A slice's devices consume its own counters. Later counters are in slices of their own."""
    max_taints: int = 16
    """``DeviceTaintsMaxLength`` of ``k8s.io/api/resource/v1``."""

    # -- scheduler and controllers
    claims_block_owner: bool = False
    """Generated claims have ``blockOwnerDeletion`` in their owner reference."""
    configurations_repeat: bool = True
    """An allocation has a claim's configuration once for each request that the configuration is for."""
    configurations_for_all_name_none: bool = False
    """A configuration in an allocation that is for all requests does not name them."""

    # -- kubelet
    dra_services: tuple[str, ...] = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
    """The services of DRA drivers that kubelet can call."""
    health_services: tuple[str, ...] = ("v1alpha1.DRAResourceHealth",)
    """The health services that kubelet can call, in order of preference."""
    health_is_advertised: bool = False
    """A health service is opened only when the driver advertises it (``pickHealthService``). Before: always."""
    share_ids: bool = True
    """PodResources and kubelet's own file have the share ids of shared devices."""
    plugins_overlap: bool = False
    """Two instances of a device plugin may be connected at once: kubernetes#135437."""
    prepare_appends: bool = True
    """A repeated prepare adds its devices to the known ones: kubernetes#140274."""
    unprepares_for_strangers: bool = True
    """A pod that ends without having got its claim unprepares it, though another pod has it: kubernetes#140212."""

    @property
    def version(self) -> str:
        """Return the full version, as ``v1.36.3``."""
        return f"v1.{self.minor}.{self.patch}"

    def gates_with(self, changes: Mapping[str, bool] | None = None) -> dict[str, bool]:
        """Return every gate of the table: the release's default, or what ``changes`` says. Unknown ones are off.

        Raises ValueError for a change of a gate that the release does not know, that nothing here looks at, or that is
        locked: the real programs do not start with it.
        """
        if unknown := (changes or {}).keys() - self.gates.keys():
            raise ValueError(f"unknown feature gates {sorted(unknown)}; known are {sorted(self.gates)}")
        for name, on in (changes or {}).items():
            if not on and self.gates[name] is Gate.LOCKED:
                raise ValueError(f"cannot set feature gate {name} to false, feature is locked to true")
        defaults = {name: self.gates.get(name, Gate.OFF) is not Gate.OFF for name in GATES}
        return {**defaults, **(changes or {})}


OLDEST = Release(  # 1.26 to 1.33: kubelets that serve limits alone
    minor=26,
    patch=0,
    gates={
        "KubeletPodResourcesDynamicResources": Gate.OFF,
        "KubeletPodResourcesGet": Gate.OFF,
    },
    control_plane=False,
    dra_services=("v1beta1.DRAPlugin",),
    share_ids=False,
)
V1_34 = replace(
    OLDEST,
    minor=34,
    patch=4,
    gates={
        "DRAAdminAccess": Gate.ON,
        "DRAConsumableCapacity": Gate.OFF,
        "DRADeviceBindingConditions": Gate.OFF,
        "DRADeviceTaints": Gate.OFF,
        "DRAExtendedResource": Gate.OFF,
        "DRAPartitionableDevices": Gate.OFF,
        "DRAPrioritizedList": Gate.ON,
        "DRAResourceClaimDeviceStatus": Gate.ON,
        "KubeletPodResourcesDynamicResources": Gate.ON,
        "KubeletPodResourcesGet": Gate.ON,
        "KubeletPodResourcesListUseActivePods": Gate.ON,
        "MutatingAdmissionPolicy": Gate.OFF,
        "NominatedNodeNameForExpectation": Gate.OFF,
        "ResourceHealthStatus": Gate.OFF,
    },
    control_plane=True,
    taint_effects=("NoExecute", "NoSchedule"),
    shows_empty_devices=True,
    drops_tolerations=False,
    counters_beside_devices=True,
    max_taints=4,
    claims_block_owner=True,
    dra_services=("v1.DRAPlugin", "v1beta1.DRAPlugin"),
)
V1_35 = replace(
    V1_34,
    minor=35,
    patch=4,
    gates={
        **V1_34.gates,
        "DRADeviceTaintRules": Gate.OFF,
        "NominatedNodeNameForExpectation": Gate.ON,
    },
    taint_effects=("NoExecute", "NoSchedule", "None"),
    shows_empty_devices=False,
    drops_tolerations=True,
    counters_beside_devices=False,
    max_taints=16,
    claims_block_owner=False,
    share_ids=True,
)
V1_36 = replace(
    V1_35,
    minor=36,
    patch=3,
    gates={
        **V1_35.gates,
        "DRAAdminAccess": Gate.LOCKED,
        "DRAConsumableCapacity": Gate.ON,
        "DRADeviceBindingConditions": Gate.ON,
        "DRADeviceTaints": Gate.ON,
        "DRAExtendedResource": Gate.ON,
        "DRAListTypeAttributes": Gate.OFF,
        "DRAPartitionableDevices": Gate.ON,
        "DRAResourceClaimGranularStatusAuthorization": Gate.ON,
        "KubeletPodResourcesDynamicResources": Gate.LOCKED,
        "KubeletPodResourcesGet": Gate.LOCKED,
        "MutatingAdmissionPolicy": Gate.LOCKED,
        "ResourceHealthStatus": Gate.ON,
        "ResourceHealthStatusMessage": Gate.ON,
    },
    kinds=frozenset({"mutatingadmissionpolicies"}),
)
V1_37 = replace(
    V1_36,
    minor=37,
    patch=2,
    gates={
        **V1_36.gates,
        "DRADeviceTaintRules": Gate.ON,
        "DRAExtendedResource": Gate.LOCKED,
        "DRAPrioritizedList": Gate.LOCKED,
        "DRAResourceClaimDeviceStatus": Gate.LOCKED,
        "PodLevelResourceManagers": Gate.OFF,  # in 1.36, alpha, it shows nothing in PodResources
    },
    kinds=V1_36.kinds | {"devicetaintrules"},
    slice_selectors=(*V1_36.slice_selectors, "spec.pool.name"),  # kubernetes#138456
    configurations_repeat=False,
    configurations_for_all_name_none=True,
    health_services=("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"),
    health_is_advertised=True,
    plugins_overlap=True,
    prepare_appends=False,
    unprepares_for_strangers=False,
)

ROWS = (OLDEST, V1_34, V1_35, V1_36, V1_37)
RELEASES: Mapping[str, Release] = MappingProxyType({f"1.{row.minor}": row for row in ROWS if row.control_plane})
FIRST, *_, NEWEST = RELEASES
"""Of those that serve claims."""
"""The supported releases: control plane and kubelet."""
DEFAULT = "1.36"
"""What is imitated unless something else is asked for."""
GATES = frozenset(name for row in ROWS for name in row.gates)


def kubelet_of(text: str) -> Release:
    """Return the row for ``1.36``, ``v1.36`` or ``1.36.2``; for 1.26 to 1.33 the row ``OLDEST`` with that number.

    Raises ValueError for anything else.
    """
    major, _, rest = text.removeprefix("v").partition(".")
    number = rest.partition(".")[0]
    if major != "1" or not number.isdigit():
        raise ValueError(f"Kubernetes version {text!r}: expected a text like '1.36' or '1.36.2'")
    minor = int(number)
    if not ROWS[0].minor <= minor <= ROWS[-1].minor:
        raise ValueError(f"Kubernetes {text}: only 1.{ROWS[0].minor} to 1.{ROWS[-1].minor} are simulated")
    return replace(next(row for row in reversed(ROWS) if row.minor <= minor), minor=minor)


def release_of(text: str) -> Release:
    """Return the row of a release. Raises ValueError if it is unknown, or if only its kubelet is simulated."""
    row = kubelet_of(text)
    if not row.control_plane:
        raise ValueError(f"Kubernetes {text}: an API server is simulated of {', '.join(RELEASES)} only")
    return row
