"""Pods whose end the agent did not see: force-deleted, or ended while the API server was away.

Their processes may go on for their grace period, and until then nobody else gets what they have.
"""

from __future__ import annotations

import asyncio

import grpc

from deviceplugin.wire import v1beta1_pb2 as pb
from deviceplugin.wire import v1beta1_pb2_grpc as rpc
from drabridge.sim.cluster import LINGER_SECONDS_ANNOTATION
from tests.support.agent_on_cluster import BOTH_LANES, bridge, claim_pod, limits_pod, set_lanes
from tests.support.agent_process import AgentProcess, held_by
from tests.support.waiting import until

GRACE_SECONDS, LINGER_SECONDS = 8, 5  # long enough to be seen on a busy machine


def lingering(manifest: str, name: str) -> str:
    """A pod whose process uses most of its grace period."""
    pod = f"kind: Pod\nmetadata: {{name: {name}, namespace: default"
    assert pod in manifest
    with_annotation = f"{pod}, annotations: {{{LINGER_SECONDS_ANNOTATION}: '{LINGER_SECONDS}'}}"
    grace = f"terminationGracePeriodSeconds: {GRACE_SECONDS}"
    return manifest.replace(pod, with_annotation).replace("terminationGracePeriodSeconds: 1", grace)


async def evidence(agent: AgentProcess, owner: str) -> list[str]:
    return [row["evidence"] for row in (await agent.status())["devices"] if row["owner"] == owner]


async def test_the_devices_of_force_deleted_pods_wait_for_their_grace_period() -> None:
    """Every container takes a lock on its devices for its life: two at once would be seen."""
    config = BOTH_LANES.replace("lanes: {legacy: 2, dra: 2}", "lanes: {legacy: 3, dra: 1}")
    async with bridge(config, dra_reconcile_seconds=0.2) as (agent, cluster, runtime):
        await cluster.apply(lingering(limits_pod("train", 3), "train") + "---\n" + lingering(claim_pod("c"), "c"))
        for name in ("train", "c"):
            await cluster.wait_pod(name)
        await until(lambda: held_by(agent, "train", 3))
        await set_lanes(agent, legacy=0, dra=4)
        for name in ("train", "c"):
            await cluster.delete("pods", name, force=True)
        await cluster.delete("resourceclaims", "c")
        await cluster.apply(claim_pod("serve", 4))
        seen = set[str]()

        async def both() -> bool:
            for owner in ("legacy", "dra-prepared"):
                seen.update(await evidence(agent, owner))
            said = str(seen)
            return "grace-period" in said and "unprepared, its processes may go on until" in said

        await until(both, 10, lambda: f"{seen} {runtime.conflicts}")
        await cluster.wait_pod("serve")
        assert not runtime.conflicts


async def test_a_kubelet_without_checkpoint_releases_nothing_that_it_never_showed() -> None:
    """Kubelet skips containers that run already, so neither of its answers names them. The API server is away."""
    async with bridge() as (agent, cluster, _):
        kubelet = cluster.kubelets["node-a"]
        await cluster.apply(limits_pod("train", 2))
        await cluster.wait_pod("train")
        await until(lambda: held_by(agent, "train", 2))
        cluster.api.faults.partition()
        await kubelet.stop()
        (agent.root / "device-plugins" / "kubelet_internal_checkpoint").unlink()
        await kubelet.start()

        async def waits() -> bool:
            return {one.split(",")[0] for one in await evidence(agent, "legacy")} == {"no-second-witness"}

        await until(waits, 10, agent.text)
        await asyncio.sleep(1)  # three times absentSeconds
        assert len(await evidence(agent, "legacy")) == 2
        cluster.api.faults.heal()


async def test_a_caller_that_reads_the_device_list_delays_no_release() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(limits_pod("l"))
        await cluster.wait_pod("l")
        until_then = (await agent.status())["releasesSuspendedUntil"]
        socket = next((agent.root / "device-plugins").glob("drabridge-*"))
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            for _ in range(3):
                await asyncio.sleep(0.7)  # settleSeconds is 1: each look would begin it anew
                call = rpc.DevicePluginStub(channel).ListAndWatch(pb.Empty())
                await call.read()
                call.cancel()
            assert (await agent.status())["releasesSuspendedUntil"] in ("", until_then)


async def test_devices_of_pods_that_end_normally_are_released_without_a_grace_period() -> None:
    """Deleted, or done by themselves; the watch breaks meanwhile, and goes on."""
    half_an_hour = "terminationGracePeriodSeconds: 1800"
    async with bridge(dra_reconcile_seconds=0.2) as (agent, cluster, _):
        seen = set[str]()

        async def free() -> bool:
            for owner in ("legacy", "dra-prepared"):
                seen.update(await evidence(agent, owner))
            return set((await agent.owners()).values()) == {"none"}

        for round_ in range(2):
            limits, claim = f"l{round_}", f"c{round_}"
            manifest = limits_pod(limits, 2) + "---\n" + claim_pod(claim)
            await cluster.apply(manifest.replace("terminationGracePeriodSeconds: 1", half_an_hour))
            for name in (limits, claim):
                await cluster.wait_pod(name)
            await until(lambda name=limits: held_by(agent, name, 2))  # type: ignore[misc]
            if round_ == 1:
                cluster.api.faults.drop_watches()
            await asyncio.gather(*(cluster.delete("pods", name) for name in (limits, claim)))
            await cluster.delete("resourceclaims", claim)
            await until(free, 10, lambda: seen)
            assert not [said for said in seen if "grace" in said or "go on" in said]
