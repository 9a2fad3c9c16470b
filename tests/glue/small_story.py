"""Run one script on one node: the smallest kind of story."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from drabridge.sim.cluster import RUN_SECONDS_ANNOTATION
from tests.glue import processes
from tests.glue.node import Node
from tests.glue.story import CLASS, Story
from tests.glue.worlds import NAMESPACE, SHARED, World
from tests.support.waiting import short_directory

Script = Callable[[Node, Story], Awaitable[None]]


def play(script: Script, world: World = SHARED) -> None:
    """Run a script on a node whose agent serves; what is promised must hold all the time."""

    async def whole(dice: random.Random) -> None:
        story.dice, story._began = dice, 0.0
        node = story.node = Node(root, world, dice)
        try:
            await node.open()
            await node.cluster.apply(CLASS)
            node.start_agent()
            await asyncio.sleep(20.0)
            await script(node, story)
            assert [*node.runtime.conflicts, *node.promises.broken, *node.faults()] == []
        finally:
            await node.close()

    story = Story(world, 1, 0)
    with short_directory() as root:
        processes.run(1, whole)


def claim(node: Node, name: str) -> dict[str, Any]:
    found: dict[str, Any] = node.cluster.api.objects.get("resourceclaims", name, NAMESPACE)
    return found


def device_of(node: Node, name: str) -> str:
    results = claim(node, name)["status"].get("allocation", {}).get("devices", {}).get("results", ())
    return str(next((one["device"] for one in results), ""))


def phase(node: Node, name: str) -> str:
    found = node.cluster.api.objects.find("pods", name, NAMESPACE)
    return str(found["status"].get("phase")) if found else ""


async def ask_for(story: Story, name: str, *, limits: bool = False, count: int = 1) -> None:
    """Create a pod that runs until it is deleted."""
    pod = story._pod(name, {"example.com/device": count}, ()) if limits else story._pod(name, {}, [name])
    pod["metadata"]["annotations"].pop(RUN_SECONDS_ANNOTATION, None)
    await story._apply(*([] if limits else [story._claim(name, count)]), pod)
