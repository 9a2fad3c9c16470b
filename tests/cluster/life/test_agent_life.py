"""An agent's life on a cluster, over the Kubernetes API alone; the package's docstring says how to point it at one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest

from drabridge.errors import ClusterError
from tests.cluster import workloads as w
from tests.cluster.bed import (
    CLAIMS,
    DEVICES,
    DRIVER,
    JOBS,
    NAMESPACE,
    PODS,
    RESOURCE,
    SLICES,
    TEMPLATES,
    Bed,
    Json,
    lanes,
    wait_for,
)
from tests.cluster.sim_bed import simulated
from tests.cluster.steps import (
    claim_pod,
    deleted,
    finished,
    legacy_pod,
    move,
    offered,
    phase,
    running,
    template_pod,
)
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

# --- scenarios ------------------------------------------------------------------------------------------------------


async def test_from_installation_to_the_first_device(record_property: Any) -> None:
    async with simulated() as bed:
        began = time.monotonic()
        await bed.install()

        async def first() -> bool:
            return (await lanes(bed))[0] > 0

        await wait_for(bed, "a device to be allocatable", first)
        seconds = time.monotonic() - began
        record_property("first_allocatable_seconds", round(seconds, 2))
        print(f"from installation to the first allocatable device: {seconds:.2f} s on the simulated cluster")
        assert seconds < 10 * PATIENCE


async def test_limits_claims_and_templates_side_by_side(bed: Bed) -> None:
    await legacy_pod(bed, "legacy")
    await claim_pod(bed, "claimed")
    await template_pod(bed, "from-template")
    await running(bed, "legacy", "claimed", "from-template")
    await deleted(bed, "legacy", "claimed", "from-template")
    await legacy_pod(bed, "again-a")
    await legacy_pod(bed, "again-b")
    await running(bed, "again-a", "again-b")


async def test_a_job_whose_pods_have_claims_of_their_own(bed: Bed) -> None:
    await bed.api.create(TEMPLATES, w.template("each"), namespace=NAMESPACE)
    spec = w.with_claim(bed.image, bed.node, {"resourceClaimTemplateName": "each"}, seconds=2)
    await bed.api.create(JOBS, w.job("separate", spec, parallelism=2, completions=6), namespace=NAMESPACE)
    await finished(bed, "separate", 6)


async def test_a_job_whose_pods_share_one_claim(bed: Bed) -> None:
    name = f"{w.SHARED}-by-all"
    await bed.api.create(CLAIMS, w.claim(name), namespace=NAMESPACE)
    spec = w.with_claim(bed.image, bed.node, {"resourceClaimName": name}, seconds=2, mode="-s")
    await bed.api.create(JOBS, w.job("together", spec, parallelism=3, completions=6), namespace=NAMESPACE)
    await finished(bed, "together", 6)


async def test_lanes_move_under_load(bed: Bed) -> None:
    """Pods of both kinds come and go all the time, and the border moves beneath them, to both ends and back.

    One at a time in each lane: a device moves when nobody holds it, and in a lane that is always full none ever is.
    """
    stop = asyncio.Event()
    done = {"legacy": 0, "claim": 0}

    async def load(kind: str) -> None:
        make = legacy_pod if kind == "legacy" else template_pod
        turn = 0
        while not stop.is_set():
            turn += 1
            name = f"{kind}-{turn}"
            await make(bed, name)
            await running(bed, name)
            done[kind] += 1
            await deleted(bed, name)

    async def two_of_each() -> bool:
        return min(done.values()) >= 2

    async with asyncio.TaskGroup() as group:
        for kind in done:
            group.create_task(load(kind))
        try:
            for legacy, dra in ((1, 3), (3, 1), (2, 2)):
                await move(bed, legacy=legacy, dra=dra)
                await offered(bed, legacy=legacy, dra=dra)
            await wait_for(bed, "two pods of each kind to have run", two_of_each)
        finally:
            stop.set()
    await offered(bed, legacy=2, dra=2)


async def test_a_killed_agent_comes_back_to_the_same_holders(bed: Bed) -> None:
    await legacy_pod(bed, "l1")
    await claim_pod(bed, "c1")
    await running(bed, "l1", "c1")
    await bed.kill_agent()
    await wait_for(bed, "the agent to be ready again", bed.ready)
    await legacy_pod(bed, "l2")
    await claim_pod(bed, "c2")
    await running(bed, "l1", "c1", "l2", "c2")  # four pods, four devices, four locks


async def test_a_kubelet_restart_leaves_pods_running(bed: Bed) -> None:
    await legacy_pod(bed, "l1")
    await claim_pod(bed, "c1")
    await running(bed, "l1", "c1")
    await bed.restart_kubelet()
    await offered(bed, legacy=2, dra=2)
    await running(bed, "l1", "c1")
    await claim_pod(bed, "c2")
    await running(bed, "c2")


async def after_reboot(bed: Bed, name: str) -> str:
    """The pod's phase when its fate is known: Running, and started again, or Failed. Other pods have none."""

    async def known() -> str:
        with contextlib.suppress(ClusterError):  # on a one-node cluster the API server is away as well
            found = await phase(bed, name)
            if found == "Failed" or (found == "Running" and await bed.restarted(name)):
                return found
        return ""

    return str(await wait_for(bed, f"pod {name} to be started again or refused", known, bed.reboot_patience))


async def published(bed: Bed) -> list[Json]:
    """Devices of the node's slices, with all that is said of them."""
    slices = await bed.api.list(SLICES, field_selector=f"spec.driver={DRIVER}")
    return sorted((device for one in slices.items for device in one["spec"]["devices"]), key=lambda one: one["name"])


async def includes(bed: Bed, devices: list[Json], count: int) -> bool:
    """Whether these devices are published as they are here, among so many."""
    now = await published(bed)
    return len(now) == count and [one for one in now if one in devices] == devices


@pytest.mark.parametrize(
    ("beds", "agent_first"),
    [("simulated", True), ("simulated", False), pytest.param("real", False, marks=pytest.mark.cluster)],
    indirect=["beds"],
    ids=["simulated, agent first", "simulated, kubelet first", "real"],
)
async def test_a_node_reboot_leaves_every_device_with_its_pod(bed: Bed, agent_first: bool) -> None:
    """All lanes are wished away from the pod with limits: after the boot only the agent's memory keeps its device.

    A pod with limits that kubelet admits again before the agent has registered is refused for good: kubelet's doing,
    and on most nodes the usual course (kubernetes/kubernetes#128043). Its device is free then, and must be found free.
    """
    await legacy_pod(bed, "l1", restartPolicy="Always")
    await claim_pod(bed, "c1", restartPolicy="Always")
    await running(bed, "l1", "c1")
    await move(bed, legacy=0, dra=DEVICES)
    await offered(bed, legacy=1, dra=DEVICES - 1)
    before = {name: await bed.devices(name) for name in ("l1", "c1")}
    slices = await published(bed)

    await bed.reboot(agent_first=agent_first)

    assert await after_reboot(bed, "c1") == "Running", "a pod with a claim waits for its driver"
    kept = await after_reboot(bed, "l1") == "Running"
    if bed.decides_order:
        assert kept == agent_first
    if kept:
        await offered(bed, legacy=1, dra=DEVICES - 1)
        await wait_for(bed, "the slices to be as they were", lambda: includes(bed, slices, len(slices)))
    else:
        refused = (await bed.api.get(PODS, "l1", namespace=NAMESPACE))["status"]
        assert refused["reason"] == "UnexpectedAdmissionError", refused
        await offered(bed, legacy=0, dra=DEVICES)
        await wait_for(bed, "what was there to be as it was", lambda: includes(bed, slices, DEVICES))
    for name in ("l1", "c1") if kept else ("c1",):
        assert set(await bed.devices(name)) == set(before[name]), name

    more = ("c2", "c3") if kept else ("c2", "c3", "c4")
    for name in more:
        await claim_pod(bed, name)
    await running(bed, "c1", *more, *(("l1",) if kept else ()))  # every device is in use, and each lock is held once

    await deleted(bed, "l1", "c1", *more)
    await offered(bed, legacy=0, dra=DEVICES)
    await move(bed, legacy=2, dra=2)
    await offered(bed, legacy=2, dra=2)
    for name in ("l2", "l3"):
        await legacy_pod(bed, name)
    for name in ("c5", "c6"):
        await claim_pod(bed, name)
    await running(bed, "l2", "l3", "c5", "c6")


async def test_an_upgrade_loses_no_device(bed: Bed) -> None:
    await legacy_pod(bed, "l1")
    await claim_pod(bed, "c1")
    await running(bed, "l1", "c1")
    before = sorted(one["metadata"]["uid"] for one in (await bed.api.list(SLICES)).items)
    await bed.upgrade()
    await offered(bed, legacy=2, dra=2)
    after = sorted(one["metadata"]["uid"] for one in (await bed.api.list(SLICES)).items)
    assert after == before, "slices outlive the second of absence"
    await legacy_pod(bed, "l2")
    await claim_pod(bed, "c2")
    await running(bed, "l1", "c1", "l2", "c2")


async def test_nothing_is_left_after_uninstalling(bed: Bed) -> None:
    await legacy_pod(bed, "l1")
    await claim_pod(bed, "c1")
    await running(bed, "l1", "c1")
    await deleted(bed, "l1", "c1")
    assert await bed.left_behind(), "while it is installed there is something to be left behind"
    await bed.uninstall()

    async def clean() -> bool:
        return not await bed.left_behind()

    try:
        await wait_for(bed, "everything to be gone", clean)
    except AssertionError:
        assert await bed.left_behind() == []


# --- the judge of the simulated bed -----------------------------------------------------------------------------------


async def test_the_simulated_bed_sees_two_workloads_on_one_device() -> None:
    """The judge of these scenarios, with two runtimes' worth of pods on the device zero."""
    from drabridge.sim.kubelet.pods import Container, PodSpec
    from drabridge.sim.kubelet.runtime import ContainerStartError, RunOptions

    async with simulated() as bed:
        options = RunOptions(device_ids=((RESOURCE, "zero"),), envs={"DEVICE": "zero"})
        await bed.runtime.start_container(PodSpec("d", "a", uid="a"), Container("main"), options)
        with pytest.raises(ContainerStartError):
            await bed.runtime.start_container(PodSpec("d", "b", uid="b"), Container("main"), options)
        assert await bed.conflicts() == ["b: device zero is taken"]
        assert DEVICES == 4
