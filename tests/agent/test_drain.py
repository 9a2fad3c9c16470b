"""``drabridge drain``: free devices move to the legacy lane and stay there, claims that hold devices are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drabridge.cli import main
from drabridge.sim.cluster import SimCluster
from tests.support.agent_on_cluster import (
    BOTH_LANES,
    allocate,
    bridge,
    claim_pod,
    devices_in_slices,
    end_claim,
    healthy,
    limits_pod,
)
from tests.support.agent_process import DRIVER, RESOURCE, AgentProcess, drain_command, held_by, pod
from tests.support.agent_process import node as legacy_node
from tests.support.standby import beside
from tests.support.waiting import until

Json = dict[str, Any]


async def command(agent: AgentProcess, *words: str, output: str = "json") -> tuple[int, str, str]:
    return await drain_command("--socket", str(agent.control), *words, output=output)


async def drain(agent: AgentProcess, *words: str) -> tuple[int, Json]:
    code, out, err = await command(agent, *words)
    assert out, err
    found: Json = json.loads(out)
    return code, found


async def give(cluster: SimCluster, name: str, device: str) -> None:
    """What a scheduler does that has an old view of node-a."""
    await cluster.apply(claim_pod(name))
    allocate(cluster, name, [device])


async def test_a_drain_moves_what_is_free_and_names_what_claims_hold() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("c1") + "---\n" + limits_pod("l1"))
        await cluster.wait_pod("c1")
        await cluster.wait_pod("l1")
        await until(lambda: held_by(agent, "l1", 1), 10, agent.text)  # kubelet names it after the Allocate
        code, found = await drain(agent)
        assert (code, found["complete"], found["inLegacyLane"]) == (1, False, 3), found
        (claim,) = found["claims"]
        assert (claim["namespace"], claim["name"], claim["phase"]) == ("default", "c1", "prepared")
        assert claim["pods"] == ["default/c1"]
        (device,) = claim["devices"]
        assert [row["device"] for row in found["moving"]] == [device]
        assert [(row["pod"], row["namespace"]) for row in found["pods"]] == [("l1", "default")]
        assert f"claim default/c1 has {device}, prepared (pod default/c1)" in found["because"]
        assert devices_in_slices(cluster) == set()
        code, screen, progress = await command(agent, output="table")
        assert code == 1
        assert "NOT DRAINED" in screen
        assert "default/c1" in screen
        assert "Terminating" in screen
        assert progress == "", "no move is in progress any more"

        await end_claim(cluster, "c1")
        code, found = await drain(agent, "--wait", "60")
        assert (code, found["because"], found["inLegacyLane"]) == (0, [], 4)
        assert cluster.get("pods", "l1")["status"]["phase"] == "Running"  # type: ignore[index]
        await until(lambda: len(healthy(cluster)) == 4, 10, agent.text)
        code, screen, _ = await command(agent, output="table")
        assert (code, "drained: no claim has a device" in screen) == (0, True)


async def test_a_claim_whose_pod_was_not_seen_to_end_holds_for_the_grace_period() -> None:
    async with bridge(dra_reconcile_seconds=0.2) as (agent, cluster, _):
        await cluster.apply(claim_pod("c1").replace("PeriodSeconds: 1", "PeriodSeconds: 1800"))
        await cluster.wait_pod("c1")
        await cluster.delete("pods", "c1", force=True)

        async def unprepared() -> bool:
            return [row["phase"] for row in (await drain(agent))[1]["claims"]] == ["unprepared"]

        await until(unprepared, 30, agent.text)
        code, screen, _ = await command(agent, output="table")
        assert code == 1
        assert "unprepared, its processes may go on until 2" in screen
        assert "delete their pods" not in screen


async def test_a_drained_node_offers_nothing_to_claims_until_the_drain_is_undone() -> None:
    floors = {"lanes: {legacy: 2, dra: 2}": "lanes: {legacy: 2, dra: 2, minDra: 1}"}
    async with bridge(_with(floors)) as (agent, cluster, _):
        assert (await drain(agent))[0] == 0
        code, body = await agent.ask("/lanes", json.dumps({"resource": RESOURCE, "legacy": 0}).encode())
        assert code == 400
        assert b"drabridge drain --undo" in body
        annotation = {f"{DRIVER}/lanes": json.dumps({RESOURCE: {"legacy": 0, "dra": 4}})}
        bare = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "annotations": annotation}}
        await cluster.apply(bare)
        await agent.stop()
        await agent.start()  # it stays so over a restart
        await agent.ready()
        document = await agent.status()
        assert [row["lanes"] for row in document["resources"]] == [{"legacy": 4}]
        assert document["resources"][0]["wanted"] == {"legacy": "*", "dra": "0", "source": "drain"}
        assert "drabridge drain --undo" in " ".join(document["notes"])
        assert devices_in_slices(cluster) == set()
        code, found = await drain(agent, "--undo")
        assert (code, found["drained"]) == (0, False)
        await until(lambda: len(devices_in_slices(cluster)) == 4, 20, agent.text)


async def test_an_allocated_claim_that_cannot_be_prepared_delays_the_drain() -> None:
    """Kubelet still calls unprepare when the pod is deleted; without a driver it would wait for ever."""
    async with bridge() as (agent, cluster, _):
        assert (await drain(agent))[0] == 0
        device = "no-such-device"
        await give(cluster, "late", device)
        code, document = await drain(agent)
        assert code == 1, document
        assert [(row["name"], row["phase"], row["devices"]) for row in document["claims"]] == [
            ("late", "allocated", [device])
        ]
        await end_claim(cluster, "late")
        assert (await drain(agent, "--wait", "60"))[0] == 0


async def test_without_an_api_server_a_node_is_not_reported_as_drained() -> None:
    async with bridge(_with({"lanes: {legacy: 2, dra: 2}": "lanes: {legacy: 4, dra: 0}"})) as (agent, cluster, _):
        assert (await drain(agent))[0] == 0
        await cluster.api.stop()
        code, document = await drain(agent)
        assert code == 1
        assert document["because"] == ["the API server cannot be asked whether claims have devices of this node"]


async def test_cleaning_is_refused_while_a_claim_holds_and_leaves_nothing_behind_afterwards() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("c1"))
        await cluster.wait_pod("c1")
        stray = agent.cdi / f"{DRIVER}_metadata_00000000-0000-4000-8000-000000000000_r.json"
        before = _files(agent.cdi)
        assert before
        code, found = await drain(agent, "--clean")
        assert (code, _files(agent.cdi)) == (1, before), found
        code, body = await agent.ask("/drain", b'{"drain": true, "clean": true}')
        assert code == 409
        assert b"claim default/c1" in body
        assert _files(agent.cdi) == before
        await end_claim(cluster, "c1")
        assert (await drain(agent, "--wait", "60"))[0] == 0
        stray.write_text("{}")
        code, found = await drain(agent, "--clean")
        assert (code, found["files"]) == (0, [])
        assert str(stray) in found["removed"]
        assert await agent.stop() == 0
        assert _files(agent.cdi) == []
        assert _files(agent.control.parent) == []


async def test_cleaning_keeps_the_files_of_a_pod_with_limits() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(limits_pod("l1"))
        await cluster.wait_pod("l1")
        code, found = await drain(agent, "--clean")
        assert code == 0
        (kept,) = found["files"]
        assert "-legacy-" in kept
        assert found["removed"] == []
        await agent.stop()
        assert _files(agent.cdi) == [Path(kept).name]
        assert "ledger.jsonl" in _files(agent.control.parent), "an agent that comes back knows who holds it"


async def test_a_waiting_standby_keeps_the_state_and_stays_drained() -> None:
    async with bridge() as (agent, cluster, _):
        assert (await drain(agent, "--clean"))[0] == 0
        async with beside(agent, "second") as second:
            assert await agent.stop() == 0
            await second.ready()
            assert "ledger.jsonl" in _files(agent.control.parent)
            assert (await second.status())["resources"][0]["wanted"]["source"] == "drain"
            assert devices_in_slices(cluster) == set()


async def test_a_node_without_claims_is_drained_at_once() -> None:
    async with legacy_node() as (agent, kubelet):
        await kubelet.run_pod(pod("l1"))
        code, found = await drain(agent)
        assert (code, found["claims"], len(found["pods"])) == (0, [], 1)


async def test_invalid_bodies_are_refused() -> None:
    async with legacy_node() as (agent, _):
        for body in (b"{}", b"[" * 5000, b'{"drain": 1}', b"x"):
            code, answer = await agent.ask("/drain", body)
            assert (code, b"was expected" in answer) == (400, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--undo", "--clean"), "not allowed with"),
        (("--undo", "--wait", "5"), "--undo waits for nothing"),
        (("--driver", "x.example.com"), "--cluster"),
        (("--cluster", "--wait", "5"), "--wait"),
        (("--cluster",), "--socket"),
        (("--wait", "soon"), "found 'soon', expected seconds"),
        (("--wait", "nan"), "found 'nan', expected seconds"),
    ],
    ids=str,
)
def test_bad_usage_exits_with_2(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = main(["drain", "--socket", "/nowhere", *words])
    except SystemExit as ended:
        code = ended.code
    assert (code, said in capsys.readouterr().err) == (2, True)


def _with(changes: dict[str, str]) -> str:
    text = BOTH_LANES
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


def _files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir())
