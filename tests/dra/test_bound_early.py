"""A claim whose pod was bound by an older slice is leased its shared device by prepare itself."""

from __future__ import annotations

import time

import pytest

from drabridge.dra.records import ClaimRecord, ClaimRecords
from drabridge.inventory.devices import Snapshot
from drabridge.ledger.entries import Lane, LedgerDevice, Owner
from drabridge.ledger.events import ClaimAllocated, DeviceUse, Discovered
from tests.support.dra_node import a_node, gpu


async def test_a_claim_that_was_allocated_anew_meanwhile_keeps_what_it_has_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else kubelet could give that device to a pod, although the scheduler was told that it is the claim's."""
    async with a_node() as node:
        node.snapshot = Snapshot(2, (*node.snapshot.devices, gpu(9)))
        facts = tuple(map(LedgerDevice.of, node.snapshot.devices))
        await node.ledger_service.apply(Discovered(facts, time.time(), {"gpu-9": Lane.SHARED}))
        claim = node.claims.add("c", "gpu-9")
        save, owners = ClaimRecords.save, list[Owner]()

        async def save_later(records: ClaimRecords, record: ClaimRecord) -> None:
            if not owners:
                node.claims.deallocate("c")
                node.claims.allocate("c", "gpu-1")
                await node.ledger_service.apply(ClaimAllocated(record.claim, (DeviceUse("gpu-1"),), time.time()))
                owners.append(node.owner("gpu-1"))
                node.ledger_service.subscribe(lambda ledger, _: owners.append(ledger.entries["gpu-1"].owner))
            await save(records, record)

        monkeypatch.setattr(ClaimRecords, "save", save_later)
        (device,) = await node.prepared(claim)
        assert device.device_name == "gpu-1"
        assert set(owners) == {Owner.DRA_GRANTED, Owner.DRA_PREPARED}
        assert node.owner("gpu-9") is Owner.NONE
