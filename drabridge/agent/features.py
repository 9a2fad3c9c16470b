"""Say which features this cluster has, and which of them the configuration needs."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import to_builtins

from drabridge.config.schema import Config
from drabridge.kube import features
from drabridge.kube.features import FeatureState, feature_rows
from drabridge.offers.slices import GATED
from drabridge.status.document import Document
from podresources import KubeletFeatures, Support

_STATES = {Support.YES: FeatureState.THERE, Support.NO: FeatureState.MISSING, Support.UNKNOWN: FeatureState.UNKNOWN}


def of_kubelet(found: KubeletFeatures) -> Mapping[str, FeatureState]:
    """Return the features that kubelet's PodResources answers have shown."""
    return {features.CLAIMS_IN_LIST: _STATES[found.dynamic_resources], features.GET_OF_ONE_POD: _STATES[found.get]}


def needed_by(config: Config, *, leases: bool) -> frozenset[str]:
    """Return the features that this configuration uses. ``leases``: a device shall be offered to both sides.

    No configuration needs the feature that shows health in a pod's status: only readers of that status do.
    """
    serving = [one for one in config.resources if one.lanes.uses_dra] if config.dra.enabled else []
    uses: Mapping[str, bool] = {
        **{feature: row.needed(serving, leases) for feature, row in GATED.items()},
        features.EXTENDED_NAMES: any(one.device_class and one.device_class.extended_resource_name for one in serving),
        features.DEVICE_STATUS: bool(serving) and config.dra.claim_status,
        features.CLAIMS_IN_LIST: bool(serving),
    }
    return frozenset(name for name, is_used in uses.items() if is_used)


def feature_documents(
    config: Config, states: Mapping[str, FeatureState], kubelet: KubeletFeatures, *, leases: bool
) -> list[Document]:
    """Return the rows of the status document. ``states``: what the DRA side found."""
    needed = needed_by(config, leases=leases)
    rows = feature_rows({**states, **of_kubelet(kubelet)})
    return [{**to_builtins(row), "needed": row.name in needed} for row in rows]
