"""Serve device plugins to kubelet: servers, registration, restarts, preferred allocation.

Knows no hardware.

    devices: DeviceList = Broadcast()
    devices.publish((ListedDevice("radio-1", ListedHealth.HEALTHY, (0,)),))
    server = PluginServer(plugin, directory=Path("/var/lib/kubelet/device-plugins"), name="radio")
    await server.run()

where ``plugin`` has ``resource``, ``devices()`` and, as wanted, the methods of ``Allocator``, ``Preferrer`` and
``PreStarter``. The values and the pure parts import neither gRPC nor watchdog; ``PluginServer`` does.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from deviceplugin.api import Allocator, DeviceList, Plugin, Preferrer, PreStarter, require_healthy
from deviceplugin.broadcast import Broadcast, Versioned
from deviceplugin.errors import AllocationError, DevicePluginError, KubeletDownError, RegistrationError, SocketError
from deviceplugin.model import ContainerAllocation, ContainerMount, DeviceSpec, ListedDevice, ListedHealth
from deviceplugin.observer import (
    Allocated,
    BindFailed,
    Bound,
    Fact,
    KubeletSeen,
    ListSent,
    Observer,
    PhaseChanged,
    Preferred,
    PreStarted,
    Registered,
    RegisterFailed,
    StreamEnded,
    StreamOpened,
)
from deviceplugin.preference import ReplicaPolicy, Unit, prefer
from deviceplugin.registration import RegistrationPhase
from deviceplugin.sockets import kubelet_process, remove_stale
from deviceplugin.timeouts import Timeouts

if TYPE_CHECKING:
    from deviceplugin.inotify import Watcher
    from deviceplugin.server import PluginServer, ServerState

# gRPC reads these when it is first imported: its INFO lines are noise, its fork handlers break subprocesses.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__all__ = [
    "Allocated",
    "AllocationError",
    "Allocator",
    "BindFailed",
    "Bound",
    "Broadcast",
    "ContainerAllocation",
    "ContainerMount",
    "DeviceList",
    "DevicePluginError",
    "DeviceSpec",
    "Fact",
    "KubeletDownError",
    "KubeletSeen",
    "ListSent",
    "ListedDevice",
    "ListedHealth",
    "Observer",
    "PhaseChanged",
    "Plugin",
    "PluginServer",
    "PreStarted",
    "PreStarter",
    "Preferred",
    "Preferrer",
    "RegisterFailed",
    "Registered",
    "RegistrationError",
    "RegistrationPhase",
    "ReplicaPolicy",
    "ServerState",
    "SocketError",
    "StreamEnded",
    "StreamOpened",
    "Timeouts",
    "Unit",
    "Versioned",
    "Watcher",
    "kubelet_process",
    "prefer",
    "remove_stale",
    "require_healthy",
]

_LAZY = {
    "PluginServer": "deviceplugin.server",
    "ServerState": "deviceplugin.server",
    "Watcher": "deviceplugin.inotify",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
