"""The checks of the random histories find an agent that lacks one rule, and accept a correct one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.agent.node_machine import Node
from tests.soak.bed import LOOP, MEM
from tests.soak.workload import SHAPES
from tests.support.hardware import needs_loop_devices
from tests.support.waiting import until

pytestmark = pytest.mark.long


@contextlib.contextmanager
def history(variant: str) -> Iterator[Node]:
    """A node whose agent lacks the rule ``variant`` (empty: none), driven by the test; devices may stay held."""
    node = Node()
    Node.loop = asyncio.new_event_loop()
    node.command = ("-m", "tests.support.broken_agent", variant) if variant else ("-m", "drabridge")
    try:
        node.begin(0)
        yield node
    finally:
        Node.loop.run_until_complete(node.stack.aclose())
        Node.loop.close()


def _judged(node: Node, variant: str) -> None:
    """A broken agent has given a device to two containers, a correct one has not; then all containers end."""
    judge = node.stage.judge
    if variant:
        node.do(until(judge.double_holds, 20, node.stage.agent.text))
    else:
        node.do(asyncio.sleep(5))  # longer than the broken one needs
        node.nobody_shares()
    for container in list(judge.spans):
        node.do(judge.stop_container(*container), settle=0)


SHAPE = {shape.name: shape for shape in SHAPES}


@pytest.mark.parametrize("variant", ["", "release on PodResources alone"])
def test_the_checks_notice_a_release_on_podresources_alone(variant: str) -> None:
    with history(variant) as node:
        node.place(SHAPE["limits-initonly"], MEM, init_seconds=30)
        node.status_agrees()
        if variant:
            node.do(until(node._disagreements, 20, node.stage.agent.text))
            assert "limits-initonly" in str(node.last)
        else:
            node.do(asyncio.sleep(7))  # the agent's start has settled, and every doubt is over
            node.status_agrees()


@pytest.mark.root
@pytest.mark.loopdev
@needs_loop_devices
@pytest.mark.parametrize("variant", ["", "open nodes are not looked for"])
def test_the_checks_notice_a_probe_that_does_not_look(variant: str) -> None:
    """Kubelet unprepares the claims of force-deleted pods while their containers have the devices open."""
    with history(variant) as node:
        node.set_lanes(LOOP, 0)
        for _ in range(2):
            node.place(SHAPE["claim-one"], LOOP, opens=True, linger=600)
        stage, judge = node.stage, node.stage.judge
        node.do(until(lambda: len(judge.spans) == 2, why=stage.agent.text))
        for name in sorted(node.pods):
            node.end(name, forced=True)
        node.place(SHAPE["claim-one"], LOOP)
        node.do(until(lambda: stage.unprepared("default/claim-one-open-1"), why=stage.agent.text))
        _judged(node, variant)


@pytest.mark.parametrize("variant", ["", "a second claim on a prepared device"])
def test_the_checks_notice_an_agent_that_does_not_wait_for_unprepare(variant: str) -> None:
    """The API server takes the claims of force-deleted pods back while their containers go on."""
    with history(variant) as node:
        stage, judge = node.stage, node.stage.judge
        stage.kubelet.node.timings = replace(stage.kubelet.node.timings, dra_reconcile_seconds=600.0)
        node.restart_kubelet(0.0)  # with a loop that unprepares nothing of late
        node.set_lanes(MEM, 0)
        for _ in range(stage.capacity[MEM]):
            node.place(SHAPE["claim-one"], MEM, linger=600)
        node.do(until(lambda: len(judge.spans) == stage.capacity[MEM], 20, stage.agent.text))
        for name in sorted(node.pods):
            node.end(name, forced=True)
        node.place(SHAPE["claim-one"], MEM)
        _judged(node, variant)


@pytest.mark.parametrize("variant", ["", "a move without kubelet's acknowledgement"])
def test_the_checks_notice_a_move_without_kubelets_acknowledgement(variant: str) -> None:
    with history(variant) as node:
        node.stage.kubelet.freeze()  # it reads no list, and allocates by its old one when it continues
        node.set_lanes(MEM, 0)
        if variant:
            node.do(until(node.on_both_sides, 20, node.stage.agent.text))
        else:
            node.do(asyncio.sleep(3))  # longer than the broken one needs
            node.one_side_at_a_time()
        node.stage.kubelet.thaw()
