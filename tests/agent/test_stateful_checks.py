"""The checks of the random histories find an agent that lacks one rule.

That they accept a correct one is what every history of test_stateful.py shows.
"""

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
    """A node whose agent lacks the rule ``variant``, driven by the test; devices may stay held."""
    node = Node()
    Node.loop = asyncio.new_event_loop()
    node.command = ("-m", "tests.support.broken_agent", variant)
    try:
        node.begin(0)
        yield node
    finally:
        Node.loop.run_until_complete(node.stack.aclose())
        Node.loop.close()


def _double_hold_is_seen(node: Node) -> None:
    """The agent has given a device to two containers; then all containers end."""
    judge = node.stage.judge
    node.do(until(judge.double_holds, 20, node.stage.agent.text))
    for container in list(judge.spans):
        node.do(judge.stop_container(*container), settle=0)


SHAPE = {shape.name: shape for shape in SHAPES}


def test_the_checks_notice_a_release_on_podresources_alone() -> None:
    with history("release on PodResources alone") as node:
        node.place(SHAPE["limits-initonly"], MEM, init_seconds=30)
        node.status_agrees()
        node.do(until(node._disagreements, 20, node.stage.agent.text))
        assert "limits-initonly" in str(node.last)


@pytest.mark.deep
@pytest.mark.root
@pytest.mark.loopdev
@needs_loop_devices
def test_the_checks_notice_a_probe_that_does_not_look() -> None:
    """Kubelet unprepares the claims of force-deleted pods while their containers have the devices open."""
    with history("open nodes are not looked for") as node:
        node.set_lanes(LOOP, 0)
        for _ in range(2):
            node.place(SHAPE["claim-one"], LOOP, opens=True, linger=600)
        stage, judge = node.stage, node.stage.judge
        node.do(until(lambda: len(judge.spans) == 2, why=stage.agent.text))
        for name in sorted(node.pods):
            node.end(name, forced=True)
        node.place(SHAPE["claim-one"], LOOP)
        _double_hold_is_seen(node)


def test_the_checks_notice_an_agent_that_does_not_wait_for_unprepare() -> None:
    """The API server takes the claims of force-deleted pods back while their containers go on."""
    with history("a second claim on a prepared device") as node:
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
        _double_hold_is_seen(node)


def test_the_checks_notice_a_move_without_kubelets_acknowledgement() -> None:
    with history("a move without kubelet's acknowledgement") as node:
        node.stage.kubelet.freeze()  # it reads no list, and allocates by its old one when it continues
        node.set_lanes(MEM, 0)
        node.do(until(node.on_both_sides, 20, node.stage.agent.text))
        node.stage.kubelet.thaw()
