"""Kubelet's plugin watcher: it calls us. GetInfo answers from memory, Notify says how it went.

Kubelet gives GetInfo one second and repeats it after each of its own restarts, without our doing anything
(pkg/kubelet/pluginmanager). A refusal is remembered, shown, and tried again by kubelet alone.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import grpc
from msgspec import Struct

from drabridge.dra.facts import Observer, RegistrationChanged
from drabridge.wire import pluginregistration_pb2 as wire
from drabridge.wire import pluginregistration_pb2_grpc as rpc

log = logging.getLogger(__name__)

PLUGIN_TYPE = "DRAPlugin"
# Kubelet takes the first one that it knows as a DRA service; it ignores the others (plugin/registration.go).
SUPPORTED_VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")


class RegistrationState(Struct, frozen=True):
    """What kubelet said last. ``asked``: how often it called GetInfo."""

    registered: bool = False
    error: str = "kubelet has not asked yet"
    asked: int = 0


class RegistrationService(rpc.RegistrationServicer):
    """The server behind the registration socket."""

    def __init__(self, driver: str, endpoint: Path, observer: Observer) -> None:
        self.state = RegistrationState()
        self._observer = observer
        self._info = wire.PluginInfo(
            type=PLUGIN_TYPE, name=driver, endpoint=str(endpoint), supported_versions=SUPPORTED_VERSIONS
        )

    async def GetInfo(self, request: wire.InfoRequest, context: grpc.aio.ServicerContext[Any, Any]) -> wire.PluginInfo:
        state = self.state
        self.state = RegistrationState(state.registered, state.error, state.asked + 1)
        return self._info

    async def NotifyRegistrationStatus(
        self, request: wire.RegistrationStatus, context: grpc.aio.ServicerContext[Any, Any]
    ) -> wire.RegistrationStatusResponse:
        error = "" if request.plugin_registered else request.error or "kubelet gave no reason"
        self.state = RegistrationState(request.plugin_registered, error, self.state.asked)
        if request.plugin_registered:
            log.info("kubelet registered the DRA plugin", extra={"driver": self._info.name})
        else:
            log.error("kubelet refused the DRA plugin", extra={"driver": self._info.name, "error": error})
        self._observer(RegistrationChanged(request.plugin_registered, error))
        return wire.RegistrationStatusResponse()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Be served by it."""
        rpc.add_RegistrationServicer_to_server(self, server)
