"""Learn what a kubelet supports, so that an old one's empty answer is not mistaken for an empty node."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace


class Support(StrEnum):
    """What this client has seen of a feature."""

    UNKNOWN = "unknown"
    YES = "yes"
    NO = "no"


class KubeletFeatures(Struct, frozen=True):
    """Observed, not configured. A restarted kubelet may be another version: the client then starts again.

    ``get`` and ``allocatable``: whether kubelet serves the method. ``dynamic_resources``: whether its List has shown a
    ResourceClaim; it becomes NO together with ``get``, because the gates of both are on by default since 1.34
    (KEP-3695), and YES only when seen.
    """

    get: Support = Support.UNKNOWN
    allocatable: Support = Support.UNKNOWN
    dynamic_resources: Support = Support.UNKNOWN

    @property
    def active_pods_only(self) -> Support:
        """Whether List leaves out pods that have ended.

        It cannot be observed; it is inferred from ``get``, whose gate is on by default since the same release, 1.34.

        Source: gate KubeletPodResourcesListUseActivePods, kubernetes #132028.
        """
        return self.get

    def after_list(self, has_dynamic_resources: bool) -> KubeletFeatures:
        """Return what is known after a List. A List without claims proves nothing."""
        return replace(self, dynamic_resources=Support.YES) if has_dynamic_resources else self

    def after_allocatable(self, served: bool) -> KubeletFeatures:
        """Return what is known after GetAllocatableResources was served, or refused as unsupported."""
        return replace(self, allocatable=Support.YES if served else Support.NO)

    def after_get(self, served: bool) -> KubeletFeatures:
        """Return what is known after Get was served (a missing pod counts), or refused as unsupported."""
        if served:
            return replace(self, get=Support.YES)
        seen = self.dynamic_resources is Support.YES
        return replace(self, get=Support.NO, dynamic_resources=Support.YES if seen else Support.NO)

    def notes(self) -> tuple[str, ...]:
        """Return what a person must know before trusting what is absent; empty for a current kubelet."""
        found = []
        if self.get is Support.NO:
            found.append(
                "this kubelet does not serve Get, so it is older than 1.34 or has KubeletPodResourcesGet off: "
                "List may also show pods that have ended; check their phase with the API server"
            )
        if self.dynamic_resources is Support.NO:
            found.append(
                "this kubelet has shown no ResourceClaim and very likely cannot (gate "
                "KubeletPodResourcesDynamicResources, on since 1.34): devices held through DRA are not in this answer"
            )
        if self.allocatable is Support.NO:
            found.append(
                "this kubelet does not serve GetAllocatableResources (before 1.23, or gate off): "
                "devices that nobody holds are not in this answer"
            )
        return tuple(found)
