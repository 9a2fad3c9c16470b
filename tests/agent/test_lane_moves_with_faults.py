"""Lane moves while a peer has trouble: a device moves only after every acknowledgement."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from typing import Any

import pytest

from drabridge.sim.apiserver.server import SimApiServer
from drabridge.sim.cluster import SimCluster
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.timings import Timings
from tests.support.agent_on_cluster import (
    BOTH_LANES,
    bridge,
    claim_pod,
    devices_in_slices,
    healthy,
    limits_pod,
    set_lanes,
)
from tests.support.agent_process import DRIVER, RESOURCE, AgentProcess, noted, pod
from tests.support.waiting import short_directory, until

QUIET_SECONDS = 0.5  # quiesceSeconds of BOTH_LANES
WRITES = ("create", "update", "patch", "delete", "deletecollection")
ALWAYS = 1_000_000  # until faults are healed


async def moving(agent: AgentProcess) -> dict[str, str]:
    """Devices that are on their way -> the step they are at."""
    return {row["name"]: row["move"]["step"] for row in (await agent.status())["devices"] if row["move"]}


async def at_step(agent: AgentProcess, step: str, count: int) -> bool:
    return list((await moving(agent)).values()) == [step] * count


async def look_for(seconds: float, look: Any) -> None:
    """Look again and again for so long; ``look`` asserts."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await look()
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(("unlisted", "step"), [("resourceslices", "revoking"), ("resourceclaims", "quiescing")])
async def test_a_device_stays_out_of_pods_reach_while_the_server_cannot_be_asked(unlisted: str, step: str) -> None:
    async with bridge() as (agent, cluster, _):
        await until(lambda: len(devices_in_slices(cluster)) == 2, 10, agent.text)
        before = healthy(cluster)
        cluster.api.faults.fail(ALWAYS, 503, verb="list", resource=unlisted)
        await set_lanes(agent, legacy=4, dra=0)
        await until(lambda: not devices_in_slices(cluster), 10, agent.text)
        await until(lambda: at_step(agent, step, 2), 10, agent.text)

        async def kept() -> None:
            assert healthy(cluster) == before, agent.text()
            assert await at_step(agent, step, 2), await moving(agent)

        await look_for(4 * QUIET_SECONDS, kept)
        await until(lambda: "a lane move waits for the API server" in agent.text(), 10, agent.text)
        assert healthy(cluster) == before
        cluster.api.faults.heal()
        await until(lambda: len(healthy(cluster)) == 4, 20, agent.text)


async def test_a_device_stays_out_of_pods_reach_while_its_slice_cannot_be_written() -> None:
    async with bridge() as (agent, cluster, _):
        await until(lambda: len(devices_in_slices(cluster)) == 2, 10, agent.text)
        for verb in WRITES:
            cluster.api.faults.fail(ALWAYS, 503, verb=verb, resource="resourceslices")
        await set_lanes(agent, legacy=4, dra=0)
        await until(lambda: _moves(agent, 2), 10, agent.text)

        async def on_one_side() -> None:
            assert not devices_in_slices(cluster) & healthy(cluster), agent.text()

        await look_for(4 * QUIET_SECONDS, on_one_side)
        assert len(devices_in_slices(cluster)) == 2
        assert await at_step(agent, "revoking", 2), await moving(agent)
        await until(lambda: _unready(agent), 20, agent.text)
        assert not await noted(agent, "no ResourceSlices")  # there is one, which cannot be changed
        cluster.api.faults.heal()

        async def all_moved() -> bool:
            await on_one_side()
            return len(healthy(cluster)) == 4

        await until(all_moved, 30, agent.text)
        assert not devices_in_slices(cluster)


async def test_a_device_stays_out_of_pods_reach_while_an_unknown_slice_may_show_it() -> None:
    """A slice was written, the answer was lost, and no watch tells: the lanes go back before the write is repeated."""
    async with bridge() as (agent, cluster, _):
        await set_lanes(agent, legacy=4, dra=0)
        await until(lambda: len(healthy(cluster)) == 4, 20, agent.text)
        faults = cluster.api.faults
        faults.watch_lag_seconds = 120
        faults.fail(1, 504, verb="update", resource="resourceslices", after_commit=True)
        await set_lanes(agent, legacy=2, dra=2)
        await until(lambda: len(devices_in_slices(cluster)) == 2, 10, agent.text)
        faults.fail(ALWAYS, 503, resource="resourceslices")
        await set_lanes(agent, legacy=4, dra=0)
        await until(lambda: at_step(agent, "revoking", 2), 10, agent.text)
        faults.rules.clear()

        async def moved() -> bool:
            offered = healthy(cluster)
            assert not devices_in_slices(cluster) & offered, agent.text()
            return len(offered) == 4

        await until(moved, 30, agent.text)


async def test_pods_keep_devices_that_cannot_be_published_while_the_api_server_is_away() -> None:
    async with bridge(BOTH_LANES.replace("legacy: 2, dra: 2", "legacy: 4, dra: 0")) as (agent, cluster, _):
        await set_lanes(agent, legacy=3, dra=1)
        await until(lambda: len(devices_in_slices(cluster)) == 1, 10, agent.text)
        cluster.api.faults.partition()
        await until(lambda: _unready(agent), 20, agent.text)
        await set_lanes(agent, legacy=0, dra=4)
        await until(lambda: noted(agent, "3 more for the dra lane wait until slices can be published"), 10, agent.text)

        async def kept() -> None:
            assert len(healthy(cluster)) == 3, agent.text()
            assert await moving(agent) == {}

        await look_for(1.0, kept)
        cluster.api.faults.heal()
        await until(lambda: len(devices_in_slices(cluster)) == 4, 60, agent.text)
        assert not healthy(cluster)


async def test_a_device_freed_while_the_api_server_is_away_says_that_it_waits_for_it() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(limits_pod("l"))
        uid = (await cluster.wait_pod("l"))["metadata"]["uid"]
        await set_lanes(agent, legacy=0, dra=4)
        await until(lambda: len(devices_in_slices(cluster)) == 3, 10, agent.text)
        await until(lambda: at_step(agent, "waiting", 1), 10, agent.text)
        cluster.api.faults.partition()
        await until(lambda: _unready(agent), 20, agent.text)
        await cluster.kubelets["node-a"].delete_pod(uid)
        await until(lambda: at_step(agent, "revoking", 1), 20, agent.text)
        (reason,) = [row["move"]["reason"] for row in (await agent.status())["devices"] if row["move"]]
        assert reason == "waits for the API server, which has not taken our slices"
        ended = {"phase": "Succeeded", "containerStatuses": []}  # else the node would run the pod again
        cluster.api.objects.modify(
            "pods", "l", lambda one: one["status"].update(ended), namespace="default", subresource="status"
        )
        cluster.api.faults.heal()
        await until(lambda: len(devices_in_slices(cluster)) == 4, 60, agent.text)


async def test_devices_keep_their_lanes_while_the_desired_lanes_cannot_be_read() -> None:
    async with bridge() as (agent, cluster, _):
        await set_lanes(agent, legacy=1, dra=3)
        await until(lambda: len(devices_in_slices(cluster)) == 3, 10, agent.text)
        await agent.stop()
        lanes = agent.control.parent / "lanes.json"
        lanes.unlink()
        lanes.mkdir()  # stands for EIO, which a test cannot cause
        await agent.start()
        await agent.ready()
        assert await noted(agent, f"lanes that were set of {RESOURCE} are lost")

        async def kept() -> None:
            assert len(devices_in_slices(cluster)) == 3
            assert await moving(agent) == {}

        await look_for(1.0, kept)
        code, answer = await agent.ask("/lanes", json.dumps({"resource": RESOURCE, "reset": True}).encode())
        assert (code, b"nothing is changed" in answer) == (409, True)
        await kept()
        lanes.rmdir()
        await set_lanes(agent, reset=True)
        await until(lambda: len(devices_in_slices(cluster)) == 2, 10, agent.text)
        assert not await noted(agent, "lost")


MORE = """\
- name: example.com/more
  match: [{subsystem: mem, sysname: [urandom]}]
  id: ["{sysname}"]
  lanes: {legacy: 0, dra: "*"}
"""


async def test_a_resource_that_kubelet_refuses_delays_no_other() -> None:
    config = BOTH_LANES.replace(
        "settleSeconds", "tombstoneSeconds: 600, settleSeconds"
    )  # how long nothing is forgotten
    async with bridge(config) as (agent, cluster, _):
        kubelet = cluster.kubelets["node-a"]
        kubelet.faults.refuse_register = "not now"
        agent.config.write_text(config + MORE)
        await until(lambda: _revoking(agent, ["urandom"]), 20, agent.text)  # new to the node: a move as well
        await set_lanes(agent, legacy=0, dra=4)
        await until(lambda: len(devices_in_slices(cluster)) == 4, 10, agent.text)
        agent.config.write_text(config)  # nor does one that is not served any more
        await until(lambda: "example.com/more" not in kubelet.resources and _reloads(agent) == 2, 10, agent.text)
        await set_lanes(agent, legacy=2, dra=2)
        await until(lambda: len(healthy(cluster)) == 2, 10, agent.text)
        await set_lanes(agent, legacy=0, dra=4)
        await until(lambda: len(devices_in_slices(cluster)) == 4, 10, agent.text)
        assert await _revoking(agent, ["urandom"])


def _reloads(agent: AgentProcess) -> int:
    return agent.text().count("configuration reloaded")


async def _revoking(agent: AgentProcess, names: list[str]) -> bool:
    return list((await moving(agent)).items()) == [(name, "revoking") for name in names]


async def _unready(agent: AgentProcess) -> bool:
    return (await agent.ask("/readyz"))[0] != 200


async def _moves(agent: AgentProcess, count: int) -> bool:
    return len(await moving(agent)) == count


async def allocate(cluster: SimCluster, name: str, *devices: str) -> None:
    """What a scheduler writes that saw the slice a moment ago; its pod is not bound yet: nothing is prepared."""
    await cluster.apply(
        claim_pod(name, len(devices)).replace(
            "spec:\n  resourceClaims", "spec:\n  schedulerName: slow\n  resourceClaims"
        )
    )
    waiting = cluster.api.objects.get("pods", name, "default")
    claim = cluster.api.objects.get("resourceclaims", name, "default")
    results = [{"request": "r", "driver": DRIVER, "pool": "node-a", "device": device} for device in devices]
    claim["status"] = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": waiting["metadata"]["uid"]}],
    }
    cluster.api.objects.update(claim, namespace="default", subresource="status")


async def test_a_move_that_waits_for_an_incomplete_claim_names_it() -> None:
    async with bridge() as (agent, cluster, _):
        await until(lambda: len(devices_in_slices(cluster)) == 2, 10, agent.text)
        taken, other = sorted(devices_in_slices(cluster))
        await cluster.apply(limits_pod("l"))
        await cluster.wait_pod("l")
        (held,) = [row["name"] for row in (await agent.status())["devices"] if row["owner"] == "legacy"]
        await allocate(cluster, "late", taken, held)
        await set_lanes(agent, legacy=4, dra=0)

        async def named() -> bool:
            moves = {row["name"]: row["move"] for row in (await agent.status())["devices"]}
            return moves[taken] is not None and moves[taken]["reason"].startswith("claim default/late")

        await until(named, 20, agent.text)
        await until(lambda: other in healthy(cluster), 10, agent.text)
        assert taken not in healthy(cluster)
        before = _claim_lists(cluster)

        async def seldom() -> None:  # each refusal of the claim is news, and no reason to list them again at once
            assert _claim_lists(cluster) <= before + 1

        await look_for(1.0, seldom)


def _claim_lists(cluster: SimCluster) -> int:
    return sum((one.verb, one.resource) == ("list", "resourceclaims") for one in cluster.api.requests)


async def test_no_slice_is_published_before_kubelet_has_read_the_list_of_devices() -> None:
    """A kubelet that ran before us may believe that every device is its own to give."""
    with short_directory() as root:
        async with SimApiServer() as api:
            api.objects.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}})
            kubelet = SimKubelet(root, timings=Timings.fast())
            agent = AgentProcess(root, BOTH_LANES, arguments=("--kubeconfig", str(api.kubeconfig(root / "kubeconfig"))))
            kubelet.faults.hang_dial_back = True  # it takes the Register, and never comes to read
            await kubelet.start()
            await agent.start()
            try:
                await agent.up()
                await until(lambda: kubelet.calls.of("Register"), 10, agent.text)

                async def nothing() -> None:
                    assert not api.objects.peek("resourceslices"), agent.text()

                await look_for(2.0, nothing)
                assert not kubelet.calls.of("ListAndWatchResponse")
                kubelet.faults.hang_dial_back = False
                await kubelet.restart()

                def published() -> bool:
                    there = bool(api.objects.peek("resourceslices"))
                    assert not there or kubelet.calls.of("ListAndWatchResponse"), agent.text()
                    return there

                await until(published, 30, agent.text)
                await kubelet.wait_for_resource(RESOURCE, healthy=2)
                assert (await kubelet.run_pod(pod("a", 2))).message == ""
                assert len(kubelet.resources[RESOURCE].healthy) == 2
            finally:
                with contextlib.suppress(ProcessLookupError):
                    await agent.stop(signal.SIGKILL)
                await kubelet.stop()
