"""Claims that are reallocated to other devices, or whose allocation cannot be read."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from drabridge.dra.claim_objects import ClaimObjects
from drabridge.dra.records import ClaimRecord, PreparedDevice, RecordState, RecordStore
from drabridge.ledger.entries import ClaimRef, Owner
from tests.support.dra_node import DRIVER, NODE, DraNode, a_node
from tests.support.waiting import until


async def _used(node: DraNode, name: str, *devices: str) -> Any:
    """A claim that a pod has had; its allocation stays."""
    claim = node.claims.add(name, *devices)
    await node.prepared(claim)
    await node.unprepare(claim)
    return claim


def _anew(node: DraNode, name: str, *devices: Any) -> None:
    """The claim's last pod ends and a new one is scheduled before the agent looks."""
    node.claims.deallocate(name)
    node.claims.allocate(name, *devices)


async def test_a_claim_that_is_allocated_anew_releases_its_former_device() -> None:
    async with a_node() as node:
        claim = await _used(node, "cl1", "gpu-1", "gpu-2")
        _anew(node, "cl1", "gpu-2", "gpu-3")
        assert [device.device_name for device in await node.prepared(claim)] == ["gpu-2", "gpu-3"]
        await until(lambda: node.owner("gpu-1") is Owner.NONE, why="the release")
        assert [node.owner(name) for name in ("gpu-2", "gpu-3")] == [Owner.DRA_PREPARED] * 2


async def test_an_answer_from_before_the_claim_was_allocated_anew_frees_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server reads the claim, it is allocated and prepared anew, and then its answer arrives."""
    server_reads = ClaimObjects.get

    async with a_node() as node:
        claim = await _used(node, "cl1", "gpu-1")
        node.claims.deallocate("cl1")

        async def late(self: ClaimObjects, ref: ClaimRef) -> Any:
            answer = await server_reads(self, ref)
            monkeypatch.undo()
            node.claims.allocate("cl1", "gpu-1")
            await node.prepared(claim)
            return answer

        monkeypatch.setattr(ClaimObjects, "get", late)
        assert not await node.driver.deallocations.release_if_deallocated(ClaimRef(claim.uid, "default", "cl1"))
        await node.unprepare(claim)
        assert node.owner("gpu-1") is Owner.DRA_GRANTED  # it is allocated still


async def test_a_claim_gets_what_was_released_while_the_server_was_asked_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The agent asks about idle claims by itself too: when that answer comes first, the device is free by then."""
    server_reads = ClaimObjects.get

    async with a_node() as node:
        former = ClaimRef((await _used(node, "cl1", "gpu-1")).uid, "default", "cl1")
        node.claims.deallocate("cl1")

        async def second(self: ClaimObjects, ref: ClaimRef) -> Any:
            answer = await server_reads(self, ref)
            if ref == former:
                monkeypatch.undo()
                assert await node.driver.deallocations.release_if_deallocated(former)
            return answer

        monkeypatch.setattr(ClaimObjects, "get", second)
        await node.prepared(node.claims.add("cl2", "gpu-1"))
        assert node.holders("gpu-1") == ["cl2"]


async def test_a_device_that_is_still_open_is_not_released_for_another() -> None:
    """A kubelet that has restarted does not unprepare the claim of a force-deleted pod before it prepares it anew."""
    users: dict[str, str] = {}

    async def in_use(names: set[str]) -> dict[str, str]:
        return {name: users[name] for name in names & users.keys()}

    async with a_node(start=False) as node:
        await node.start(in_use=in_use)
        claim = node.claims.add("cl1", "gpu-1")
        await node.prepared(claim)
        users["gpu-1"] = "process 7 (python)"
        _anew(node, "cl1", "gpu-2")
        other = node.claims.add("cl2", "gpu-1")
        before = node.cdi_files()

        assert "gpu-1 is open in process 7 (python)" in await node.refused(claim)
        assert "held by claim default/cl1" in await node.refused(other)
        assert node.cdi_files() == before

        users.clear()
        assert [device.device_name for device in await node.prepared(claim)] == ["gpu-2"]
        await node.prepared(other)


async def test_a_claim_that_never_had_the_device_does_not_wait_until_its_holder_closes_it() -> None:
    async def in_use(names: set[str]) -> dict[str, str]:
        return dict.fromkeys(names, "process 7 (python)")

    async with a_node(start=False) as node:
        await node.start(in_use=in_use)
        await node.prepared(node.claims.add("cl1", "gpu-1"))
        claim = node.claims.add("cl2", "gpu-1")
        device = PreparedDevice("gpu", NODE, "gpu-1")  # left by a crash during a refused prepare
        left = ClaimRecord(ClaimRef(claim.uid, "default", "cl2"), RecordState.STARTED, node.boot_id, (device,))
        RecordStore(node.state / "claims").save(left)
        assert await node.unprepare(claim) == {claim.uid: ""}
        assert node.holders("gpu-1") == ["cl1"]


async def test_two_claims_that_exchange_devices_do_not_wait_for_each_other() -> None:
    async with a_node() as node:
        claims = [await _used(node, "cl1", "gpu-1"), await _used(node, "cl2", "gpu-2")]
        _anew(node, "cl1", "gpu-2")
        _anew(node, "cl2", "gpu-1")
        for claim in claims:
            await node.prepared(claim)
        assert [node.holders(name) for name in ("gpu-1", "gpu-2")] == [["cl2"], ["cl1"]]


async def test_a_device_of_the_same_name_on_another_node_is_another_device() -> None:
    async with a_node() as node:
        await _used(node, "cl1", "gpu-1")
        _anew(node, "cl1", {"device": "gpu-1", "pool": "node-b"})
        await until(lambda: node.owner("gpu-1") is Owner.NONE, why="the release")


@pytest.mark.parametrize("results", [[{"driver": DRIVER, "pool": NODE}], "gpu-2", [7]])
async def test_an_allocation_that_cannot_be_read_releases_nothing(results: Any) -> None:
    async with a_node() as node:
        claim = await _used(node, "cl1", "gpu-1")
        store = node.api.objects.store  # no client could write it: a server of later days might
        ((resource, obj),) = [one for one in store.everything() if one[0].plural == "resourceclaims"]
        changed = copy.deepcopy(obj)
        changed["status"]["allocation"]["devices"]["results"] = results
        store.put(resource, changed)
        other = node.claims.add("cl2", "gpu-1")
        assert "held by claim default/cl1" in await node.refused(other)
        assert node.holders("gpu-1") == ["cl1"]
        assert "cannot be read" in await node.refused(claim)


async def test_a_prepared_device_stays_although_the_claim_has_other_devices_now() -> None:
    async with a_node() as node:
        claim = node.claims.add("cl1", "gpu-1")
        await node.prepared(claim)
        _anew(node, "cl1", "gpu-2")
        other = node.claims.add("cl2", "gpu-1")
        assert "held by claim default/cl1" in await node.refused(other)
        await node.unprepare(claim)
        await until(lambda: node.owner("gpu-1") is Owner.NONE, why="the release")
        await node.prepared(other)


async def test_after_a_reboot_a_claim_holds_its_device_though_the_api_server_cannot_be_asked() -> None:
    async with a_node() as node:
        claim = node.claims.add("cl1", "gpu-1")
        first = await node.prepared(claim)
        await node.reboot()
        assert node.owner("gpu-1") is Owner.DRA_GRANTED  # no container has it
        node.api.faults.fail(10**6, 503, resource="resourceclaims")
        assert await node.prepared(claim) == first
        assert node.owner("gpu-1") is Owner.DRA_PREPARED
        node.api.faults.heal()
        node.claims.deallocate("cl1")  # under the container
        other = node.claims.add("cl2", "gpu-1")
        assert "held by claim default/cl1" in await node.refused(other)
        assert node.owner("gpu-1") is Owner.DRA_PREPARED
        await node.unprepare(claim)
        await until(lambda: node.owner("gpu-1") is Owner.NONE, why="the release")


@pytest.mark.parametrize(("known", "lingers"), [(None, 30.0), (12.0, 12.0)], ids=["unknown", "known"])
async def test_an_unprepared_claim_lingers_for_the_default_grace_where_its_pods_grace_is_not_known(
    known: float | None, lingers: float
) -> None:
    """Its pod was force-deleted before the agent watched pods (kubernetes#141471)."""

    class Pods:
        def grace(self, claim: ClaimRef) -> float:
            return known or 30.0

        def lingers(self, claim: ClaimRef, grace: float) -> float:
            return grace  # they may all run yet

    followed = known is not None
    async with a_node(start=False) as node:
        await node.start(pods=lambda: Pods() if followed else None)
        claim = node.claims.add("cl1", "gpu-1")
        await node.prepared(claim)
        followed = True
        assert await node.unprepare(claim) == {claim.uid: ""}
        (held,) = node.ledger_service.ledger.entries["gpu-1"].claims
        assert held.lingers == lingers
        assert "gpu-1" in await node.refused(node.claims.add("cl2", "gpu-1"))
