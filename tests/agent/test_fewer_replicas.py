"""A reload lowers the number of replicas: ids that kubelet may be giving away stay in the list."""

from __future__ import annotations

import asyncio

from drabridge.sim.kubelet.pods import Container, Phase, PodSpec
from tests.support.agent_process import CONFIG, RESOURCE, node, pod, restart_kubelet
from tests.support.waiting import until


def config(count: int) -> str:
    return f"{CONFIG}  replicas: {{count: {count}}}\n"


async def test_ids_that_pods_have_stay_listed() -> None:
    async with node(config(4)) as (agent, kubelet):
        assert (await kubelet.run_pod(pod("a", 12))).phase is Phase.RUNNING
        agent.config.write_text(config(2))
        await until(lambda: len(kubelet.resources[RESOURCE].healthy) < 16, 15, agent.text)
        view = kubelet.resources[RESOURCE]
        assert view.allocated <= view.devices
        assert view.allocated <= view.healthy
        assert {unit.rpartition("::")[2] for unit in view.healthy - view.allocated} <= {"0", "1"}
        # All devices have as many pods as they may have by now, or more.
        assert (await kubelet.run_pod(pod("b"))).phase is Phase.FAILED
        await restart_kubelet(kubelet)
        await kubelet.wait_for_resource(RESOURCE, healthy=len(view.healthy))
        assert kubelet.resources[RESOURCE].allocated <= kubelet.resources[RESOURCE].devices
        assert kubelet.pod_status("uid-a").phase is Phase.RUNNING
        assert kubelet.crashed is None


async def test_pods_with_removed_replicas_survive_a_kubelet_restart() -> None:
    """Kubelet admits them again then; what their init containers have had must be Healthy."""
    share = {RESOURCE: 1}
    async with node(config(4)) as (agent, kubelet):
        for n in range(15):
            first = Container("init", share, run_seconds=0.0)
            spec = PodSpec("default", f"p{n}", f"uid-p{n}", (Container("main", share),), (first,))
            assert (await kubelet.run_pod(spec)).phase is Phase.RUNNING
        agent.config.write_text(config(2))
        await until(lambda: len(kubelet.resources[RESOURCE].healthy) < 16, 15, agent.text)
        assert kubelet.resources[RESOURCE].allocated == kubelet.resources[RESOURCE].healthy
        kubelet.faults.pods_arrive.clear()
        await kubelet.restart()
        await kubelet.wait_for_resource(RESOURCE, healthy=15)
        kubelet.faults.pods_arrive.set()
        await kubelet.process.sources_ready.wait()
        assert {status.message for status in kubelet.pods.values()} == {""}
        assert {status.phase for status in kubelet.pods.values()} == {Phase.RUNNING}


async def test_kubelet_survives_a_reload_that_lowers_the_count_while_pods_arrive() -> None:
    """Kubelet 1.36.2 ends by a nil dereference when an id leaves the list that it is giving to a container."""
    async with node(config(400)) as (agent, kubelet):
        over = asyncio.Event()

        async def arrive() -> None:
            number = 0
            while not over.is_set() and kubelet.crashed is None:
                number += 1
                await kubelet.run_pod(pod(f"p{number}"))

        count = 400

        def taken_over() -> bool:
            view = kubelet.resources[RESOURCE]
            some = {"zero::200", "null::200", "full::200", "random::200"} & view.healthy
            return bool(kubelet.crashed) or bool(some) == (count == 400)

        pods = asyncio.create_task(arrive())
        for count in (1, 400, 1):
            await asyncio.sleep(0.5)
            agent.config.write_text(config(count))
            await until(taken_over, 15, agent.text)
            assert kubelet.crashed is None
            assert kubelet.resources[RESOURCE].allocated <= kubelet.resources[RESOURCE].devices
        over.set()
        await pods
        assert kubelet.crashed is None
