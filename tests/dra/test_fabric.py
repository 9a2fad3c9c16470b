"""Devices that several nodes reach, as kubelet and containers see them: prepared anywhere, held by no node's ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.dra.recorded_claims import recorded_claims, with_pool_in_use
from drabridge.evidence.kubelet import claims_of
from drabridge.wire import dra_v1_pb2
from podresources.model import Claim, ClaimDevice, Container, NodeSnapshot, Pod, SocketIdentity
from tests.support.dra_node import CONFIG, DRIVER, NODE, DraNode, a_node, gpu, text_of
from tests.support.waiting import short_directory, until

POOL = f"{DRIVER}/fabric"
FABRIC = f"""\
{CONFIG}
fabric:
- name: lobby
  attributes: {{type: {{value: camera}}}}
  env: {{CAMERA_URL: "rtsp://{{name}}.cam.example/main"}}
  mounts: [{{hostPath: /etc/cameras, containerPath: "/cameras/{{name}}"}}]
  nodes: [{{path: /dev/null, as: /dev/lobby}}]
  claimConfig:
    env: [MODE]
    defaultProfile: hooked
    profiles:
      hooked:
        prepare: {{command: [/bin/sh, -c, 'echo "$DRABRIDGE_PHASE $DRABRIDGE_DEVICE" >> HOOKS']}}
        unprepare: {{command: [/bin/sh, -c, 'echo "$DRABRIDGE_PHASE $DRABRIDGE_DEVICE" >> HOOKS']}}
- name: gpu-0
  env: {{SAME_NAME: "as a device of the node"}}
- {{name: fallback, env: {{CAMERA_URL: other}}}}
- {{name: door-gpu-0}}
"""


def with_hooks(folder: Path) -> str:
    return FABRIC.replace("HOOKS", str(folder / "hooks"))


def camera(name: str = "lobby", request: str = "gpu") -> dict[str, Any]:
    return {"device": name, "pool": POOL, "request": request}


def edits(node: DraNode, claim: dra_v1_pb2.Claim) -> dict[str, Any]:
    """What the claim's CDI file gives, by device name."""
    return {one["name"]: one["containerEdits"] for one in json.loads(text_of(node, claim))["devices"]}


async def test_a_container_gets_the_device_and_no_ledger_hears_of_it(tmp_path: Path) -> None:
    async with a_node(with_hooks(tmp_path)) as node:
        claim = node.claims.add("c", camera(), camera("gpu-0"))
        lobby, other = await node.prepared(claim)
        assert (lobby.pool_name, lobby.device_name) == (POOL, "lobby")
        found = edits(node, claim)
        given = found[lobby.cdi_device_ids[0].partition("=")[2]]
        assert "CAMERA_URL=rtsp://lobby.cam.example/main" in given["env"]
        assert "SAME_NAME=as a device of the node" in given["env"], "a request's devices set each other's variables"
        assert given["mounts"][0]["hostPath"] == "/etc/cameras"
        assert given["mounts"][0]["containerPath"] == "/cameras/lobby"
        assert given["deviceNodes"] == [{"path": "/dev/lobby", "hostPath": "/dev/null", "permissions": "rw"}]
        assert other.device_name == "gpu-0"
        assert all(not entry.holders for entry in node.ledger_service.ledger.entries.values())
        own = node.claims.add("own", "gpu-0")
        assert len(await node.prepared(own)) == 1, "the node's device of that name is another one"
        assert await node.unprepare(claim) == {claim.uid: ""}
        assert (tmp_path / "hooks").read_text().split("\n")[:2] == ["prepare lobby", "unprepare lobby"]
        assert node.records() == [f"{own.uid}.json"]
        assert node.published() == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"], "a node publishes its own devices only"


async def test_a_device_is_not_taken_for_the_nodes_of_its_name_that_is_paused_nor_for_a_fallback(
    tmp_path: Path,
) -> None:
    async with a_node(with_hooks(tmp_path), start=False) as node:
        await node.start(paused=lambda: {"gpu-0": "a test"})
        claim = node.claims.add("c", camera("gpu-0"), camera(), camera("fallback"))
        assert len(await node.prepared(claim)) == 3
        for given in edits(node, claim).values():
            assert "CAMERA_URL=rtsp://lobby.cam.example/main,other" in given["env"]


async def test_a_claim_may_have_devices_of_both_kinds_and_its_status_tells_of_the_nodes_own(tmp_path: Path) -> None:
    async with a_node(with_hooks(tmp_path)) as node:
        claim = node.claims.add("c", "gpu-1", camera(request="cam"))
        assert [one.device_name for one in await node.prepared(claim)] == ["gpu-1", "lobby"]
        assert node.holders("gpu-1") == ["c"]
        await until(lambda: "devices" in node.claims.get("c")["status"], why="the claim's status")
        assert [one["device"] for one in node.claims.get("c")["status"]["devices"]] == ["gpu-1"]
        await node.unprepare(claim)
        assert (tmp_path / "hooks").read_text() == "prepare lobby\nunprepare lobby\n"


async def test_two_nodes_prepare_one_claim(tmp_path: Path) -> None:
    async with a_node(with_hooks(tmp_path)) as node:
        with short_directory() as root:
            other = DraNode(root, node.api, with_hooks(tmp_path), name="node-b")
            await other.start()
            try:
                claim = node.claims.add("c", camera())
                assert [one.device_name for one in await node.prepared(claim)] == ["lobby"]
                assert [one.device_name for one in await other.prepared(claim)] == ["lobby"]
                await node.unprepare(claim)
                assert other.records() == [f"{claim.uid}.json"], "what the other node has stays"
                await other.unprepare(claim)
            finally:
                await other.stop()


async def test_kubelets_answer_is_the_same_after_a_restart_and_after_a_reboot(tmp_path: Path) -> None:
    async with a_node(with_hooks(tmp_path)) as node:
        claim = node.claims.add("c", camera())
        before = await node.prepared(claim)
        await node.restart()
        assert text_of(node, claim), "the file that the container's runtime reads is there"
        assert await node.prepared(claim) == before
        assert (tmp_path / "hooks").read_text() == "prepare lobby\n"
        await node.reboot()
        assert await node.prepared(claim) == before
        assert (tmp_path / "hooks").read_text() == "prepare lobby\n" * 2, "a reboot takes what hooks did"
        assert all(not entry.holders for entry in node.ledger_service.ledger.entries.values())


async def test_a_claim_that_is_deleted_in_the_middle_is_unprepared_all_the_same(tmp_path: Path) -> None:
    async with a_node(with_hooks(tmp_path)) as node:
        claim = node.claims.add("c", camera())
        await node.prepared(claim)
        node.claims.delete("c")
        assert "does not exist any more" in await node.refused(claim)
        assert await node.unprepare(claim) == {claim.uid: ""}
        assert node.records() == []
        assert node.cdi_files() == []


async def test_an_agent_whose_list_lacks_the_device_says_what_to_do_and_keeps_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drabridge.dra.prepare.RETURN_SECONDS", 0.3)
    async with a_node(with_hooks(tmp_path)) as node:
        claim = node.claims.add("c", camera())
        await node.prepared(claim)
        elsewhere = await node.refused(node.claims.add("hall", {**camera(), "pool": f"{POOL}/hall"}))
        assert "fabric/hall" in elsewhere
        before = text_of(node, claim)
        node.config = replace(node.config, fabric=())
        node.driver.reconfigure(node.config)
        error = await node.refused(node.claims.add("new", camera()))
        assert f"device lobby of the pool {POOL} is not in this node's configuration (fabric)" in error
        assert "the same configuration" in error
        await node.set_devices(*map(gpu, range(3)))
        await until(lambda: len(node.published()) == 3, why="the changed inventory")
        assert text_of(node, claim) == before, "its container may be started again"
        assert await node.unprepare(claim) == {claim.uid: ""}
        assert (tmp_path / "hooks").read_text() == "prepare lobby\nunprepare lobby\n", "clean-up is as it was recorded"


async def test_a_start_takes_no_device_of_the_node_for_held_and_its_pool_for_renamed(tmp_path: Path) -> None:
    async with a_node(with_hooks(tmp_path)) as node:
        claim = node.claims.add("c", camera("gpu-0"), camera("door-gpu-0"))
        await node.prepared(claim)
        assert not [name for name in edits(node, claim) if name.endswith("-gpu-0")], "a file without a record counts"
        ledger = node.ledger_service.ledger
        directory = node.state / "claims"
        assert recorded_claims(directory, node.boot_id, ledger) == ((), frozenset())
        lost = replace(ledger, node=replace(ledger.node, lost="by a test"))
        assert with_pool_in_use(node.config, directory, NODE, lost) == node.config
        used = Claim("default", "c", (ClaimDevice(DRIVER, POOL, "gpu-0"),))
        pod = Pod("default", "p", (Container("main", claims=(used,)),))
        assert claims_of(NodeSnapshot((pod,), (), SocketIdentity(0, 0, 0)), DRIVER) == ()
