"""NodePrepareResources and NodeUnprepareResources, as kubelet calls them: over the socket, with claims from the API."""

from __future__ import annotations

import json

from drabridge.ledger.model import Owner
from drabridge.wire import dra_v1_pb2
from tests.dra.helpers import DRIVER, NODE, a_node


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
        assert spec["devices"][0]["containerEdits"]["env"] == ["GPU=1"]
        assert node.owner("gpu-1") is Owner.DRA_PREPARED

        assert await node.unprepare(claim) == {claim.uid: ""}

        assert node.cdi_files() == []
        assert node.records() == []
        assert node.owner("gpu-1") is Owner.DRA_GRANTED  # until the API server has taken it back
        node.claims.deallocate("cl1")
        await node.wait_for(lambda: node.owner("gpu-1") is Owner.NONE, "the release")


async def test_an_empty_request_is_answered_at_once() -> None:
    async with a_node() as node:
        assert await node.prepare() == {}
        assert await node.unprepare() == {}
        assert node.api.requests == [] or all(r.resource != "resourceclaims" for r in node.api.requests)


async def test_repeating_gives_the_same_answer() -> None:
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


async def test_unprepare_of_the_unknown_is_a_success() -> None:
    async with a_node() as node:
        stranger = dra_v1_pb2.Claim(namespace="default", name="x", uid="34553fd1-cf06-469c-b877-c1432ff67333")
        assert await node.unprepare(stranger) == {stranger.uid: ""}
