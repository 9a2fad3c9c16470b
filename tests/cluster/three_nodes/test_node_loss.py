"""Two nodes are lost with devices in use, one by its cable and one by its power, and come back."""

from __future__ import annotations

import asyncio

import pytest

from tests.cluster import workloads as w
from tests.cluster.bed import CLAIMS, DEVICES, NAMESPACE, PODS, wait_for
from tests.cluster.steps import (
    STUBBORN,
    claim_pod,
    deleted,
    force_deleted,
    legacy_pod,
    move,
    phase,
    running,
    runs_at_last,
)
from tests.cluster.three_nodes.bed import AWAY, NAMES, OUT_OF_SERVICE, ThreeNodes

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.cluster]

STAYS, CUT, OFF = NAMES


async def test_nodes_are_lost_with_held_devices_and_come_back(three: ThreeNodes) -> None:
    """Nobody gets a device that a container on the cut node still has, whatever the API server was told meanwhile.

    The cut node's containers run on, and take their time to end. The controller manager forgets the pods of the node
    without power, whose administrator says that it is out of service; those of the cut node are force-deleted. Their
    claims go to another node, and claims of others get their devices, before the node knows anything of it.
    """
    for name in (CUT, OFF):
        more = {"tolerations": AWAY, "terminationGracePeriodSeconds": 6, "then": STUBBORN}
        for number in (0, 1):
            await legacy_pod(three.on(name), f"l-{name}-{number}", **more)
            await claim_pod(three.on(name), f"c-{name}-{number}", mode="-s" if number else "-x", **more)
    old = {name: [f"{kind}-{name}-{number}" for kind in "lc" for number in (0, 1)] for name in (CUT, OFF)}
    await running(three, *old[CUT], *old[OFF])
    for pod in (*old[CUT], *old[OFF]):
        await three.has(pod)

    await asyncio.to_thread(three.cluster.node(CUT).cut)
    await asyncio.to_thread(three.cluster.node(OFF).off)
    for name in (CUT, OFF):
        await three.lost(name)
    await three.taint(OFF, OUT_OF_SERVICE)
    await gone(three, *old[OFF])
    await three.taint(OFF)
    kept = f"c-{CUT}-1"  # nobody forces this one: its claim stays where it is
    await force_deleted(three, *(one for one in old[CUT] if one != kept))

    for name in (CUT, OFF):
        spec = w.with_claim(three.image, "", {"resourceClaimName": f"c-{name}-0"}, tolerations=[])
        await three.api.create(PODS, w.pod(f"again-{name}", spec), namespace=NAMESPACE)
    await running(three, f"again-{CUT}", f"again-{OFF}")
    elsewhere = [await three.has(f"again-{name}") for name in (CUT, OFF)]
    assert {node for node, _ in elsewhere} == {STAYS}
    # It may start while the container that has the claim ends: a claim is for as many pods as name it.
    spec = w.with_claim(three.image, "", {"resourceClaimName": kept}, tolerations=[], mode="-s")
    await three.api.create(PODS, w.pod("waits", spec), namespace=NAMESPACE)
    await move(three.on(CUT), legacy=0, dra=DEVICES)
    new = {CUT: [f"n-{CUT}-{number}" for number in range(3)], OFF: [f"n-{OFF}-{number}" for number in range(2)]}
    for name, pods in new.items():
        for pod in pods:
            await claim_pod(three.on(name), pod)  # they tolerate everything, and are bound to the node while it is lost
    assert await phase(three, "waits") == "Pending"

    await asyncio.gather(three.back(CUT), three.back(OFF))
    await gone(three, kept)
    for name, pods in new.items():
        for pod in pods:
            await runs_at_last(three.on(name), pod)
    await running(three, "waits")
    held = [await three.has(pod) for pod in (*new[CUT], *new[OFF], "waits")]
    assert [await three.has(f"again-{name}") for name in (CUT, OFF)] == elsewhere
    devices = [device for _, some in (*held, *elsewhere) for device in some]
    assert len({*devices}) == len(devices)
    await three.on(OFF).ready()
    await legacy_pod(three.on(OFF), "last")
    await running(three, "last")

    claims = [f"again-{name}" for name in (CUT, OFF)]
    await deleted(three, "last", "waits", *claims, *new[CUT], *new[OFF])
    for name in (*(f"c-{name}-{number}" for name in (CUT, OFF) for number in (0, 1)), *new[CUT], *new[OFF]):
        await three.api.delete(CLAIMS, name, namespace=NAMESPACE)
    await move(three.on(CUT), legacy=DEVICES // 2, dra=DEVICES // 2)
    await three.all_is_free()


async def gone(three: ThreeNodes, *names: str) -> None:
    for name in names:

        async def forgotten(name: str = name) -> bool:
            return await phase(three, name) == "gone"

        await wait_for(three, f"pod {name} to be gone", forgotten)
