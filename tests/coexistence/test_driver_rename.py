"""Under another driver name an agent starts only where no ledger of a former name says that its devices are held."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drabridge.coexistence.driver_rename import refuse_another_name
from drabridge.config.loader import load
from drabridge.errors import ConfigError
from drabridge.inventory.devices import Device
from drabridge.ledger.entries import Entry, Hold, Ledger, LedgerDevice, Owner
from drabridge.ledger.store import FILE, Store
from drabridge.system.paths import Paths
from tests.support.waiting import short_directory

NODE, FORMER, NEW = "node-a", "former.example.com", "new.example.com"
CONFIG = load(f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {NEW}
resources:
- {{name: example.com/port, match: [{{subsystem: tty}}]}}
- {{name: example.com/memory, match: [{{subsystem: mem}}]}}
""")


@pytest.fixture
def root() -> Iterator[Path]:
    with short_directory() as root:
        yield root


def ledger(root: Path, driver: str, *entries: Entry, node: str = NODE) -> Path:
    """Write the ledger that an agent of this driver left."""
    directory = root / "plugins" / driver
    directory.mkdir(parents=True)
    store = Store(directory, node=node)
    store.rewrite(Ledger.of(entries))
    store.close()
    return directory


def entry(name: str, *, held: bool, resource: str = "example.com/memory") -> Entry:
    device = LedgerDevice.of(Device(name, name, resource, f"/sys/devices/{name}"))
    return Entry(device, Owner.LEGACY, hold=Hold((name,))) if held else Entry(device)


def start(root: Path) -> None:
    refuse_another_name(Paths.of(NEW, kubelet=root), CONFIG, NODE)


def test_a_former_name_whose_devices_are_held_is_named_with_its_holders(root: Path) -> None:
    entries = [entry("free", held=False), entry("one", held=True), entry("two", held=True)]
    directory = ledger(root, FORMER, *entries, entry("other", held=True, resource="example.com/other"))
    with pytest.raises(ConfigError, match=f"the driver {FORMER} holds 2 of the configured devices: one is held") as it:
        start(root)
    assert it.value.hint == (
        f"Start the agent as {FORMER} again until the node is drained. If nothing of it runs any more, "
        f"remove {directory}"
    )


def test_only_held_devices_of_configured_resources_on_this_node_are_a_reason(root: Path) -> None:
    ledger(root, NEW, entry("own", held=True))
    ledger(root, FORMER, entry("free", held=False), entry("other", held=True, resource="example.com/other"))
    ledger(root, "copied.example.com", entry("elsewhere", held=True), node="node-b")
    (root / "plugins" / "aaa.vendor.com").mkdir()
    (root / "plugins" / "zzz.vendor.com").mkdir()
    start(root)


def test_a_damaged_ledger_is_a_reason_but_not_the_own_one_that_the_start_repairs(root: Path) -> None:
    own = ledger(root, NEW) / FILE
    own.write_bytes(b"{")
    start(root)
    ledger(root, "aaa.example.com", entry("free", held=False))
    damaged = ledger(root, FORMER, entry("free", held=False)) / FILE
    damaged.write_bytes(damaged.read_bytes()[:40])
    with pytest.raises(ConfigError, match=f"the driver {FORMER} may hold configured devices: "):
        start(root)
