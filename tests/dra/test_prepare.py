"""NodePrepareResources and NodeUnprepareResources, as kubelet calls them: over the socket, with claims from the API."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.inventory.devices import Device, DeviceNode, Presence
from drabridge.kube.api import UnreachableError
from drabridge.ledger.effects import Notify, RefusalCode, Refused, Side, Subject
from drabridge.ledger.entries import ClaimRef, Owner
from drabridge.wire import dra_v1_pb2, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc
from tests.support.dra_node import CONFIG, DRIVER, NODE, RESOURCE, DraNode, a_node, gpu, text_of
from tests.support.waiting import until


async def test_a_claim_gets_exactly_its_devices_and_gives_them_back() -> None:
    async with a_node() as node:
        claim = node.claims.add("cl1", "gpu-1", "gpu-2")

        first, second = await node.prepared(claim)

        assert (first.pool_name, first.device_name, list(first.request_names)) == (NODE, "gpu-1", ["gpu"])
        assert second.device_name == "gpu-2"
        assert first.cdi_device_ids[0] == f"{DRIVER}/device=claim-{claim.uid}-gpu-gpu-1"
        assert not first.HasField("share_id")
        spec = json.loads((node.root / "cdi" / f"{DRIVER}-device-claim-{claim.uid}.json").read_text())
        assert [d["name"] for d in spec["devices"]] == [f"claim-{claim.uid}-gpu-gpu-{n}" for n in (1, 2)]
        assert spec["devices"][0]["containerEdits"]["env"] == ["GPU=1,2"]
        assert node.owner("gpu-1") is Owner.DRA_PREPARED

        assert await node.unprepare(claim) == {claim.uid: ""}

        assert node.cdi_files() == []
        assert node.records() == []
        assert node.owner("gpu-1") is Owner.DRA_GRANTED  # until the API server has taken it back
        node.claims.deallocate("cl1")
        await until(lambda: node.owner("gpu-1") is Owner.NONE, why="the release")


async def test_no_claim_is_asked_about_before_it_is_known_which_versions_the_server_has() -> None:
    """A server answers 404 for a claim in an unknown API version, as for a claim that does not exist."""
    async with a_node(versions=("v1beta1",)) as node:
        await until(lambda: node.driver.state.api_version, why="the version")
        claim = node.claims.add("cl1", "gpu-1")
        await node.prepared(claim)
        await node.unprepare(claim)
        await node.stop()
        node.api.faults.fail(1, 503)
        await node.start()
        with pytest.raises(UnreachableError):
            await node.driver.deallocations.release_if_deallocated(ClaimRef(claim.uid, "default", "cl1"))
        await until(lambda: node.driver.state.api_version, why="the version")
        assert not await node.driver.deallocations.release_if_deallocated(ClaimRef(claim.uid, "default", "cl1"))
        assert node.owner("gpu-1") is Owner.DRA_GRANTED


async def test_an_empty_request_is_answered_at_once() -> None:
    async with a_node() as node:
        assert await node.prepare() == {}
        assert await node.unprepare() == {}
        assert node.api.requests == [] or all(r.resource != "resourceclaims" for r in node.api.requests)


async def test_a_repeated_request_gets_the_same_answer() -> None:
    async with a_node() as node:
        claim = node.claims.add("cl1", "gpu-1", "gpu-2")
        first = await node.prepared(claim)
        assert await node.prepared(claim) == first
        await node.restart()
        assert await node.prepared(claim) == first
        await node.reboot()
        assert node.cdi_files() == []
        assert await node.prepared(claim) == first
        assert len(node.cdi_files()) == 2  # devices and metadata
        assert [fact.outcome for fact in node.handled("prepare")] == ["ok", "replayed", "replayed", "replayed"]


async def test_unprepare_of_an_unknown_claim_succeeds() -> None:
    async with a_node() as node:
        stranger = dra_v1_pb2.Claim(namespace="default", name="x", uid="34553fd1-cf06-469c-b877-c1432ff67333")
        assert await node.unprepare(stranger) == {stranger.uid: ""}


def params(**fields: Any) -> dict[str, Any]:
    """An entry of allocation.devices.config from the claim."""
    parameters = {"apiVersion": "drabridge/v1alpha1", "kind": "DeviceConfig", **fields}
    return {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}


def edits(node: DraNode, claim: dra_v1_pb2.Claim) -> dict[str, Any]:
    """containerEdits of the claim's first device."""
    path = node.root / "cdi" / f"{DRIVER}-device-claim-{claim.uid}.json"
    document: dict[str, Any] = json.loads(path.read_text())["devices"][0]["containerEdits"]
    return document


async def test_a_device_of_another_claim_is_refused_with_its_holder_named() -> None:
    async with a_node() as node:
        first, second = node.claims.add("first", "gpu-1"), node.claims.add("second", "gpu-0", "gpu-1")
        await node.prepared(first)

        error = await node.refused(second)

        assert "gpu-1 is held by claim default/first" in error
        assert node.owner("gpu-0") is Owner.NONE  # all or nothing
        assert len(node.records()) == 1
        assert len(node.cdi_files()) == 2
        await node.unprepare(first)
        node.claims.delete("first")
        assert [device.device_name for device in await node.prepared(second)] == ["gpu-0", "gpu-1"]


async def test_a_device_that_was_freed_in_the_api_is_taken_over_inside_the_call() -> None:
    """Force-deleted pod: the claim is deallocated, and the next claim comes before anybody told the ledger. Nobody
    hears of the refusal that the first look inside the call gave.
    """
    async with a_node() as node:
        first = node.claims.add("first", "gpu-1")
        await node.prepared(first)
        await node.unprepare(first)
        node.claims.deallocate("first")

        assert await node.prepared(node.claims.add("second", "gpu-1"))
        assert node.told == []


async def test_a_refusal_is_reported_once_with_the_answer_that_kubelet_gets() -> None:
    async with a_node() as node:
        await node.prepared(node.claims.add("first", "gpu-1"))
        second = node.claims.add("second", "gpu-1")

        error = await node.refused(second)

        (counted, notice) = node.told
        assert counted == Refused(Side.DRA, RefusalCode.CLAIM_HELD, "gpu-1")
        assert isinstance(notice, Notify)
        assert (notice.subject, notice.reason, notice.uid) == (Subject.CLAIM, "DeviceRefused", second.uid)
        assert notice.message in error


async def test_a_claim_that_is_still_prepared_keeps_its_device_though_the_api_freed_it() -> None:
    async with a_node() as node:
        first = node.claims.add("first", "gpu-1")
        await node.prepared(first)
        node.claims.deallocate("first")

        error = await node.refused(node.claims.add("second", "gpu-1"))

        assert "held by claim default/first" in error
        assert "'drabridge lanes release gpu-1'" in error
        await until(lambda: node.tainted() == ["gpu-1"], why="the scheduler to be told that it is not free")


async def test_results_of_other_drivers_are_skipped_and_alternatives_name_their_request() -> None:
    async with a_node() as node:
        claim = node.claims.add(
            "cl",
            {"device": "nic-0", "driver": "other.example.com", "request": "nic"},
            {"device": "gpu-3", "request": "any/small"},
        )
        (device,) = await node.prepared(claim)
        assert (list(device.request_names), device.device_name) == (["any"], "gpu-3")
        metadata = node.state / "dra-device-metadata" / "default_cl" / "any" / "metadata.json"
        documents = [json.loads(line) for line in metadata.read_text().splitlines()]  # one for each version
        assert [document["requests"][0]["name"] for document in documents] == ["any/small"] * 2


async def test_admin_access_holds_nothing_and_sees_a_held_device() -> None:
    async with a_node() as node:
        owner = node.claims.add("owner", "gpu-1")
        await node.prepared(owner)
        admin = node.claims.add("admin", {"device": "gpu-1", "adminAccess": True})

        assert await node.prepared(admin)

        assert node.holders("gpu-1") == ["owner"]
        assert await node.unprepare(admin) == {admin.uid: ""}
        assert node.owner("gpu-1") is Owner.DRA_PREPARED


async def test_admin_access_keeps_over_a_restart_the_name_that_kubelet_has() -> None:
    async with a_node() as node:
        claim = node.claims.add("admin", {"device": "gpu-1", "adminAccess": True})
        (prepared,) = await node.prepared(claim)
        assert prepared.cdi_device_ids[0] == f"{DRIVER}/device=admin-{claim.uid}-gpu-gpu-1"
        await node.restart()
        (again,) = await node.prepared(claim)
        assert again.cdi_device_ids == prepared.cdi_device_ids
        spec = json.loads((node.root / "cdi" / f"{DRIVER}-device-claim-{claim.uid}.json").read_text())
        assert [d["name"] for d in spec["devices"]] == [f"admin-{claim.uid}-gpu-gpu-1"]


def shared_device() -> Device:
    return replace(gpu(0), name="shared-0", id="S0", resource="example.com/shared", capacity={"memory": 8 * 2**30})


def share(share_id: str, memory: str) -> dict[str, Any]:
    return {"device": "shared-0", "shareID": share_id, "consumedCapacity": {"memory": memory}}


SHARES = [f"11111111-1111-4111-8111-11111111111{n}" for n in range(4)]


async def test_shares_of_one_device_go_to_several_claims_and_twice_to_one() -> None:
    """DR26: the same device twice in one claim, told apart by the share id, down to the CDI name."""
    async with a_node(devices=(shared_device(),)) as node:
        one = node.claims.add("one", share(SHARES[0], "2Gi"), share(SHARES[1], "2Gi"))
        two = node.claims.add("two", share(SHARES[2], "4Gi"))

        first, second = await node.prepared(one)
        (third,) = await node.prepared(two)

        assert [d.share_id for d in (first, second, third)] == SHARES[:3]
        assert first.cdi_device_ids[0] == f"{DRIVER}/device=claim-{one.uid}-gpu-shared-0-{SHARES[0]}"
        assert len({d.cdi_device_ids[0] for d in (first, second, third)}) == 3
        three = node.claims.add("three", share(SHARES[3], "1Gi"))
        assert "shared-0 has 0 of memory left" in await node.refused(three)
        assert await node.unprepare(one) == {one.uid: ""}
        assert "shared-0 has 0 of memory left" in await node.refused(three)  # it may be prepared again
        node.claims.deallocate("one")
        assert await node.prepared(three)  # although the ledger was not told


async def test_v1beta1_gives_the_same_answer_without_share_ids() -> None:
    async with a_node(devices=(shared_device(),)) as node:
        claim = node.claims.add("one", share(SHARES[0], "2Gi"))
        stub = dra_v1beta1_pb2_grpc.DRAPluginStub(node._channel)
        request = dra_v1beta1_pb2.NodePrepareResourcesRequest(
            claims=[dra_v1beta1_pb2.Claim(namespace="default", name="one", uid=claim.uid)]
        )
        old = (await stub.NodePrepareResources(request)).claims[claim.uid]
        (new,) = await node.prepared(claim)
        assert list(old.devices[0].cdi_device_ids) == list(new.cdi_device_ids)
        assert old.devices[0].device_name == new.device_name
        gone = dra_v1beta1_pb2.NodeUnprepareResourcesRequest(claims=request.claims)
        assert (await stub.NodeUnprepareResources(gone)).claims[claim.uid].error == ""
        assert node.records() == []


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("gpu-9", "there is no device gpu-9 on this node"),
        ({"device": "gpu-1", "pool": "node-b"}, "is in the pool 'node-b'; this node's pool is 'node-a'"),
    ],
)
async def test_a_device_that_cannot_be_prepared_is_named(
    device: Any, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drabridge.dra.prepare.RETURN_SECONDS", 0.1)
    async with a_node() as node:
        assert expected in await node.refused(node.claims.add("cl", device))
        assert node.records() == []
        assert node.ledger_service.ledger.by_claim == {}


async def test_a_device_that_comes_back_within_the_call_is_waited_for() -> None:
    async with a_node() as node:
        await node.change(gpu_1=(Presence.FAULTY, "its node is missing"))
        answer = asyncio.ensure_future(node.prepared(node.claims.add("cl", "gpu-1")))
        await asyncio.sleep(0.3)
        assert not answer.done()
        await node.change(gpu_1=(Presence.PRESENT, ""))
        assert await answer


async def test_a_replaced_missing_or_unallocated_claim_is_refused() -> None:
    async with a_node() as node:
        claim = node.claims.add("cl", "gpu-1")
        other = dra_v1_pb2.Claim(namespace="default", name="cl", uid="34553fd1-cf06-469c-b877-c1432ff67333")
        assert "was replaced" in await node.refused(other)
        gone = dra_v1_pb2.Claim(namespace="default", name="gone", uid=other.uid)
        assert "does not exist any more" in await node.refused(gone)
        node.claims.deallocate("cl")
        assert "not allocated any more" in await node.refused(claim)
        assert node.records() == []


async def test_a_claim_that_was_allocated_anew_gives_up_the_old_devices() -> None:
    async with a_node() as node:
        claim = node.claims.add("cl", "gpu-1")
        await node.prepared(claim)
        node.claims.deallocate("cl")
        node.claims.allocate("cl", "gpu-2")

        (device,) = await node.prepared(claim)

        assert device.device_name == "gpu-2"
        assert node.owner("gpu-2") is Owner.DRA_PREPARED
        spec = (node.root / "cdi" / f"{DRIVER}-device-claim-{claim.uid}.json").read_text()
        assert "gpu-1" not in spec


async def test_one_bad_claim_of_a_request_does_not_affect_the_others() -> None:
    async with a_node() as node:
        good, bad = node.claims.add("good", "gpu-1"), node.claims.add("bad", "gpu-2", config=(params(nonsense=1),))
        answers = await node.prepare(good, bad)
        assert answers[good.uid].devices
        assert "parameters.nonsense: an unknown key" in answers[bad.uid].error
        assert node.owner("gpu-2") is Owner.NONE


async def test_a_claim_chooses_a_profile_and_sets_an_allowed_variable() -> None:
    async with a_node() as node:
        claim = node.claims.add("cl", "gpu-1", config=(params(profile="fast", env={"MODE": "turbo"}),))
        await node.prepared(claim)
        assert edits(node, claim)["env"] == ["GPU=1", "MODE=turbo", "PROFILE=fast-gpu-1"]
        for wrong, text in (
            (params(profile="root"), "there is no profile 'root'; known are fast"),
            (params(env={"LD_PRELOAD": "/x"}), "not a variable that may be set; allowed are MODE"),
        ):
            error = await node.refused(node.claims.add(f"wrong-{len(text)}", "gpu-2", config=(wrong,)))
            assert text in error
            assert "FromClaim, config[0]" in error


async def test_a_device_with_nothing_to_inject_gets_no_cdi_id() -> None:
    config = CONFIG.replace("kind: AgentConfig", "kind: AgentConfig\ndra: {metadata: false}")
    async with a_node(config, (Device("gpu-0", "g", RESOURCE),)) as node:
        (device,) = await node.prepared(node.claims.add("cl", "gpu-0"))
        assert list(device.cdi_device_ids) == []
        assert node.cdi_files() == []


async def test_a_device_whose_node_was_renumbered_keeps_its_name_and_gets_its_new_node() -> None:
    async with a_node() as node:
        claim = node.claims.add("cl", "gpu-1")
        (before,) = await node.prepared(claim)
        moved = replace(gpu(1), nodes=(DeviceNode("/dev/zero", "/dev/gpu1", "rw", "c", 1, 5),))
        await node.set_devices(gpu(0), moved, gpu(2), gpu(3))
        await until(lambda: edits(node, claim)["deviceNodes"][0]["minor"] == 5, why="the new node")
        assert (await node.prepared(claim))[0] == before


async def test_a_device_that_is_away_is_in_no_file_until_it_is_back() -> None:
    """Its number may belong to another device then; a restarted container must not get that device."""
    async with a_node() as node:
        claim = node.claims.add("cl", "gpu-1", "gpu-2")
        before = await node.prepared(claim)
        whole = (node.root / "cdi" / f"{DRIVER}-device-claim-{claim.uid}.json").read_text()
        assert "gpu-1" in whole
        await node.change(gpu_1=(Presence.GONE, "unplugged"))
        await until(lambda: "gpu-1" not in text_of(node, claim), why="the file without it")
        assert "gpu-2" in text_of(node, claim)
        assert await node.prepared(claim) == before  # kubelet gets what it got, and the runtime an error that heals
        assert "gpu-1" not in text_of(node, claim)
        await node.stop()
        node.snapshot = replace(node.snapshot, devices=tuple(d for d in node.snapshot.devices if d.name != "gpu-1"))
        await node.start()  # that never saw it
        assert "gpu-1" not in text_of(node, claim)
        await node.set_devices(*(gpu(n) for n in range(4)))
        await until(lambda: text_of(node, claim) == whole, why="the whole file")
