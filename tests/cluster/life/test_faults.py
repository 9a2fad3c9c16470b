"""Faults of the node and of the cluster: pods that do not end, kubelet killed, the API server or containerd away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.cluster.bed import Bed, at_the_beginning
from tests.cluster.steps import STUBBORN, claim_pod, force_deleted, legacy_pod, move, running, runs_at_last

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def pods(bed: Bed, *names: str, **more: Any) -> None:
    """Make them, by their names' first letters: with limits, or with a claim."""
    for name in names:
        await (legacy_pod if name.startswith("l") else claim_pod)(bed, name, **more)


@pytest.mark.parametrize("kubelet", ["runs", "is down"])
async def test_a_force_deleted_pod_keeps_its_device_until_it_has_ended(bed: Bed, kubelet: str) -> None:
    """The API server forgets it at once, and claims want its device before its container ends: locks tell.

    That of the pod with limits goes to the other lane for it: among pods with limits kubelet alone decides.
    """
    await pods(bed, "l1", "l2", "c1", "c2", terminationGracePeriodSeconds=2, then=STUBBORN)
    await running(bed, "l1", "l2", "c1", "c2")
    if kubelet == "is down":
        await bed.fault("stop", "kubelet")
    await force_deleted(bed, "l1", "c1")
    await move(bed, legacy=1, dra=3)
    await pods(bed, "c3", "c4")
    if kubelet == "is down":
        await bed.fault("start", "kubelet")
    for name in ("c3", "c4"):
        await runs_at_last(bed, name)
    await running(bed, "l2", "c2", "c3", "c4")


async def test_a_kubelet_that_is_killed_leaves_pods_running(bed: Bed) -> None:
    await pods(bed, "l1", "c1")
    await running(bed, "l1", "c1")
    before = {name: await bed.devices(name) for name in ("l1", "c1")}
    await bed.fault("kill", "kubelet")
    await bed.fault("start", "kubelet")
    await pods(bed, "c2")
    await running(bed, "l1", "c1", "c2")
    await at_the_beginning(bed)
    await pods(bed, "l2")
    await running(bed, "l1", "c1", "c2", "l2")
    assert {name: await bed.devices(name) for name in ("l1", "c1")} == before


async def test_an_api_server_that_is_away_for_twenty_seconds(bed: Bed) -> None:
    """Half a second on the simulated cluster, whose clocks are as much quicker."""
    await pods(bed, "l1", "c1")
    await running(bed, "l1", "c1")
    await bed.fault("stop", "apiserver")
    await asyncio.sleep(20 if bed.runs_programs else 0.5)
    await bed.fault("start", "apiserver")
    await at_the_beginning(bed)
    await pods(bed, "l2", "c2")
    await running(bed, "l1", "c1", "l2", "c2")


async def test_a_containerd_that_is_restarted_leaves_pods_running(bed: Bed) -> None:
    await pods(bed, "l1", "c1")
    await running(bed, "l1", "c1")
    await bed.fault("restart", "containerd")
    await pods(bed, "l2", "c2")
    await running(bed, "l1", "c1", "l2", "c2")
