"""``python -m tests.cluster.peer DIRECTORY RESOURCE ID...``: another device plugin, that a vendor might have written.

It serves ``/dev/ID`` by device specs, or with ``--cdi=VENDOR/CLASS`` the CDI device of that name, until it is ended.
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
    def __init__(self, resource: str, ids: Sequence[str], kind: str = "") -> None:
        self.resource = resource
        self._kind = kind
        self._devices: DeviceList = Broadcast()
        self._devices.publish(tuple(ListedDevice(id_, ListedHealth.HEALTHY, ()) for id_ in ids))

    def devices(self) -> DeviceList:
        return self._devices

    def allocate(self, ids: Sequence[str]) -> ContainerAllocation:
        if self._kind:
            return ContainerAllocation(cdi_devices=tuple(f"{self._kind}={id_}" for id_ in ids))
        return ContainerAllocation(devices=tuple(DeviceSpec(f"/dev/test-{id_}", f"/dev/{id_}", "rw") for id_ in ids))


def main() -> None:
    kinds = [word.removeprefix("--cdi=") for word in sys.argv if word.startswith("--cdi=")]
    directory, resource, *ids = (word for word in sys.argv[1:] if not word.startswith("--"))
    asyncio.run(PluginServer(Peer(resource, ids, *kinds), directory=Path(directory), name="peer").run())


if __name__ == "__main__":
    main()
