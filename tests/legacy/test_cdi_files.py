"""The CDI files of held devices while the hardware changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.containers.cdi_store import CdiStore
from drabridge.inventory.devices import Device, DeviceNode, Presence
from drabridge.ledger.entries import Entry, Hold, Ledger, LedgerDevice, Owner
from drabridge.legacy.cdi_files import LegacyCdiFiles

TTY, OTHER = DeviceNode("/dev/ttyUSB0", "", "rw", "c", 188, 0), DeviceNode("/dev/ttyUSB1", "", "rw", "c", 188, 1)
PORT = Device("port-a", "a", "example.com/port", nodes=(TTY,))
LEDGER = Ledger.of(
    [Entry(LedgerDevice("port-a", "example.com/port", ("a",)), owner=Owner.LEGACY, hold=Hold(units=("a",)))]
)


class Node:
    """A directory of CDI files, and the devices as they are."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = LegacyCdiFiles(CdiStore(directory, "port.example.com"))

    def restart(self, **changes: Any) -> None:
        self.files = LegacyCdiFiles(CdiStore(self.directory, "port.example.com"))
        self.files.restore(LEDGER, self._devices(changes))

    def becomes(self, **changes: Any) -> None:
        self.files.follow(LEDGER, self._devices(changes))

    def numbers(self) -> list[list[int]]:
        """Of the nodes that a container that starts now would get; a missing file: none can start."""
        (document,) = [json.loads(path.read_text()) for path in self.directory.glob("*.json")]
        nodes = document["devices"][0]["containerEdits"]["deviceNodes"]
        return [[node["major"], node["minor"]] for node in nodes]

    @property
    def startable(self) -> bool:
        return bool(list(self.directory.glob("*.json")))

    @staticmethod
    def _devices(changes: dict[str, Any]) -> dict[str, Device]:
        return {"port-a": replace(PORT, **changes)}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    found = Node(tmp_path)
    found.restart()
    assert found.numbers() == [[188, 0]]
    return found


@pytest.mark.parametrize("left", [(), (OTHER,)])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_node_that_its_driver_took_away_is_in_no_file(node: Node, left: Any, restarted: bool) -> None:
    change = node.restart if restarted else node.becomes
    change(presence=Presence.FAULTY, reason="its node is missing", nodes=left)
    assert not node.startable  # another device may have the number by now
    change(nodes=(OTHER,))
    assert node.numbers() == [[188, 1]]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_health_rule_takes_no_file_away(node: Node, restarted: bool) -> None:
    change = node.restart if restarted else node.becomes
    change(presence=Presence.FAULTY, reason="too hot")
    assert node.numbers() == [[188, 0]]


def test_a_device_that_is_gone_takes_its_file_along(node: Node) -> None:
    node.becomes(presence=Presence.GONE)
    assert not node.startable
