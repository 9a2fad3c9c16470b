"""What differs between kubelet releases, as flags with the release that changed them."""

from __future__ import annotations

from dataclasses import dataclass

from drabridge.sim.release import minor_of


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The observable differences between releases; built from a version text such as ``1.36`` or ``1.33``."""

    minor: int

    @classmethod
    def of(cls, version: str) -> Behaviour:
        """Raises ValueError for a text that is not ``1.<minor>`` with an optional patch."""
        return cls(minor_of(version))

    @property
    def clients_keyed_by_socket(self) -> bool:
        """Two instances of a plugin may overlap: kubernetes#135437, in 1.37."""
        return self.minor >= 37

    @property
    def lists_active_pods_only(self) -> bool:
        """Gate KubeletPodResourcesListUseActivePods, 1.34."""
        return self.minor >= 34

    @property
    def podresources_get(self) -> bool:
        """Gate KubeletPodResourcesGet, on since 1.34."""
        return self.minor >= 34

    @property
    def podresources_dynamic(self) -> bool:
        """Gate KubeletPodResourcesDynamicResources, on since 1.34."""
        return self.minor >= 34

    @property
    def share_ids(self) -> bool:
        """``share_id`` in PodResources: 1.35."""
        return self.minor >= 35

    @property
    def cdi_ids_accumulate(self) -> bool:
        """The CDI list of a claim's n-th device holds those of the devices before it: 1.34 to 1.36.2, observed."""
        return 34 <= self.minor <= 36

    @property
    def prepare_appends(self) -> bool:
        """Devices of a repeated prepare are added to those known: kubernetes#140274, fixed in 1.37.

        1.36.2 does it; later patches of 1.34 to 1.36 have the fix as well.
        """
        return self.minor <= 36

    @property
    def unprepares_for_strangers(self) -> bool:
        """The end of a pod that never got the claim unprepares it under the one that has it: #140212, fixed in 1.37."""
        return self.minor <= 36

    @property
    def dra_v1(self) -> bool:
        """Service ``v1.DRAPlugin``: 1.34."""
        return self.minor >= 34

    @property
    def health_v1(self) -> bool:
        """``v1.DRAResourceHealth``, opened only when the driver advertises a health service: 1.37."""
        return self.minor >= 37

    @property
    def health_v1alpha1(self) -> bool:
        """``v1alpha1.DRAResourceHealth``: kept for three releases beside v1, gone in 1.40 (kubernetes#139477)."""
        return self.minor < 40

    @property
    def pod_level_resources(self) -> bool:
        """Exclusive CPUs and memory of whole pods in PodResources: kubernetes#138738, 1.37."""
        return self.minor >= 37

    @property
    def skips_dra_backed_at_start(self) -> bool:
        """GetDeviceRunContainerOptions ignores resources served by a claim: kubernetes#141426.

        It came when 1.37 was nearly out (August 2026): not assumed there.
        """
        return self.minor >= 38
