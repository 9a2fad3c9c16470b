"""Lanes that move by the Nodes' annotations, and agents that are replaced node by node, while pods come and go."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from tests.cluster import workloads as w
from tests.cluster.bed import DEVICES, NAMESPACE, PODS, TEMPLATES, Json, wait_for
from tests.cluster.steps import claim_pod, deleted, legacy_pod, move, offered, running
from tests.cluster.three_nodes.bed import NAMES, ThreeNodes

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.cluster]


@contextlib.asynccontextmanager
async def load(three: ThreeNodes) -> AsyncIterator[Counter[str]]:
    """Pods of both kinds, two of each at a time, that may go to any node, until the block ends.

    Counted: those that have run, by kind and node, and those with limits that kubelet refused. Others have to run.
    """
    await three.api.create(TEMPLATES, w.template("any"), namespace=NAMESPACE)
    stop, ran = asyncio.Event(), Counter[str]()

    async def come_and_go(kind: str, number: int) -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            name = f"{kind}-{number}-{turn}"
            if kind == "limits":
                await legacy_pod(three, name)
            else:
                spec = w.with_claim(three.image, "", {"resourceClaimTemplateName": "any"})
                await three.api.create(PODS, w.pod(name, spec), namespace=NAMESPACE)
            if await admitted(three, name):
                ran[f"{kind} {(await three.has(name))[0]}"] += 1
            else:
                ran["refused"] += 1
            await deleted(three, name)

    async with asyncio.TaskGroup() as group:
        for kind in ("limits", "claims"):
            for number in (1, 2):
                group.create_task(come_and_go(kind, number))
        try:
            yield ran
        finally:
            stop.set()


async def admitted(three: ThreeNodes, name: str) -> bool:
    """Wait until the pod runs; false if kubelet, whose list was newer than what the scheduler knew, refused it."""

    async def decided() -> Json | None:
        status = (await three.api.get(PODS, name, namespace=NAMESPACE))["status"]
        return status if status.get("phase") != "Pending" else None

    status = await wait_for(three, f"pod {name} to run", decided)
    if status.get("reason") == "UnexpectedAdmissionError" and name.startswith("limits"):
        return False
    await running(three, name)
    return True


def of_both(ran: Counter[str], least: int) -> bool:
    """Whether so many pods of each kind have run."""
    return all(sum(ran[f"{kind} {name}"] for name in NAMES) >= least for kind in ("limits", "claims"))


async def test_lanes_move_on_every_node_under_load(three: ThreeNodes) -> None:
    """Each node to another border at the same time, and one node wholly to each side; never all of them to one."""
    first, second, third = (three.on(name) for name in NAMES)
    async with load(three) as ran:
        for borders in ((0, 4, 2), (4, 1, 0), (1, 0, 4), (2, 2, 2)):
            wishes = list(zip((first, second, third), borders, strict=True))
            for node, legacy in wishes:
                await move(node, legacy=legacy, dra=DEVICES - legacy)
            for node, legacy in wishes:
                await offered(node, legacy=legacy, dra=DEVICES - legacy)

        async def enough() -> bool:
            return of_both(ran, 4)

        await wait_for(three, "pods of both kinds to have run", enough)
    await three.all_is_free()


async def test_agents_are_rolled_out_node_by_node_under_load(three: ThreeNodes) -> None:
    """Pods keep their devices as each agent hands over to its standby, and those with claims all run.

    Kubelet may refuse a pod with limits between the end of one agent and the registration of the next: milliseconds on
    a machine that is idle, a second on a busy one, longer when an agent is killed, as one is here at last.
    """
    stay = {}
    for name in NAMES:
        await legacy_pod(three.on(name), f"stays-l-{name}")
        await claim_pod(three.on(name), f"stays-c-{name}")
        await running(three, f"stays-l-{name}", f"stays-c-{name}")
        stay[name] = [await three.devices(f"stays-{kind}-{name}") for kind in ("l", "c")]
    async with load(three) as ran:
        await three.upgrade()
        before = ran.copy()

        async def since() -> bool:
            return of_both(ran - before, 1)

        await wait_for(three, "pods of both kinds to have run after the rollout", since)
        upgrade = asyncio.create_task(three.upgrade())
        await three.on(NAMES[1]).kill_agent()
        await upgrade
    print(f"pods while agents were replaced: {dict(ran)}")
    for name in NAMES:
        assert [await three.devices(f"stays-{kind}-{name}") for kind in ("l", "c")] == stay[name]
        owners = await three.on(name).owners()
        assert {device: owner for device, owner in owners.items() if [device] in stay[name]} == {
            stay[name][0][0]: "legacy",
            stay[name][1][0]: "dra-prepared",
        }
