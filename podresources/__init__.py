"""A client, command and Prometheus exporter for kubelet's PodResources API.

Who holds which device, CPU and memory on this node, over both device APIs, from kubelet's socket alone::

    with podresources.SyncClient() as kubelet:
        for allocation in kubelet.list().allocations:
            print(allocation.holder, allocation.device_key)

What the API cannot tell is listed in ``podresources.model``. Names are imported when first used, so that the command's
``--help``, the model and the exporter do not pay for gRPC.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from podresources.backoff import Backoff
    from podresources.client import Client
    from podresources.errors import PodResourcesError
    from podresources.features import KubeletFeatures, Support
    from podresources.model import Allocatable, Api, DeviceKey, Holder, NodeSnapshot, PodAllocation
    from podresources.sync import SyncClient

# gRPC reads these when it is first imported: it then logs no ended connections, and has no handlers around fork().
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

_HOME = {
    "Allocatable": "model",
    "PodAllocation": "model",
    "Api": "model",
    "Backoff": "backoff",
    "Client": "client",
    "DeviceKey": "model",
    "KubeletFeatures": "features",
    "Holder": "model",
    "PodResourcesError": "errors",
    "NodeSnapshot": "model",
    "Support": "features",
    "SyncClient": "sync",
}

__all__ = [
    "Allocatable",
    "Api",
    "Backoff",
    "Client",
    "DeviceKey",
    "Holder",
    "KubeletFeatures",
    "NodeSnapshot",
    "PodAllocation",
    "PodResourcesError",
    "Support",
    "SyncClient",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
