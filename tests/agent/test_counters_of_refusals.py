"""What the agent counts and reports while peers refuse: read from its pages, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from drabridge.sim.kubelet.faults import ListFault
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from tests.support.agent_checks import plugin_socket
from tests.support.agent_on_cluster import bridge, devices_in_slices, held_by_claim, set_lanes
from tests.support.agent_process import CONFIG, DRIVER, RESOURCE, AgentProcess, metric, node, pod
from tests.support.hostile_callers import allocate
from tests.support.waiting import short_directory, until

ALWAYS = 1_000_000  # until faults are healed


def lists(kubelet: SimKubelet) -> list[dict[str, str]]:
    """Every list that kubelet has read, oldest first: id -> health."""
    messages: list[Any] = [call.response or call.request for call in kubelet.calls.of("ListAndWatchResponse")]
    return [{device.ID: device.health for device in message.devices} for message in messages]


async def test_refusals_are_counted_by_reason() -> None:
    async with bridge() as (agent, cluster, _):
        faults, kubelet = cluster.api.faults, cluster.kubelets["node-a"]
        faults.fail(ALWAYS, 422, verb="patch", resource="resourceclaims")
        name = await held_by_claim(agent, cluster)
        await until(lambda: metric(agent, "claim_status_writes_total", result="failed"), 10, agent.text)
        faults.fail(ALWAYS, 403, verb="create", resource="events")
        assert (await allocate(plugin_socket(agent), [name]))[0] == "FAILED_PRECONDITION"
        assert await metric(agent, "arbitration_refusals_total", resource=RESOURCE, reason="claim-held") == 1
        await until(lambda: metric(agent, "events_dropped_total"), 10, agent.text)
        assert not cluster.events(reason="AllocateRefused")

        kubelet.faults.podresources = ListFault.ERROR
        await agent.ask("/release", json.dumps({"device": name}).encode())  # asks kubelet first
        assert await metric(agent, "podresources_errors_total", code="UNKNOWN") >= 1
        kubelet.faults.podresources = ListFault.NONE

        assert await metric(agent, "resourceslice_publish_total", result="failed") == 0
        faults.fail(1, 503, verb="update", resource="resourceslices")
        await set_lanes(agent, legacy=1, dra=3)
        await until(lambda: len(devices_in_slices(cluster)) == 3, 20, agent.text)
        assert await metric(agent, "resourceslice_publish_total", result="failed") >= 1
        direction = {"resource": RESOURCE, "direction": "legacy-to-dra"}
        assert await metric(agent, "lane_transfer_seconds_count", **direction) == 1
        assert await metric(agent, "lane_transfer_seconds_sum", **direction) > 0


async def test_without_an_api_server_the_agent_is_not_ready_until_it_answers() -> None:
    """The failure outlasts the publisher's interval (5 s): a check that finds nothing to write sends nothing."""
    async with bridge() as (agent, cluster, _):
        await until(lambda: len(devices_in_slices(cluster)) == 2, 10, agent.text)
        published = await metric(agent, "resourceslice_publish_total", result="OK")
        assert published >= 1

        async def code() -> int:
            return (await agent.ask("/readyz"))[0]

        async def lost() -> bool:
            return await code() == 503

        async def gauges() -> tuple[float, float]:
            registered = await metric(agent, "registered", api="dra", resource=DRIVER)
            return registered, await metric(agent, "resourceslices_published")

        assert await gauges() == (1, 1)
        cluster.api.faults.partition()
        await until(lost, 10, agent.text)
        assert await gauges() == (1, 0)  # kubelet has the plugin: that is another trouble
        for _ in range(60):
            assert await code() == 503, agent.text()
            await asyncio.sleep(0.1)
        cluster.api.faults.heal()
        await agent.ready(20)
        assert await gauges() == (1, 1)
        assert await metric(agent, "resourceslice_publish_total", result="OK") == published


async def test_a_refused_allocate_names_the_holder_and_sends_kubelet_the_list_again() -> None:
    """Whoever asks for a held device acts on an older list."""
    async with bridge() as (agent, cluster, _):
        name = await held_by_claim(agent, cluster)
        kubelet = cluster.kubelets["node-a"]
        before = len(lists(kubelet))
        assert (await allocate(plugin_socket(agent), [name]))[0] == "FAILED_PRECONDITION"
        await until(lambda: len(lists(kubelet)) > before, 10, agent.text)
        assert lists(kubelet)[-1][name] == "Unhealthy"
        (refusal,) = (await agent.status())["refusals"]
        assert refusal["device"] == name
        assert "claim default/c" in refusal["message"]
        await until(lambda: cluster.events(reason="AllocateRefused"), 10, agent.text)


async def test_every_pod_that_shares_a_device_is_named() -> None:
    text = CONFIG.replace('[zero, "null", full, random]', "zero").replace(
        "  match:", "  replicas: {count: 2}\n  match:"
    )
    async with node(text) as (agent, kubelet):
        await kubelet.wait_for_resource(RESOURCE, healthy=2)
        for name in ("a", "b"):
            assert (await kubelet.run_pod(pod(name))).phase is Phase.RUNNING

        async def named() -> bool:
            await agent.ask("/release", b'{"device": "zero"}')  # asks kubelet first
            return {holder["pod"] for holder in (await agent.device("zero"))["holders"]} == {"a", "b"}

        await until(named, 10, agent.text)
        for name in ("a", "b"):
            assert await metric(agent, "device_allocation_info", device="zero", pod=name, container="main") == 1
        assert await metric(agent, "device_allocation_info") == 2


async def test_an_agent_whose_event_loop_hangs_fails_its_liveness_probe() -> None:
    """The agent writes its heartbeat once an hour; the liveness limit is half a second."""
    code = "import sys; from drabridge.agent import endpoints, maintenance; from drabridge.cli import main; "
    code += "maintenance.TICK_SECONDS, endpoints.HEARTBEAT_SECONDS = 3600.0, 0.5; sys.exit(main(sys.argv[1:]))"
    with short_directory() as root:
        agent = AgentProcess(root, command=("-c", code))
        await agent.start()

        async def stuck() -> bool:
            with contextlib.suppress(OSError, TimeoutError, IndexError):
                status, body = await agent.ask("/healthz")
                return status == 503 and b"no heartbeat" in body
            return False

        try:
            await until(stuck, 30, agent.text)
        finally:
            assert await agent.stop() == 0
