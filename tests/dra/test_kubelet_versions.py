"""What kubelet's releases do differently with claims: our answers are right with each of them."""

from __future__ import annotations

import pytest

from drabridge.ledger.entries import Owner
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Container, ContainerClaim, PodClaim, PodSpec
from drabridge.sim.kubelet.runtime import MemoryRuntime
from drabridge.sim.releases import RELEASES
from tests.dra.kubelet_beside import kubelet_beside, pod, ran, registered
from tests.support.dra_node import DraNode, a_node
from tests.support.waiting import until


@pytest.mark.parametrize("version", RELEASES)
async def test_a_pod_gets_its_device_and_its_health_and_gives_it_back(version: str) -> None:
    async with a_node() as node, kubelet_beside(node, version=version) as kubelet:
        await registered(node)
        spec = pod(node, "p", "cl", "gpu-0")
        await ran(kubelet, spec)
        if kubelet.node.gates["ResourceHealthStatus"]:
            await kubelet.wait_for(lambda: "'Healthy'" in str(kubelet.allocated_resources_status(spec.uid)), what="it")
        await kubelet.delete_pod(spec.uid)
        node.claims.delete("cl")
        await until(lambda: node.owner("gpu-0") is Owner.NONE, why="the release")
        assert node.records() == node.cdi_files() == []


@pytest.mark.parametrize(("version", "kept"), [("1.34", 2), ("1.36", 2), ("1.37", 1)])
async def test_a_claim_prepared_again_has_each_device_once_in_its_container(version: str, kept: int) -> None:
    """After a restart kubelet asks again for a claim that a new pod shares; 1.36 appends the answer (#140274)."""
    async with a_node() as node, kubelet_beside(node, version=version) as kubelet:
        await registered(node)
        first = pod(node, "p", "cl", "gpu-0")
        await ran(kubelet, first)
        await kubelet.restart()
        await until(lambda: node.driver.state.registration.registered, why="the registration")
        second = pod(node, "q", "cl")
        await kubelet.wait_for(lambda: kubelet.process.dra.plugins.get(node.config.driver), what="the driver")
        await ran(kubelet, second)

        assert len(node.handled("prepare")) == 2
        (info,) = kubelet.process.dra.cache.values()
        (answers,) = info.drivers.values()
        assert (len(answers), len(set(answers))) == (kept, 1), "the same answer each time"
        names = [cdi_names(kubelet, spec) for spec in (first, second)]
        assert names[0] == names[1]
        assert len(names[0]) == len(set(names[0])) == 2, "the device and its metadata"
        assert node.holders("gpu-0") == ["cl"]


def cdi_names(kubelet: SimKubelet, spec: PodSpec) -> tuple[str, ...]:
    runtime = kubelet.node.runtime
    assert isinstance(runtime, MemoryRuntime)
    return tuple(runtime.running[spec.uid, "c"].cdi_devices)


def stranger(claim: str) -> PodSpec:
    """A pod that names the claim, and that nobody reserved it for: kubelet never prepares it."""
    container = Container("c", claims=(ContainerClaim("c"),))
    return PodSpec("default", "stranger", containers=(container,), resource_claims=(PodClaim("c", claim),))


def questions(node: DraNode) -> int:
    return sum(r.verb == "get" and r.resource == "resourceclaims" and r.name == "cl" for r in node.api.requests)


@pytest.mark.parametrize(("version", "calls"), [("1.36", 1), ("1.37", 0)])
async def test_a_claim_that_is_unprepared_under_its_pod_stays_held(version: str, calls: int) -> None:
    """Until 1.36 the end of a pod that was refused the claim unprepares it, while another pod has it (#140212)."""
    async with a_node() as node, kubelet_beside(node, version=version) as kubelet:
        await registered(node)
        owner = pod(node, "p", "cl", "gpu-0")
        await ran(kubelet, owner)
        refused = stranger("cl")
        await kubelet.run_pod(refused)
        await kubelet.delete_pod(refused.uid)
        assert len(node.handled("unprepare")) == calls
        asked = questions(node)
        if calls:  # the agent asks whether the claim is deallocated, and it is not: a container runs with it
            await until(lambda: questions(node) >= asked + 2, why="questions about the claim")
        assert node.owner("gpu-0") is not Owner.NONE
        other = node.claims.add("other", "gpu-0")
        assert "gpu-0" in await node.refused(other)

        await kubelet.delete_pod(owner.uid)
        node.claims.delete("cl")
        await until(lambda: node.owner("gpu-0") is Owner.NONE, why="the release")
        assert await node.prepared(other)


@pytest.mark.parametrize("restart", [False, True], ids=["same agent", "new agent"])
async def test_a_claim_that_was_unprepared_under_its_pod_can_be_prepared_again(restart: bool) -> None:
    async with a_node() as node, kubelet_beside(node, version="1.36") as kubelet:
        await registered(node)
        owner = pod(node, "p", "cl", "gpu-0")
        await ran(kubelet, owner)
        names = cdi_names(kubelet, owner)
        refused = stranger("cl")
        await kubelet.run_pod(refused)
        await kubelet.delete_pod(refused.uid)
        if restart:
            await node.restart()
            await registered(node)
        second = pod(node, "q", "cl")
        await ran(kubelet, second)
        assert cdi_names(kubelet, second) == names
        assert node.holders("gpu-0") == ["cl"]
        for spec in (owner, second):
            await kubelet.delete_pod(spec.uid)
        node.claims.delete("cl")
        await until(lambda: node.owner("gpu-0") is Owner.NONE, why="the release")
