"""What the scheduler writes to a pod and its claim while binding conditions are awaited, as observed on 1.36.2."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from drabridge.sim.apiserver.store import Change
from drabridge.sim.scheduler import claim_controller
from tests.sim.scheduler.world import DRIVER, World, device
from tests.support.waiting import until

LEASE, DENIED = f"{DRIVER}/lease", f"{DRIVER}/lease-denied"


class Story:
    """A world whose scheduler runs, and every write to its pod and its claim, in order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.writes: list[str] = []

    def note(self, change: Change) -> None:
        obj = change.object
        if change.resource.plural == "pods":
            spec, status = obj["spec"], obj["status"]
            said: Any = next((one for one in status.get("conditions", []) if one["type"] == "PodScheduled"), {})
            words = (status.get("nominatedNodeName", "-"), spec.get("nodeName", "-"), said.get("reason", ""))
            self.writes.append("pod nominated {} bound {} {}".format(*words).strip())
        if change.resource.plural == "resourceclaims":
            status = obj.get("status", {})
            allocated = "allocated" if "allocation" in status else "free"
            self.writes.append(f"claim {allocated} reserved {len(status.get('reservedFor', []))}")

    def condition(self, kind: str) -> None:
        """What a driver says of the claim's device."""

        def write(obj: Any) -> None:
            (result,) = obj["status"]["allocation"]["devices"]["results"]
            said = {"type": kind, "status": "True", "reason": "Obs", "message": "m"}
            said["lastTransitionTime"] = "2026-11-23T00:00:00Z"
            obj["status"]["devices"] = [{key: result[key] for key in ("driver", "pool", "device")}]
            obj["status"]["devices"][0]["conditions"] = [said]

        self.world.objects.modify("resourceclaims", "c", write, namespace="default", subresource="status")

    @property
    def pod(self) -> Any:
        return self.world.get("pods", "p")


@pytest.fixture
async def story() -> AsyncIterator[Story]:
    """A pod whose claim was given a device with conditions, and waits."""
    world = World()
    world.device_class()
    world.slice(device("d0", bindsToNode=True, bindingConditions=[LEASE], bindingFailureConditions=[DENIED]))
    found = Story(world)
    unsubscribe = world.objects.store.subscribe(found.note)
    running = asyncio.create_task(world.scheduler.run())
    world.claim("c")
    world.pod("p", "c")
    await until(lambda: any(one.startswith("claim allocated") for one in found.writes))
    yield found
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    unsubscribe()


async def test_a_pod_is_nominated_before_its_claim_is_allocated(story: Story) -> None:
    assert story.writes[-3:] == ["pod nominated node-a bound -", "claim free reserved 0", "claim allocated reserved 1"]


async def test_a_pod_that_is_bound_is_no_longer_nominated(story: Story) -> None:
    story.condition(LEASE)
    await until(lambda: "nominatedNodeName" not in story.pod["status"])
    assert story.pod["spec"]["nodeName"] == "node-a"


async def test_a_denied_pod_is_told_why_and_tried_again(story: Story) -> None:
    """The same device is chosen again: the driver must have tainted or withdrawn it before."""
    del story.writes[:]
    story.condition(DENIED)
    await until(lambda: "claim allocated reserved 1" in story.writes[1:])
    assert story.writes == [
        "claim allocated reserved 1",  # the driver's condition
        "claim allocated reserved 0",
        "pod nominated - bound - SchedulerError",
        "claim free reserved 0",  # after a while, when the pod is tried again
        "pod nominated node-a bound - SchedulerError",
        "claim allocated reserved 1",
    ]
    (said,) = story.pod["status"]["conditions"]
    failed = 'device binding failed: claim=c, reason=Obs, message="m"'
    assert said["message"] == f'running PreBind plugin "DynamicResources": {failed}'
    assert "devices" not in story.world.get("resourceclaims", "c")["status"]


async def test_a_pod_with_limits_alone_is_never_nominated(story: Story) -> None:
    story.world.pod("plain")
    await until(lambda: story.world.node_of("plain"))
    assert "nominatedNodeName" not in story.world.get("pods", "plain")["status"]


def test_a_claim_that_nobody_reserves_any_more_goes_when_it_is_deleted() -> None:
    """As one that was denied, and whose pod is gone: nobody tries it again, and its allocation keeps the device."""
    world = World()
    world.claim("c")
    objects, where = world.objects, {"namespace": "default"}
    finalizers = {"finalizers": [claim_controller.FINALIZER]}
    objects.modify("resourceclaims", "c", lambda one: one["metadata"].update(finalizers), **where)
    objects.delete("resourceclaims", "c", "default")
    assert objects.find("resourceclaims", "c", "default")
    claim_controller.release(objects)
    assert not objects.find("resourceclaims", "c", "default")
