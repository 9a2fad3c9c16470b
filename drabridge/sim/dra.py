"""The DRA manager of the simulated kubelet (``pkg/kubelet/cm/dra/manager.go``)."""

from __future__ import annotations

from collections.abc import Mapping

from drabridge.sim.node import Node
from drabridge.sim.pods import Container, PodRecord, PodSpec
from drabridge.sim.podworker import PrepareError
from drabridge.sim.registration import Registration
from podresources.wire import v1_pb2 as podresources


class DraManager:
    """Prepares and unprepares claims; lives as long as one kubelet process."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def start(self, registration: Registration) -> None: ...

    async def stop(self) -> None: ...

    def sources_ready(self, known: Mapping[str, PodRecord]) -> None: ...

    async def prepare(self, pod: PodSpec) -> None:
        for name in pod.claim_names():
            raise PrepareError(f"prepare dynamic resources: claim {name}: no driver is registered")

    async def unprepare(self, pod: PodSpec) -> bool:
        return True

    def container_devices(self, pod: PodSpec, container: Container) -> tuple[list[str], list[tuple[str, str, str]]]:
        return [], []

    def dynamic_resources(self, pod: PodSpec, container: Container) -> list[podresources.DynamicResource]:
        return []
