"""Claims during a handover between agents: kubelet always has an endpoint, and its calls are answered."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time

import pytest

from drabridge.sim.cluster import SimCluster
from tests.support.agent_on_cluster import bridge, claim_pod, devices_in_slices, limits_pod
from tests.support.agent_process import RESOURCE, AgentProcess, lists_read, registration_calls, told_registered
from tests.support.standby import beside, streams_met
from tests.support.waiting import until


def endpoints(agent: AgentProcess) -> tuple[list[str], list[str]]:
    """The registration sockets and the service sockets of the node's driver."""
    registry, plugin = agent.root / "plugins_registry", agent.control.parent
    return sorted(path.name for path in registry.glob("*.sock")), sorted(path.name for path in plugin.glob("dra*.sock"))


async def one_endpoint(agent: AgentProcess) -> None:
    names = [f"{agent.driver}-reg.sock"], ["dra.sock"]
    await until(lambda: endpoints(agent) == names, 40, agent.text)


def errors(cluster: SimCluster) -> list[str]:
    calls = cluster.kubelets["node-a"].calls
    return [
        call.error
        for name in ("NodePrepareResources", "NodeUnprepareResources")
        for call in calls.of(name)
        if call.error
    ]


async def test_a_standby_passes_calls_on_and_its_end_changes_nothing() -> None:
    async with bridge() as (first, cluster, _):
        kubelet = cluster.kubelets["node-a"]
        async with beside(first, "second") as second:
            await until(
                lambda: len(registration_calls(kubelet, "NotifyRegistrationStatus")) >= 2 and told_registered(kubelet),
                20,
                second.text,
            )
            await cluster.apply(claim_pod("a"))
            await cluster.wait_pod("a")
            assert await second.stop() == 0
            await one_endpoint(first)
        await cluster.apply(claim_pod("b"))
        await cluster.wait_pod("b")
        await cluster.delete("pods", "a")
        await until(lambda: bool(kubelet.calls.of("NodeUnprepareResources")), 20, first.text)
        assert not errors(cluster)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_claim_that_arrives_during_a_handover_waits_for_the_next_agent(number: signal.Signals) -> None:
    async with bridge(dra_retry_seconds=(600.0, 600.0)) as (first, cluster, _):
        kubelet = cluster.kubelets["node-a"]
        await cluster.apply(claim_pod("a"))
        await cluster.wait_pod("a")
        slices = devices_in_slices(cluster)
        async with beside(first, "second") as second:
            await until(lambda: "kubelet has connected to the standby" in second.text(), 20, second.text)
            assert second.process is not None
            second.process.send_signal(signal.SIGSTOP)  # a handover that takes as long as it takes to look at it
            try:
                with contextlib.suppress(ProcessLookupError):
                    await first.stop(number)
                await cluster.apply(claim_pod("b"))
                await until(lambda: len(kubelet.calls.of("NodePrepareResources")) == 2, 40, second.text)
                await asyncio.sleep(0.2)
                assert kubelet.calls.of("NodePrepareResources")[-1].seconds is None  # it waits
            finally:
                second.process.send_signal(signal.SIGCONT)
            await cluster.wait_pod("b")
            assert not errors(cluster)
            await second.ready()
            await lists_read(kubelet)
            await one_endpoint(second)
            assert not streams_met(kubelet)
            await cluster.apply(limits_pod("l"))
            await cluster.wait_pod("l")
            await cluster.delete("pods", "a")
            await until(lambda: bool(kubelet.calls.of("NodeUnprepareResources")), 20, second.text)
            owners = sorted((await second.owners()).values())
            assert owners.count("legacy") == 1
            assert not errors(cluster)
            assert slices <= {"full", "null", "random", "zero"}


async def test_an_agent_that_is_frozen_while_it_ends_serves_nobody_beside_its_successor() -> None:
    """It has the ledger's lock until its last server is gone, so a pod waits and gets nobody's device."""
    async with bridge(dra_retry_seconds=(1.0, 1.0)) as (first, cluster, runtime):
        await cluster.apply(claim_pod("a"))
        await cluster.wait_pod("a")
        async with beside(first, "second") as second:
            assert first.process is not None
            os.setpriority(os.PRIO_PROCESS, first.process.pid, 19)  # it ends in 40 ms: let it not be quicker than this
            first.process.send_signal(signal.SIGTERM)
            end = time.monotonic() + 10
            while "msg=stopping" not in first.text() and time.monotonic() < end:
                time.sleep(0.001)  # noqa: ASYNC251 (as soon as it stops, whatever else this program has to do)
            first.process.send_signal(signal.SIGSTOP)
            try:
                await cluster.apply(claim_pod("b"))
                await asyncio.sleep(1.0)
            finally:
                first.process.send_signal(signal.SIGCONT)
            await cluster.wait_pod("b")
            assert await first.stop() == 0
            await second.ready()
            await lists_read(cluster.kubelets["node-a"])
            rows = (await second.status())["devices"]
            assert sorted(row["owner"] for row in rows) == ["dra-prepared", "dra-prepared", "none", "none"]
            assert not streams_met(cluster.kubelets["node-a"])
            await cluster.apply(limits_pod("l"))
            await cluster.wait_pod("l")
            assert runtime.conflicts == []


async def test_kubelet_keeps_the_health_of_devices_over_a_handover() -> None:
    async with bridge() as (first, cluster, _):
        kubelet = cluster.kubelets["node-a"]
        await cluster.apply(claim_pod("a"))
        await cluster.wait_pod("a")
        (uid,) = kubelet.pods

        def healthy() -> bool:
            rows = [row for found in kubelet.allocated_resources_status(uid).values() for row in found]
            return bool(rows) and "Unknown" not in str(rows) and "Healthy" in str(rows)

        await until(healthy, 20, lambda: str(kubelet.allocated_resources_status(uid)))
        async with beside(first, "second") as second:
            await until(healthy, 20, second.text)
            await first.stop()
            await second.ready()
            await one_endpoint(second)
            await until(healthy, 20, lambda: str(kubelet.allocated_resources_status(uid)))
            assert RESOURCE in kubelet.resources
