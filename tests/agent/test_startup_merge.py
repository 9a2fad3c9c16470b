"""Which claims an agent believes at its start: records, kubelet, CDI files, and what a reboot changes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drabridge.agent.startup_merge import StartupMerge, _in_use
from drabridge.containers.cdi_spec import CdiDevice, ContainerEdits, claim_device_name
from drabridge.containers.cdi_store import CdiStore
from drabridge.dra.records import ClaimRecord, PreparedDevice, RecordState, RecordStore
from drabridge.evidence.kubelet import KubeletList
from drabridge.ledger import startup_events
from drabridge.ledger.entries import ClaimRef, Entry, Ledger, LedgerDevice
from drabridge.ledger.events import ClaimDevices, DeviceUse, RecordLost
from drabridge.system.paths import Paths

DRIVER = "gpu.example.com"
CLAIM = ClaimRef("34553fd1-cf06-469c-b877-c1432ff67333", "default", "c")
NAMELESS = ClaimDevices(ClaimRef(CLAIM.uid), (DeviceUse("gpu-1"),))  # as its CDI file tells of it
NAMED = ClaimDevices(CLAIM, (DeviceUse("gpu-1"),))
LEDGER = Ledger.of(Entry(LedgerDevice(f"gpu-{n}", "r", (f"GPU-{n}",))) for n in range(2))
SHOWN = KubeletList({}, (NAMED,))


class Node:
    """What a merge reads."""

    def __init__(self, root: Path) -> None:
        paths = Paths.of(DRIVER, kubelet=root, state=root, cdi=root / "cdi")
        self.records = RecordStore(paths.claim_records)
        self.cdi = CdiStore(paths.cdi, DRIVER)
        service: Any = SimpleNamespace(ledger=LEDGER, now=float)
        kubelet: Any = SimpleNamespace()
        self.merge = StartupMerge(service, kubelet, self.cdi, paths, root / "boot_id")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Directories with nothing in them, and a ledger of two devices."""
    (tmp_path / "boot_id").write_text("this\n")
    return Node(tmp_path)


def _claims(node: Node, listed: KubeletList | None, *, rebooted: bool = False) -> tuple[ClaimDevices, ...]:
    return _in_use(LEDGER, node.merge._findings(listed, None, LEDGER.entries, rebooted=rebooted))


def _quarantined(listed: KubeletList, claims: tuple[ClaimDevices, ...]) -> tuple[str, ...]:
    found = startup_events.StartupFindings(0.0, listed=listed.pods, claims=listed.claims)
    return next(
        (one.devices for one in startup_events.events(LEDGER, found, claims) if isinstance(one, RecordLost)), ()
    )


def write_file(node: Node) -> None:
    name = claim_device_name(CLAIM.uid, "r", "gpu-1")
    node.cdi.write(node.cdi.claim_spec(CLAIM.uid, [CdiDevice(name, ContainerEdits(env={"A": "1"}))]))


def write_record(node: Node, boot: str) -> None:
    device = PreparedDevice("r", "node-a", "gpu-1")
    node.records.save(ClaimRecord(CLAIM, RecordState.COMPLETED, boot, (device,)))


@pytest.mark.parametrize("listed", [None, SHOWN])
@pytest.mark.parametrize("file", [False, True])
@pytest.mark.parametrize("rebooted", [False, True])
@pytest.mark.parametrize("record", ["", "this", "earlier"])
def test_a_claim_is_held_unless_it_was_prepared_before_the_reboot(
    node: Node, record: str, rebooted: bool, file: bool, listed: KubeletList | None
) -> None:
    if record:
        write_record(node, record)
    if file:
        write_file(node)
    if record:  # it says all that is needed, whatever lies there
        expected = (NAMED,) if record == "this" else ()
    elif rebooted:
        expected = ()
    else:
        expected = (NAMED,) if listed else (NAMELESS,) if file else ()
    assert _claims(node, listed, rebooted=rebooted) == expected


def test_a_claim_without_a_name_from_kubelet_is_known_by_its_record_or_not_at_all(node: Node) -> None:
    unnamed = ClaimDevices(ClaimRef("", CLAIM.namespace, CLAIM.name), (DeviceUse("gpu-1"), DeviceUse("gone")))
    listed = KubeletList({}, (unnamed,))
    assert _claims(node, listed) == ()
    assert _quarantined(listed, ()) == ("gpu-1",)
    assert _quarantined(listed, (NAMED,)) == ()
    assert _quarantined(listed, (NAMELESS,)) == ("gpu-1",)
    assert _quarantined(SHOWN, ()) == ()


def test_a_record_from_a_backup_does_not_hide_what_kubelet_shows(node: Node) -> None:
    """The claim was reallocated since: the devices that either source names are held."""
    record = ClaimRecord(CLAIM, RecordState.COMPLETED, "this", (PreparedDevice("r", "node-a", "gpu-0"),))
    node.records.save(record)
    assert _claims(node, SHOWN) == (ClaimDevices(CLAIM, (DeviceUse("gpu-0"), DeviceUse("gpu-1"))),)


def test_a_record_knows_more_than_kubelet_shows(node: Node) -> None:
    """Admin access holds nothing, and neither kubelet nor a CDI file shows it."""
    record = ClaimRecord(CLAIM, RecordState.COMPLETED, "this", (PreparedDevice("r", "node-a", "gpu-1", admin=True),))
    node.records.save(record)
    write_file(node)
    assert _claims(node, SHOWN) == (ClaimDevices(CLAIM, (DeviceUse("gpu-1", admin=True),)),)
