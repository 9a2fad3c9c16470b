"""``python -m tests.cluster.peer DIRECTORY RESOURCE ID...``: another device plugin, that a vendor might have written.

It serves ``/dev/ID`` by device specs, until it is ended.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from deviceplugin import (
    Broadcast,
    ContainerAllocation,
    DeviceList,
    DeviceSpec,
    ListedDevice,
    ListedHealth,
    PluginServer,
)


class Peer:
    def __init__(self, resource: str, ids: Sequence[str]) -> None:
        self.resource = resource
        self._devices: DeviceList = Broadcast()
        self._devices.publish(tuple(ListedDevice(id_, ListedHealth.HEALTHY, ()) for id_ in ids))

    def devices(self) -> DeviceList:
        return self._devices

    def allocate(self, ids: Sequence[str]) -> ContainerAllocation:
        return ContainerAllocation(devices=tuple(DeviceSpec(f"/dev/test-{id_}", f"/dev/{id_}", "rw") for id_ in ids))


def main() -> None:
    directory, resource, *ids = sys.argv[1:]
    asyncio.run(PluginServer(Peer(resource, ids), directory=Path(directory), name="peer").run())


if __name__ == "__main__":
    main()
