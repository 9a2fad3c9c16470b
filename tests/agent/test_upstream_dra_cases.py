"""Upstream's e2e_node DRA cases (dra_test.go), by number, that need a whole agent."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable

import pytest

from drabridge.sim.apiserver.server import SimApiServer
from drabridge.sim.cluster import SimCluster
from drabridge.sim.kubelet.calls import Call
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.timings import Timings
from tests.support.agent_on_cluster import BOTH_LANES, bridge, claim_pod, end_claim
from tests.support.agent_process import DRIVER, AgentProcess, registration_calls, told_registered
from tests.support.waiting import PATIENCE, short_directory, until

CLAIMS_ONLY = BOTH_LANES.replace("{legacy: 2, dra: 2}", '{legacy: 0, dra: "*"}')
WIPE_SECONDS = 30.0  # kubelet's own: it deletes the slices of a driver that is away for so long


@contextlib.asynccontextmanager
async def alone(observer: Callable[[str, Call], None]) -> AsyncIterator[tuple[AgentProcess, SimKubelet]]:
    """A kubelet whose calls are observed, and an agent that it has registered."""
    with short_directory() as root:
        async with SimApiServer() as api:
            api.objects.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}})
            timings = Timings.fast(get_info_seconds=0.3, notify_seconds=0.3)
            kubelet = SimKubelet(root, timings=timings, observer=observer)
            await kubelet.start()
            agent = AgentProcess(
                root, CLAIMS_ONLY, arguments=("--kubeconfig", str(api.kubeconfig(root / "kubeconfig")))
            )
            await agent.start()
            try:
                await agent.ready(20)
                yield agent, kubelet
            finally:
                with contextlib.suppress(ProcessLookupError):
                    await agent.stop(signal.SIGKILL)
                await kubelet.stop()


class Freezer:
    """Stops the agent, as by SIGSTOP, at one moment of one of kubelet's calls to it."""

    def __init__(self) -> None:
        self.agent: AgentProcess | None = None
        self.when: tuple[str, str] | None = None  # begin or end, method

    def __call__(self, moment: str, call: Call) -> None:
        if self.agent and self.when == (moment, call.method) and call.peer.startswith(DRIVER):
            self.when = None
            self.signal(signal.SIGSTOP)

    def signal(self, number: int) -> None:
        assert self.agent is not None
        assert self.agent.process is not None
        self.agent.process.send_signal(number)


@pytest.mark.parametrize(
    ("when", "fails"),
    [
        pytest.param(("begin", "GetInfo"), "GetInfo", id="DR3"),
        pytest.param(("end", "GetInfo"), "NotifyRegistrationStatus", id="DR4"),
    ],
)
async def test_dr3_dr4_an_agent_that_hangs_during_its_registration_is_registered_when_it_goes_on(
    when: tuple[str, str], fails: str
) -> None:
    freezer = Freezer()
    async with alone(freezer) as (agent, kubelet):
        freezer.agent = agent
        before = len(registration_calls(kubelet, fails))
        freezer.when = when
        await kubelet.restart()
        try:
            await until(lambda: any(call.error for call in registration_calls(kubelet, fails)[before:]), 10, agent.text)
        finally:
            freezer.signal(signal.SIGCONT)
        await until(
            lambda: len(registration_calls(kubelet, fails)) > before + 1 and told_registered(kubelet), 10, agent.text
        )
        await agent.ready()


async def test_dr5_a_pod_that_is_created_while_kubelet_is_away_is_prepared_afterwards() -> None:
    async with bridge() as (agent, cluster, _):
        kubelet = cluster.kubelets["node-a"]
        await kubelet.stop()
        await cluster.apply(claim_pod("p"))
        await cluster.wait(lambda: _allocated(cluster, "p"), what="the scheduler")
        assert not kubelet.calls.of("NodePrepareResources")
        await kubelet.start()
        await cluster.wait_pod("p")
        assert len(list(agent.cdi.glob("*-claim-*.json"))) == 1


def _allocated(cluster: SimCluster, name: str) -> bool:
    claim, pod = cluster.get("resourceclaims", name), cluster.get("pods", name)
    return bool(claim and pod and claim["status"].get("allocation") and pod["spec"].get("nodeName"))


async def _nothing_prepared(agent: AgentProcess) -> bool:
    return "dra-prepared" not in set((await agent.owners()).values())


def slices(cluster: SimCluster) -> list[tuple[str, str]]:
    return [
        (one["metadata"]["uid"], one["metadata"]["resourceVersion"])
        for one in cluster.api.objects.peek("resourceslices")
    ]


async def test_rolling_update_the_second_waits_takes_over_at_once_and_writes_nothing() -> None:
    async with bridge(slice_wipe_seconds=WIPE_SECONDS * PATIENCE) as (first, cluster, _):
        kubelet = cluster.kubelets["node-a"]
        await cluster.apply(claim_pod("p"))
        await cluster.wait_pod("p")
        before = slices(cluster)
        assert before
        second = AgentProcess(first.root, BOTH_LANES, arguments=first.arguments)
        second.log = first.root / "second.log"
        await second.start()
        try:
            await until(lambda: "waiting for another agent to end" in second.text(), 20, second.text)
            await asyncio.sleep(0.5)
            assert (await first.ask("/readyz"))[0] == 200  # not disturbed
            calls = len(registration_calls(kubelet, "NotifyRegistrationStatus"))
            await first.stop()
            ended = time.monotonic()
            await until(lambda: len(registration_calls(kubelet, "NotifyRegistrationStatus")) > calls, 20, second.text)
            seconds = time.monotonic() - ended
            await second.ready(20)
            await asyncio.sleep(0.5)
            assert slices(cluster) == before
            assert seconds < WIPE_SECONDS / 2 * PATIENCE, second.text()  # 0.3 to 0.4 s were measured
            await end_claim(cluster, "p")
            await until(lambda: not list(second.cdi.glob("*-claim-*")), 10, second.text)
            await until(lambda: _nothing_prepared(second), 10, second.text)
        finally:
            with contextlib.suppress(ProcessLookupError):
                await second.stop(signal.SIGKILL)
