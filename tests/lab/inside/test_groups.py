"""IOMMU groups: what a device's group is, who shares it, and whether vfio can open it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

from drabridge.sim.kubelet.pods import Phase
from tests.lab.inside.nodes import CARD, CARDS, DRIVER, HEAD, address, bind, given_nodes, group, ids, listed, release
from tests.support.agent_process import node, pod
from tests.support.waiting import until

FUNCTIONS = CARDS.replace('attr: {vendor: "0x1234", device: "0x11e8"}, ', "")


@contextlib.contextmanager
def given_to_vfio(*names: str) -> Iterator[list[str]]:
    """PCI functions on vfio-pci; afterwards they have their own drivers again."""
    subprocess.run(["modprobe", "vfio-pci"], check=True)
    functions = [address(name) for name in names]
    for function in functions:
        bind(function, "vfio-pci")
    try:
        yield functions
    finally:
        for function in functions:
            release(function)


async def test_a_container_gets_the_group_of_its_card() -> None:
    with given_to_vfio("edu1", "edu2") as (near, far):
        async with node(HEAD + CARDS, DRIVER) as (agent, kubelet):
            await listed(agent, kubelet, CARD, {near, far}, set())
            assert group(near) != group(far)
            assert (await kubelet.run_pod(pod("a", 2, CARD))).phase is Phase.RUNNING
            paths = {one["hostPath"] for one in given_nodes(agent)}
            assert paths == {f"/dev/vfio/{group(near)}", f"/dev/vfio/{group(far)}", "/dev/vfio/vfio"}
            await kubelet.delete_pod("uid-a")


async def test_two_functions_of_one_group_are_never_two_holders() -> None:
    with given_to_vfio("edu3", "oldnet") as both:
        assert group(both[0]) == group(both[1])
        async with node(HEAD + FUNCTIONS, DRIVER) as (agent, kubelet):
            await listed(agent, kubelet, CARD, set(both), set())
            assert (await kubelet.run_pod(pod("a", 1, CARD))).phase is Phase.RUNNING
            await until(lambda: len(ids(kubelet, CARD)[0]) == 1, 20, agent.text)
            assert (await kubelet.run_pod(pod("b", 1, CARD))).phase is Phase.FAILED
            await kubelet.delete_pod("uid-a")


async def test_a_group_that_vfio_cannot_open_is_not_offered() -> None:
    with given_to_vfio("edu3") as (card,):
        async with node(HEAD + CARDS, DRIVER) as (agent, kubelet):
            await until(lambda: card in set().union(*ids(kubelet, CARD)), 20, agent.text)
            assert ids(kubelet, CARD) == (set(), {card}), "a network card of its group has its own driver"
            row = next(row for row in (await agent.status())["devices"] if row["id"] == card)
            assert f"IOMMU group {group(card)}" in str(row)
            assert address("oldnet") in str(row)
            with given_to_vfio("oldnet"):
                await listed(agent, kubelet, CARD, {card}, set())
