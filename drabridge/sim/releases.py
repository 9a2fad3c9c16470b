"""List the Kubernetes releases: everything that the simulated parts do differently from one release to the next.

A new release is one new row. Unless a column says otherwise, its source is the release's own source code, and the
recordings in ``tests/sim/fixtures`` prove it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

NEVER = 99
GATES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "DRAAdminAccess": (34, 34),
        "DRAConsumableCapacity": (34, 36),
        "DRADeviceBindingConditions": (34, 36),
        "DRADeviceTaintRules": (35, 37),
        "DRADeviceTaints": (34, 36),
        "DRAExtendedResource": (34, 36),
        "DRAListTypeAttributes": (36, NEVER),
        "DRAPartitionableDevices": (34, 36),
        "DRAPrioritizedList": (34, 34),
        "DRAResourceClaimDeviceStatus": (34, 34),
        "DRAResourceClaimGranularStatusAuthorization": (36, 36),
        "KubeletPodResourcesDynamicResources": (26, 34),
        "KubeletPodResourcesGet": (26, 34),
        "KubeletPodResourcesListUseActivePods": (34, 34),
        "MutatingAdmissionPolicy": (34, 36),
        "NominatedNodeNameForExpectation": (34, 35),
        "ResourceHealthStatus": (34, 36),
        "ResourceHealthStatusMessage": (36, 36),
    }
)
"""Feature gates that a simulated part looks at (``pkg/features/kube_features.go``).

Gate -> the minors of the first release that knows it, and of the first that has it on by default.
"""


@dataclass(frozen=True, slots=True)
class Release:
    """One row of the table: how one release behaves."""

    minor: int
    """36 for Kubernetes 1.36."""
    patch: int
    """The patch of the release that was recorded; ``/version`` and the Node report it."""

    # -- API server
    control_plane: bool = True
    """False: only the kubelet of this release is imitated."""
    resource_versions: tuple[str, ...] = ("v1",)
    """Served versions of resource.k8s.io, in order of preference. All others are off by default."""
    kinds: frozenset[str] = frozenset()
    """Kinds that this release serves and others do not."""
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
    """In an allocation, a configuration for all requests does not name the requests."""

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

    @property
    def gates(self) -> Mapping[str, bool]:
        """Return the feature gates that the release knows, and whether they are on by default."""
        return {name: self.minor >= on for name, (known, on) in GATES.items() if self.minor >= known}

    def gates_with(self, changes: Mapping[str, bool] | None = None) -> dict[str, bool]:
        """Return every gate of the table: the release's default, or what ``changes`` says. Unknown ones are off.

        Raises ValueError for a change of a gate that the release does not know, or that nothing here looks at.
        """
        if unknown := (changes or {}).keys() - self.gates.keys():
            raise ValueError(f"unknown feature gates {sorted(unknown)}; known are {sorted(self.gates)}")
        return {**dict.fromkeys(GATES, False), **self.gates, **(changes or {})}


OLDEST = Release(  # 1.26 to 1.33: kubelets that serve limits alone
    minor=26,
    patch=0,
    control_plane=False,
    dra_services=("v1beta1.DRAPlugin",),
    share_ids=False,
)
V1_34 = replace(
    OLDEST,
    minor=34,
    patch=4,
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
    kinds=frozenset({"mutatingadmissionpolicies"}),
)
V1_37 = replace(
    V1_36,
    minor=37,
    patch=2,
    kinds=V1_36.kinds | {"devicetaintrules"},
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
"""The supported releases: control plane and kubelet."""
FIRST, *_, NEWEST = RELEASES
"""The oldest and the newest supported release."""
DEFAULT = "1.36"
"""What is imitated unless something else is asked for."""


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
