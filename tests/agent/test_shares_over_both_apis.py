"""Shares of a device over both APIs: replicas for pods with limits, shares of a capacity for claims, one device."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from deviceplugin.wire import v1beta1_pb2, v1beta1_pb2_grpc
from drabridge.sim.cluster import SimCluster
from tests.support.agent_on_cluster import (
    BOTH_LANES,
    claim_pod,
    devices_in_slices,
    healthy,
    limits_pod,
    not_started,
    set_lanes,
)
from tests.support.agent_process import RESOURCE, AgentProcess, lists_read
from tests.support.waiting import until

# As `drabridge check-config --from nvidia-device-plugin` writes it for `replicas: 3`.
SHARES = """\
  replicas: {count: 3, maxPerRequest: 1}
  sharing: {allowMultipleAllocations: true}
  capacity: {shares: {value: 3, requestPolicy: {default: 1, validRange: {min: 1, max: 1}}}}
"""
TWO_CARDS = BOTH_LANES.replace('[zero, "null", full, random]', '[zero, "null"]') + SHARES
SHARED = TWO_CARDS.replace("{legacy: 2, dra: 2}", '{shared: "*"}')
SPLIT = TWO_CARDS.replace("{legacy: 2, dra: 2}", "{legacy: 1, dra: 1}")


@contextlib.asynccontextmanager
async def cards(config: str) -> AsyncIterator[tuple[AgentProcess, SimCluster]]:
    """A cluster with an agent; its runtime lets containers share a device."""
    async with not_started(config) as (agent, cluster):
        await agent.start()
        await agent.ready()
        await lists_read(cluster.kubelets["node-a"])
        yield agent, cluster


def units(device: str) -> set[str]:
    return {f"{device}::{number}" for number in range(3)}


async def allocate(agent: AgentProcess, *ids: str) -> Any:
    """Ask as kubelet does, for ids that it may not have been offered."""
    (socket,) = (
        path for path in (agent.root / "device-plugins").iterdir() if path.is_socket() and path.name != "kubelet.sock"
    )
    options = [("grpc.default_authority", "localhost")]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        wanted = v1beta1_pb2.ContainerAllocateRequest(devices_ids=ids)
        return await v1beta1_pb2_grpc.DevicePluginStub(channel).Allocate(
            v1beta1_pb2.AllocateRequest(container_requests=[wanted])
        )


async def refused(agent: AgentProcess, *ids: str) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await allocate(agent, *ids)
    return f"{error.value.code().name}: {error.value.details()}"


async def phase(cluster: SimCluster, pod: str) -> str:
    found = cluster.get("pods", pod)
    return str(found["status"].get("phase")) if found else ""


async def end(cluster: SimCluster, *names: str) -> None:
    for name in names:
        await cluster.delete("pods", name)
        with contextlib.suppress(Exception):
            await cluster.delete("resourceclaims", name)


async def test_claims_share_a_device_that_pods_with_limits_do_not_get() -> None:
    async with cards(SHARED) as (agent, cluster):
        await until(lambda: len(healthy(cluster)) == 6 and len(devices_in_slices(cluster)) == 2, 10, agent.text)
        for name in ("c1", "c2", "c3"):
            await cluster.apply(claim_pod(name))
            await cluster.wait_pod(name)
        found = await agent.owners()
        assert sorted(found.values()) == ["dra-prepared", "none"], "three shares of one device"
        (card,) = (name for name, owner in found.items() if owner == "dra-prepared")
        (other,) = found.keys() - {card}
        await until(lambda: healthy(cluster) == units(other), 10, agent.text)
        said = await refused(agent, f"{card}::1")
        assert said.startswith("FAILED_PRECONDITION")
        assert "claim default/c" in said
        for number in range(3):
            await cluster.apply(limits_pod(f"l{number}"))
            await cluster.wait_pod(f"l{number}")
        await cluster.apply(limits_pod("l3"))
        await cluster.apply(claim_pod("c4"))
        assert await agent.owners() == {card: "dra-prepared", other: "legacy"}
        assert {await phase(cluster, "l3"), await phase(cluster, "c4")} == {"Pending"}
        await end(cluster, "c1", "c2")
        assert (await agent.owners())[card] == "dra-prepared", "one claim still has a share"
        await cluster.wait_pod("c4")
        await end(cluster, "c3", "c4")
        await cluster.wait_pod("l3")
        assert await agent.owners() == {card: "legacy", other: "legacy"}


async def test_one_replica_keeps_claims_from_the_device_until_its_pod_has_ended() -> None:
    async with cards(SPLIT) as (agent, cluster):
        await until(lambda: len(healthy(cluster)) == 3 and len(devices_in_slices(cluster)) == 1, 10, agent.text)
        (free,) = devices_in_slices(cluster)
        assert (await refused(agent, f"{free}::0")).startswith("FAILED_PRECONDITION")
        await cluster.apply(limits_pod("l1"))
        await cluster.wait_pod("l1")
        await set_lanes(agent, legacy=0, dra=2)
        (held,) = (name for name, owner in (await agent.owners()).items() if owner == "legacy")
        assert held != free
        for number in range(4):
            await cluster.apply(claim_pod(f"c{number}"))
        for number in range(3):
            await cluster.wait_pod(f"c{number}")
        assert await agent.owners() == {held: "legacy", free: "dra-prepared"}
        assert await phase(cluster, "c3") == "Pending"
        await end(cluster, "l1")
        await cluster.wait_pod("c3")
        assert await agent.owners() == {held: "dra-prepared", free: "dra-prepared"}


async def test_a_container_that_asks_for_two_shares_is_told_why_it_gets_none() -> None:
    async with cards(SPLIT.replace("{legacy: 1, dra: 1}", "{legacy: 2, dra: 0}")) as (agent, cluster):
        await until(lambda: len(healthy(cluster)) == 6, 10, agent.text)
        await cluster.apply(limits_pod("greedy", 2))
        await until(lambda: phase_is(cluster, "greedy", "Failed"), 10, agent.text)
        status = cluster.get("pods", "greedy")["status"]  # type: ignore[index]
        assert status["reason"] == "UnexpectedAdmissionError"
        assert f"2 shares of {RESOURCE} were asked for, a container may have 1 at most" in status["message"]
        assert "set limits to 1" in status["message"]
        assert set((await agent.owners()).values()) == {"none"}


async def phase_is(cluster: SimCluster, pod: str, wanted: str) -> bool:
    return await phase(cluster, pod) == wanted
