"""Random histories by Hypothesis on a running agent: a real process, real sockets, real devices, real faults.

After every rule the world is looked at from outside: locks that containers hold, kubelet's lists, the API server's
slices, the agent's own status. ``DRABRIDGE_STATEFUL_EXAMPLES`` asks for more histories than the few of a test run, new
ones each time.
"""

from __future__ import annotations

import asyncio
import os

import celpy
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    run_state_machine_as_test,
)

from tests.agent.node_machine import (
    Node,
)

celpy.Environment()  # sets the recursion limit, as in the simulated scheduler: not for the first time before Hypothesis
pytestmark = pytest.mark.long


def walk(machine: type[Node], examples: int, steps: int, *, derandomize: bool) -> None:
    """Run histories. No shrinking: each attempt takes seconds, and Hypothesis prints the whole history anyway."""
    machine.loop = asyncio.new_event_loop()
    asyncio.set_event_loop(machine.loop)
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                derandomize=derandomize,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        machine.loop.close()
        asyncio.set_event_loop(None)


def test_no_sequence_of_faults_makes_two_workloads_share_a_device() -> None:
    more = os.environ.get("DRABRIDGE_STATEFUL_EXAMPLES")
    walk(Node, int(more or 2), 30 if more else 12, derandomize=not more)
