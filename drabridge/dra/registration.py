"""Answer kubelet's plugin watcher.

GetInfo says who we are; by NotifyRegistrationStatus kubelet says whether it accepts us.
Kubelet gives GetInfo one second, so it is answered from memory, and calls it again after each of its own restarts
(pkg/kubelet/pluginmanager). A refusal is remembered and shown; kubelet tries again by itself.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import grpc
from msgspec import Struct

from drabridge.dra.observer import Observer, RegistrationChanged
from drabridge.kube.versions import KUBELET_SERVICES
from drabridge.wire import pluginregistration_pb2 as wire
from drabridge.wire import pluginregistration_pb2_grpc as rpc

log = logging.getLogger(__name__)

PLUGIN_TYPE = "DRAPlugin"


class RegistrationState(Struct, frozen=True):
    """What kubelet said last. ``since``: when it said so, in monotonic seconds."""

    registered: bool = False
    error: str = "kubelet has not asked yet"
    since: float = 0.0


class RegistrationService(rpc.RegistrationServicer):
    """The server behind the registration socket."""

    def __init__(self, driver: str, endpoint: Path, observer: Observer) -> None:
        self.state = RegistrationState()
        self._observer = observer
        self._info = wire.PluginInfo(
            type=PLUGIN_TYPE,
            name=driver,
            endpoint=str(endpoint),
            supported_versions=[service.supported_version for service in KUBELET_SERVICES],
        )

    @property
    def driver(self) -> str:
        """The driver's name, under which kubelet knows the plugin."""
        return self._info.name

    async def GetInfo(self, request: wire.InfoRequest, context: grpc.aio.ServicerContext[Any, Any]) -> wire.PluginInfo:
        return self._info

    async def NotifyRegistrationStatus(
        self, request: wire.RegistrationStatus, context: grpc.aio.ServicerContext[Any, Any]
    ) -> wire.RegistrationStatusResponse:
        error = "" if request.plugin_registered else request.error or "kubelet gave no reason"
        self.state = RegistrationState(request.plugin_registered, error, time.monotonic())
        if request.plugin_registered:
            log.info("kubelet registered the DRA plugin", extra={"driver": self.driver})
        else:
            log.error("kubelet refused the DRA plugin", extra={"driver": self.driver, "reason": error})
        self._observer(RegistrationChanged(request.plugin_registered, error))
        return wire.RegistrationStatusResponse()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Let ``server`` serve the registration."""
        rpc.add_RegistrationServicer_to_server(self, server)
