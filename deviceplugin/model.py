"""Values that a plugin and the library exchange: frozen, hashable, free of protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field


class ListedHealth(StrEnum):
    """The words kubelet knows (deviceplugin/v1beta1/constants.go); every other string counts as unhealthy."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"


class ListedDevice(Struct, frozen=True):
    """One entry of the list that kubelet sees.

    ``id`` must be unique across all resources of the node: kubelet's device -> pod lookup ignores the resource name
    (devicemanager/manager.go). ``numa_nodes`` may hold what sysfs says, -1 included: what kubelet must not see
    (-1, and node numbers from 64 on, which topologymanager's bit mask cannot hold) is left out on the wire.
    """

    id: str
    health: ListedHealth = ListedHealth.HEALTHY
    numa_nodes: tuple[int, ...] = ()


class ContainerMount(Struct, frozen=True):
    """A bind mount of a host path into the container."""

    container_path: str
    host_path: str
    read_only: bool = False


class DeviceSpec(Struct, frozen=True):
    """A device node of the host in the container; ``permissions`` is a non-empty subset of ``rwm``."""

    container_path: str
    host_path: str
    permissions: str = "rw"


class ContainerAllocation(Struct, frozen=True):
    """What one container gets.

    Kubelet replays it for the pod's whole life: everything in it must stay valid.
    """

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[ContainerMount, ...] = ()
    devices: tuple[DeviceSpec, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
