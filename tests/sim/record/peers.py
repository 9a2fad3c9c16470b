"""The device plugin and the DRA driver on the node that is recorded, and the CDI files of their devices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deviceplugin.wire import v1beta1_pb2 as pb
from drabridge.wire import dra_v1_pb2, health_v1alpha1_pb2
from tests.support.kubelet_peers import GPU, Driver, Plugin, device

DRIVER = "obs.example.com"
GPUS = ("gpu-0", "gpu-1", "gpu-2", "gpu-3")


class RecordedPlugin(Plugin):
    """Four devices of which the lowest free ones are preferred, so that every run takes the same."""

    def __init__(self, root: Path) -> None:
        devices = [device("d0", numa=[0]), device("d1", numa=[0, 1]), device("d2"), device("d3", numa=[])]
        super().__init__(root, "recorded.sock", devices)

    async def GetPreferredAllocation(self, request: pb.PreferredAllocationRequest, context: Any) -> Any:
        (wanted,) = request.container_requests
        self.preferred = sorted(wanted.available_deviceIDs)[: wanted.allocation_size]
        return await super().GetPreferredAllocation(request, context)

    async def mark(self, **health: str) -> None:
        """Send the list anew; ``d1="Unhealthy"`` changes one device's health."""
        for one in self._devices:
            one.health = health.get(one.ID, "Healthy")
        await self.send(self._devices)


class RecordedDriver(Driver):
    """Prepares what the scheduler has allocated, one CDI device for each."""

    def __init__(self, root: Path, kubelet_root: Path) -> None:
        super().__init__(root, DRIVER)
        self.endpoint = kubelet_root / self.service_socket.relative_to(root)
        self.versions += ["v1alpha1.DRAResourceHealth"]

    def grant(self, claim: Any) -> None:
        """Answer for a claim (its JSON object) with the devices of its allocation."""
        results = claim["status"]["allocation"]["devices"]["results"]
        self.devices = {
            **self.devices,
            claim["metadata"]["name"]: [
                dra_v1_pb2.Device(
                    pool_name=one["pool"],
                    device_name=one["device"],
                    request_names=[one["request"]],
                    cdi_device_ids=[f"{DRIVER}/gpu={one['device']}"],
                    share_id=one.get("shareID"),
                )
                for one in results
            ],
        }

    async def report(self, device_name: str, *, healthy: bool, message: str = "") -> None:
        state = health_v1alpha1_pb2.HealthStatus.HEALTHY if healthy else health_v1alpha1_pb2.HealthStatus.UNHEALTHY
        one = health_v1alpha1_pb2.DeviceHealth(health=state, message=message, health_check_timeout_seconds=600)
        one.device.pool_name, one.device.device_name = "node-a", device_name
        await self.health.put(health_v1alpha1_pb2.NodeWatchResourcesResponse(devices=[one]))


def write_cdi(directory: Path) -> Sequence[Path]:
    """Write CDI files for the devices of both; they set a variable. Returns the files."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for kind, names in ((f"{DRIVER}/gpu", (*GPUS, "big")), (GPU, ("d0", "d1", "d2", "d3"))):
        devices = [{"name": name, "containerEdits": {"env": [f"DEVICE={name}"]}} for name in names]
        path = directory / f"recorded-{kind.replace('/', '-')}.json"
        path.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": devices}))
        written.append(path)
    return written
