"""The way of docs/migration.md from limits to claims, and back: it begins with an agent that serves no claims at all.

Whatever asks for claims starts the DRA side of a running agent; whatever is left of them starts it after a restart; and
where it cannot start, nothing is given to claims, and what they have is said to be stranded.
"""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from drabridge.config import load
from drabridge.kube import connection
from drabridge.sim.cluster import SimCluster
from tests.support.agent_on_cluster import (
    BOTH_LANES,
    bridge,
    claim_pod,
    devices_in_slices,
    end_claim,
    healthy,
    limits_pod,
    set_lanes,
)
from tests.support.agent_process import DRIVER, RESOURCE, AgentProcess, node
from tests.support.waiting import until

LANES = "  lanes: {legacy: 2, dra: 2}\n"
LEFT_OUT = BOTH_LANES.replace(LANES, "")
SAID = 'msg="claims are not served"'
OFF = LEFT_OUT.replace("resources:", "dra: {enabled: false}\nresources:")


async def annotate(cluster: SimCluster, **lanes: int | str) -> None:
    annotations = {f"{DRIVER}/lanes": json.dumps({RESOURCE: lanes})}
    await cluster.apply(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "annotations": annotations}}
    )


async def restart(agent: AgentProcess, number: int = signal.SIGTERM, config: str | None = None) -> None:
    """Up again, which does not mean ready."""
    await agent.stop(number)
    if config is not None:
        agent.config.write_text(config)
    await agent.start()
    await agent.up()


async def offered(cluster: SimCluster, agent: AgentProcess, *, pods: int, claims: int) -> None:
    """Wait until each side has so many devices, as kubelet and the API server see it."""
    await until(
        lambda: (len(healthy(cluster)), len(devices_in_slices(cluster))) == (pods, claims),
        20,
        lambda: f"pods: {healthy(cluster)}, claims: {devices_in_slices(cluster)}\n{agent.text()}",
    )
    assert not healthy(cluster) & devices_in_slices(cluster)


async def sides(agent: AgentProcess) -> list[str]:
    """The APIs that the agent serves, or should."""
    return [endpoint["api"] for endpoint in (await agent.status())["endpoints"]]


async def unready(agent: AgentProcess) -> str:
    """Why, in the words of /readyz; empty when it is ready."""
    code, body = await agent.ask("/readyz")
    return "" if code == 200 else body.decode()


async def unready_because(agent: AgentProcess, words: str) -> bool:
    return words in await unready(agent)


def asked(cluster: SimCluster) -> int:
    """How many requests the agent has made."""
    return sum(request.user_agent.startswith("drabridge") for request in cluster.api.requests)


async def test_all_devices_go_to_claims_and_back_by_annotation() -> None:
    async with bridge(LEFT_OUT) as (agent, cluster, _):
        assert await sides(agent) == ["deviceplugin"]
        await cluster.apply(limits_pod("old"))
        await cluster.wait_pod("old")
        await annotate(cluster, legacy=3, dra=1)
        await offered(cluster, agent, pods=3, claims=1)
        await cluster.apply(claim_pod("new"))
        await cluster.wait_pod("new")
        assert sorted(await sides(agent)) == ["deviceplugin", "dra"]
        await restart(agent)
        await agent.ready()
        assert sorted((await agent.owners()).values()) == [
            "dra-prepared",
            "legacy",
            "none",
            "none",
        ]
        # Back: the device that a claim holds moves when it is let go.
        await annotate(cluster, legacy="*", dra=0)
        await restart(agent)
        await end_claim(cluster, "new")
        await offered(cluster, agent, pods=4, claims=0)
        await restart(agent)
        await agent.ready()
        assert await sides(agent) == ["deviceplugin"]
        await offered(cluster, agent, pods=4, claims=0)


@pytest.mark.parametrize(
    ("config", "kubeconfig", "token", "pod", "connects"),
    [
        (LEFT_OUT, True, False, False, True),
        (LEFT_OUT, False, True, True, True),
        (LEFT_OUT, False, False, False, False),
        (LEFT_OUT, False, False, True, False),  # every pod has the variable; claims are not configured here
        (BOTH_LANES, False, False, True, True),  # claims are configured: the missing token is reported when it is read
        (OFF, True, True, True, False),
    ],
)
def test_which_configurations_connect_to_the_api_server(
    config: str,
    kubeconfig: bool,
    token: bool,
    pod: bool,
    connects: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "SERVICE_ACCOUNT", tmp_path if token else tmp_path / "none")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    if pod:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    found = connection.connect(load(config), tmp_path / "kubeconfig" if kubeconfig else None)
    assert (found is not None) == connects


async def test_all_devices_go_to_claims_and_back_by_command() -> None:
    async with bridge(LEFT_OUT) as (agent, cluster, _):
        await set_lanes(agent, legacy=2, dra=2)
        await offered(cluster, agent, pods=2, claims=2)
        await restart(agent, signal.SIGKILL)
        await cluster.apply(claim_pod("new"))
        await cluster.wait_pod("new")
        await end_claim(cluster, "new")
        await set_lanes(agent, reset=True)
        await restart(agent, signal.SIGKILL)
        await offered(cluster, agent, pods=4, claims=0)
        await restart(agent)
        await agent.ready()
        assert await sides(agent) == ["deviceplugin"]


async def test_a_prepared_claim_is_served_until_it_ends_whatever_the_configuration_says() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        await restart(agent, config=LEFT_OUT)
        await agent.ready()
        await end_claim(cluster, "c")
        await offered(cluster, agent, pods=4, claims=0)


async def test_dra_switched_off_by_force_reports_stranded_claims_and_resumes_them_later() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        await set_lanes(agent, legacy=1, dra=3)
        await until(lambda: _in_dra(agent, 3), 20, agent.text)
        await restart(agent, config=OFF)
        await until(lambda: SAID in agent.text(), 10, agent.text)
        await until(lambda: unready_because(agent, "3 devices in the dra lane and 1 claim held"), 10, agent.text)
        assert "set dra.enabled: auto" in await unready(agent)
        status = await agent.status()
        assert [end["phase"] for end in status["endpoints"] if end["api"] == "dra"] == ["off"]
        # What was set is not followed where nobody could have the devices, and cannot be set anew.
        assert any("what 'lanes set' gave" in note and "is not followed" in note for note in status["notes"])
        code, body = await agent.ask("/lanes", json.dumps({"resource": RESOURCE, "dra": 4}).encode())
        assert (code, b"dra.enabled is false" in body) == (400, True)
        await until(lambda: "lanes cannot be followed" in agent.text(), 10, agent.text)
        await asyncio.sleep(1)
        assert agent.text().count(SAID) == 1
        assert agent.text().count("lanes cannot be followed") == 1
        agent.config.write_text(BOTH_LANES)
        await agent.ready()
        await until(lambda: _in_dra(agent, 3), 20, agent.text)
        await cluster.delete("pods", "c")


async def _in_dra(agent: AgentProcess, count: int) -> bool:
    return bool((await agent.status())["resources"][0]["lanes"].get("dra") == count)


async def test_without_an_api_server_every_device_is_for_pods() -> None:
    async with node(BOTH_LANES, ready=False) as (agent, kubelet):
        await agent.up()
        await until(lambda: RESOURCE in kubelet.resources and len(kubelet.resources[RESOURCE].healthy) == 4, 20)
        assert (await agent.status())["resources"][0]["lanes"] == {"legacy": 4}
        words = "all are left to pods: there is no API server; give --kubeconfig"
        await until(lambda: unready_because(agent, words), 10, agent.text)
        await set_lanes(agent, legacy="*", dra=0)
        await agent.ready()


async def test_a_reload_that_switches_dra_off_is_followed_like_a_restart() -> None:
    async with bridge() as (agent, cluster, _):
        agent.config.write_text(OFF)
        await until(
            lambda: unready_because(agent, "2 devices in the dra lane, and the DRA side is off"), 20, agent.text
        )
        before = asked(cluster)
        await asyncio.sleep(1.5)
        assert asked(cluster) == before
        agent.config.write_text(LEFT_OUT)
        await offered(cluster, agent, pods=4, claims=0)
        agent.config.write_text(OFF)
        await until(lambda: _only_pods(agent), 20, agent.text)
        await agent.ready()


async def _only_pods(agent: AgentProcess) -> bool:
    return await sides(agent) == ["deviceplugin"]


async def test_an_agent_with_nothing_for_claims_needs_no_api_server() -> None:
    async with bridge(LEFT_OUT) as (agent, cluster, _):
        cluster.api.faults.partition()
        await restart(agent)
        await agent.ready()
        assert await sides(agent) == ["deviceplugin"]
        cluster.api.faults.heal()
        await annotate(cluster, legacy=3, dra=1)
        await offered(cluster, agent, pods=3, claims=1)


async def test_without_an_api_server_nothing_is_given_to_claims() -> None:
    async with node(LEFT_OUT) as (agent, kubelet):
        code, body = await agent.ask("/lanes", json.dumps({"resource": RESOURCE, "legacy": 2, "dra": 2}).encode())
        assert code == 400
        assert b"there is no API server" in body
        assert b"--kubeconfig" in body
        assert (await agent.ask("/lanes", json.dumps({"resource": RESOURCE, "dra": 0}).encode()))[0] == 200
        assert len(kubelet.resources[RESOURCE].healthy) == 4
        assert await unready(agent) == ""


async def test_devices_of_claims_are_reported_as_stranded_when_no_api_server_is_configured_any_more() -> None:
    async with bridge() as (agent, cluster, _):
        await offered(cluster, agent, pods=2, claims=2)
        arguments, agent.arguments = agent.arguments, ()
        await restart(agent)
        words = "2 devices in the dra lane, and the DRA side is off: there is no API server"
        await until(lambda: unready_because(agent, words), 20, agent.text)
        agent.arguments = arguments
        await restart(agent)
        await agent.ready()
        await offered(cluster, agent, pods=2, claims=2)
