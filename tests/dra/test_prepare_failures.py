"""Prepare and unprepare while the API server, a file, the client or the agent itself fails."""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

import pytest

from drabridge.ledger.entries import Owner
from drabridge.wire import dra_v1_pb2
from tests.support.dra_node import DraNode, a_node
from tests.support.waiting import until


async def _under_way(node: DraNode) -> tuple[dra_v1_pb2.Claim, asyncio.Future[dict[str, Any]]]:
    """A claim and its prepare, which goes on until the API server answers."""
    claim = node.claims.add("cl", "gpu-1")
    node.api.faults.fail(50, 503, verb="get", resource="resourceclaims")
    late = asyncio.ensure_future(node.prepare(claim))
    await until(lambda: claim.uid in node.driver._preparer._preparing, why="the prepare")
    return claim, late


async def test_a_short_failure_of_the_api_server_is_retried_inside_the_call() -> None:
    async with a_node() as node:
        claim = node.claims.add("cl", "gpu-1")
        node.api.faults.fail(2, 503, verb="get", resource="resourceclaims")
        assert await node.prepared(claim)


async def test_without_the_api_server_a_replay_and_unprepare_work_and_a_new_claim_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_node() as node:
        claim, new = node.claims.add("cl", "gpu-1"), node.claims.add("new", "gpu-2")
        first = await node.prepared(claim)
        node.api.faults.partition()
        assert await node.prepared(claim) == first
        monkeypatch.setattr("drabridge.dra.prepare.BUDGET_SECONDS", 2)
        assert "no answer from the API server" in await node.refused(new)
        assert await node.unprepare(claim) == {claim.uid: ""}
        assert node.owner("gpu-1") is Owner.DRA_GRANTED  # no source has shown that it is free
        assert node.cdi_files() == []
        node.api.faults.heal()


async def test_unprepare_works_when_the_claim_is_deleted_and_when_its_record_is_damaged() -> None:
    async with a_node() as node:
        first, second = node.claims.add("first", "gpu-1"), node.claims.add("second", "gpu-2")
        await node.prepared(first)
        await node.prepared(second)
        node.claims.delete("first")
        (node.state / "claims" / f"{second.uid}.json").write_text('{"version": 1, "state": "Prep')

        assert await node.unprepare(first, second) == {first.uid: "", second.uid: ""}

        await until(lambda: node.owner("gpu-1") is Owner.NONE, why="the release")
        assert node.cdi_files() == []
        (aside,) = node.records()
        assert aside.startswith(f"{second.uid}.json.corrupt-")
        assert node.owner("gpu-2") is Owner.DRA_GRANTED


async def test_a_damaged_record_does_not_free_its_device_at_a_restart() -> None:
    async with a_node() as node:
        claim = node.claims.add("cl", "gpu-1")
        answer = await node.prepared(claim)
        (node.state / "claims" / f"{claim.uid}.json").write_bytes(b"\0" * 4096)
        files = node.cdi_files()
        await node.restart()
        assert node.cdi_files() == files  # a container may be using them
        assert "held by claim" in await node.refused(node.claims.add("other", "gpu-1"))
        assert await node.prepared(claim) == answer


async def test_a_client_that_gives_up_does_not_cut_the_work_short() -> None:
    async with a_node() as node:
        claim, late = await _under_way(node)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        await node.unprepare(node.claims.add("other", "gpu-2"))  # on the same connection: it has heard of the end
        node.api.faults.heal()
        await until(lambda: node.handled("prepare"), why="the end of the work")
        assert node.handled("prepare")[0].outcome == "ok"
        assert await node.prepared(claim)
        assert node.handled("prepare")[1].outcome == "replayed"


async def test_two_calls_at_once_are_one_prepare() -> None:
    async with a_node() as node:
        claim = node.claims.add("cl", "gpu-1")
        node.api.faults.fail(4, 503, verb="get", resource="resourceclaims")  # it is not over when the other comes
        first, second = await asyncio.gather(node.prepared(claim), node.prepared(claim))
        assert first == second
        assert len(node.handled("prepare")) == 1


async def test_unprepare_while_a_prepare_is_running_leaves_nothing_behind() -> None:
    """Kubelet's call timed out and the pod was deleted. Nothing that the late prepare did may stay."""
    async with a_node() as node:
        claim, late = await _under_way(node)

        assert await node.unprepare(claim) == {claim.uid: ""}

        assert "kubelet unprepared the claim meanwhile" in (await late)[claim.uid].error
        assert node.records() == []
        assert node.cdi_files() == []
        assert node.owner("gpu-1") is Owner.NONE


async def test_the_agent_may_stop_in_the_middle_of_a_prepare() -> None:
    async with a_node() as node:
        claim = node.claims.add("cl", "gpu-1")
        node.api.faults.fail(3, 503, verb="get", resource="resourceclaims")
        late = asyncio.ensure_future(node.prepare(claim))
        await asyncio.sleep(0.05)
        await node.restart()
        await asyncio.gather(late, return_exceptions=True)
        assert node.owner("gpu-1") in (Owner.NONE, Owner.DRA_PREPARED)
        assert await node.prepared(claim)


async def test_a_cdi_directory_that_cannot_be_written_rolls_everything_back() -> None:
    async with a_node() as node:
        shutil.rmtree(node.root / "cdi", ignore_errors=True)
        (node.root / "cdi").write_text("in the way")
        claim = node.claims.add("cl", "gpu-1")
        assert "cannot keep CDI files in" in await node.refused(claim)
        assert node.owner("gpu-1") is Owner.DRA_GRANTED  # the scheduler still means it for this claim
        assert node.records() == []
        (node.root / "cdi").unlink()
        assert await node.prepared(claim)
