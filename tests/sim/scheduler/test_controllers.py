"""The controllers beside the scheduler: templates, Jobs, evictions, and the loop that drives them all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from drabridge.sim.apiserver.status import ApiError
from drabridge.sim.scheduler import events
from tests.sim.scheduler.world import World
from tests.support.waiting import until


@pytest.fixture
async def world() -> World:
    world = World()
    world.device_class()
    world.slice("d0", "d1")
    return world


@contextlib.asynccontextmanager
async def looping(world: World) -> AsyncIterator[Callable[[Callable[[], object]], Any]]:
    """The scheduler as a task; gives a function that waits for what it does."""

    async def scheduled(condition: Callable[[], object]) -> None:
        def holds() -> object:
            assert not task.done(), task.exception()
            return condition()

        await until(holds, 3)

    task = asyncio.create_task(world.scheduler.run())
    try:
        yield scheduled
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def job(parallelism: int, completions: int | None = None, **spec: Any) -> Any:
    template = {"spec": {"containers": [{"name": "c"}], "restartPolicy": "Never"}}
    counts = {"parallelism": parallelism, **({"completions": completions} if completions else {})}
    body = {**counts, "template": template, **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": body}


def phases(world: World) -> list[str]:
    return sorted(pod["status"]["phase"] for pod in world.objects.list("pods"))


async def test_job_keeps_its_parallelism_until_it_is_complete(world: World) -> None:
    world.objects.create(job(2, 3))
    world.step()
    assert phases(world) == ["Pending", "Pending"]
    for pod in world.objects.list("pods"):
        world.end(pod["metadata"]["name"])
    world.step()
    assert phases(world) == ["Pending", "Succeeded", "Succeeded"]
    (last,) = [pod for pod in world.objects.list("pods") if pod["status"]["phase"] == "Pending"]
    world.end(last["metadata"]["name"])
    world.step()
    status = world.get("jobs", "j")["status"]
    assert (status["succeeded"], status["conditions"][0]["type"]) == (3, "Complete")
    world.step()
    assert len(phases(world)) == 3


async def test_pod_waits_for_a_template_that_comes_later(world: World) -> None:
    async with looping(world) as scheduled:
        world.pod("p", template="late")
        await asyncio.sleep(0.1)
        assert world.node_of("p") == ""
        world.template("late", {"name": "r", "exactly": {"deviceClassName": "gpu"}})
        await scheduled(lambda: world.node_of("p"))


async def test_loop_comes_to_rest(world: World) -> None:
    """No write may cause another for ever: when nothing changes, the revision stands still."""
    async with looping(world) as scheduled:
        world.claim("c", count=3)
        world.claim("d")
        world.pod("stuck", "c")
        world.pod("runs", "d")
        await scheduled(lambda: world.node_of("runs") and world.why("stuck"))
        await asyncio.sleep(1)
        revision = world.objects.store.revision
        await asyncio.sleep(0.2)
        assert world.objects.store.revision == revision


async def test_freed_devices_go_to_waiting_pods(world: World) -> None:
    async with looping(world) as scheduled:
        for name in ("a", "b"):
            world.claim(name, count=2)
            world.pod(name, name)
        await scheduled(lambda: world.node_of("a"))
        assert world.node_of("b") == ""
        world.objects.delete("pods", "a", "default", grace_seconds=0)
        await scheduled(lambda: world.node_of("b"))
        assert world.devices("a") == []


async def test_claim_deleted_in_use_lives_until_its_pod_is_gone(world: World) -> None:
    world.claim("c")
    world.pod("p", "c")
    world.step()
    world.objects.delete("resourceclaims", "c", "default")
    world.step()
    assert "deletionTimestamp" in world.get("resourceclaims", "c")["metadata"]
    world.pod("q", "c")
    world.step()
    assert (world.node_of("q"), world.why("q")) == ("", "")
    world.end("p")
    world.step()
    with pytest.raises(ApiError, match="not found"):
        world.get("resourceclaims", "c")


async def test_events_do_not_grow_without_end(world: World) -> None:
    pod = {"metadata": {"name": "p", "namespace": "default", "uid": "u"}}
    for number in range(events.KEPT + 50):
        events.post(world.objects, "Pod", pod, "Test", f"number {number}")
    kept = world.objects.peek("events")
    assert len(kept) == events.KEPT
    assert any(one["message"] == f"number {events.KEPT + 49}" for one in kept)


async def test_generated_claim_goes_with_its_pod(world: World) -> None:
    world.template("t", {"name": "r", "exactly": {"deviceClassName": "gpu"}})
    world.pod("p", template="t")
    world.step()
    assert len(world.objects.list("resourceclaims")) == 1
    world.objects.delete("pods", "p", "default", grace_seconds=0)
    world.step()
    assert world.objects.list("resourceclaims") == []


async def test_claim_is_empty_again_after_its_last_pod(world: World) -> None:
    world.claim("c")
    for pod in ("p", "q"):
        world.pod(pod, "c")
    world.step()
    world.end("p")
    world.step()
    assert [one["name"] for one in world.get("resourceclaims", "c")["status"]["reservedFor"]] == ["q"]
    world.end("q")
    world.step()
    claim = world.get("resourceclaims", "c")
    assert claim["status"] == {}
    assert "finalizers" not in claim["metadata"]
