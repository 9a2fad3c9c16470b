"""What kubelet sees while an agent takes over from another one: calls are answered, and claims keep their health."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from tests.glue.node import Node
from tests.glue.small_story import ask_for, phase, play
from tests.glue.story import Story
from tests.glue.worlds import DEVICE, DRIVER, NAMESPACE, NODE, SHARED


def endpoints(node: Node) -> list[str]:
    """The sockets at which kubelet finds an agent's claim side, and those by which people ask agents."""
    root = node.root / NODE
    registered = (root / "plugins_registry").glob("*.sock")
    return sorted(path.name for path in (*registered, *(root / "plugins" / DRIVER).glob("*.sock")))


ONE_AGENT = ["dra.sock", f"{DRIVER}-reg.sock"]


def errors(node: Node) -> list[str]:
    calls = node.kubelet.calls
    return [
        one.error for name in ("NodePrepareResources", "NodeUnprepareResources") for one in calls.of(name) if one.error
    ]


def health(node: Node) -> set[str]:
    """What kubelet says of the health of the devices of the pods that it runs."""
    found: list[Any] = [
        rows for uid in node.kubelet.pods for rows in node.kubelet.allocated_resources_status(uid).values()
    ]
    return {part["health"] for rows in found for row in rows for part in row["resources"]}


def end(node: Node, name: str) -> None:
    node.cluster.api.objects.delete("pods", name, NAMESPACE)
    node.cluster.api.objects.delete("resourceclaims", name, NAMESPACE)


async def always_registered(node: Node) -> None:
    """Fail once kubelet has no endpoint of the driver: it would refuse claims, and delete the node's slices."""
    while node.kubelet.process.dra.plugins.get(DRIVER) is not None:
        await asyncio.sleep(0.01)
    raise AssertionError("kubelet has no endpoint")


def test_calls_are_answered_while_one_agent_follows_another() -> None:
    async def script(node: Node, story: Story) -> None:
        registered = asyncio.ensure_future(always_registered(node))
        await ask_for(story, "a")
        await asyncio.sleep(10.0)
        assert health(node) == {"Healthy"}
        for turn, stop in enumerate((node.stop_agent, node.kill_agent)):
            node.start_agent()
            await asyncio.sleep(10.0)
            assert health(node) == {"Healthy"}
            assert len(endpoints(node)) == 5
            await ask_for(story, f"b{turn}")
            await asyncio.sleep(0.3)
            node.trouble.late_seconds = 8.0  # so that a call is under way at the standby's endpoint for a while
            await stop()
            await ask_for(story, f"c{turn}")
            await asyncio.sleep(20.0)
            node.trouble.calm()
            await asyncio.sleep(30.0)
            assert [phase(node, name) for name in ("a", f"b{turn}", f"c{turn}")] == ["Running"] * 3
            assert errors(node) == []
            assert endpoints(node) == ONE_AGENT
            assert health(node) == {"Healthy"}
            end(node, f"b{turn}")
            end(node, f"c{turn}")
            await asyncio.sleep(30.0)
        assert not registered.done()
        registered.cancel()

    play(script)


def test_kubelet_knows_the_devices_health_a_few_seconds_after_a_handover() -> None:
    """It forgets it when the standby's endpoint goes; a pod's status would say Unknown."""

    async def script(node: Node, story: Story) -> None:
        await ask_for(story, "a")
        await asyncio.sleep(10.0)
        node.start_agent()
        await asyncio.sleep(10.0)
        await node.stop_agent()
        await asyncio.sleep(5.0)
        assert endpoints(node) == ONE_AGENT
        assert health(node) == {"Healthy"}

    play(script)


def test_a_standby_that_ends_leaves_the_calls_to_the_agent_that_serves() -> None:
    async def script(node: Node, story: Story) -> None:
        node.start_agent()
        await asyncio.sleep(10.0)
        await ask_for(story, "a")
        await asyncio.sleep(10.0)
        node.agents.reverse()
        await node.stop_agent()
        await asyncio.sleep(3.0)
        assert endpoints(node) == ONE_AGENT
        await ask_for(story, "b")
        end(node, "a")
        await asyncio.sleep(20.0)
        assert phase(node, "b") == "Running"
        assert health(node) == {"Healthy"}
        assert errors(node) == []

    play(script)


def test_a_former_standby_has_one_endpoint_when_claims_are_served_later() -> None:
    """Its node had no devices for claims: there was nobody to pass calls on to."""

    async def script(node: Node, story: Story) -> None:
        node.start_agent()
        await asyncio.sleep(10.0)
        await node.stop_agent()
        await asyncio.sleep(60.0)
        assert endpoints(node) == []
        await node.ask("lanes", resource=DEVICE, shared="*")
        await asyncio.sleep(20.0)
        assert endpoints(node) == ONE_AGENT
        await ask_for(story, "a")
        await asyncio.sleep(20.0)
        assert phase(node, "a") == "Running"

    play(script, replace(SHARED, config=SHARED.config.replace("shared", "legacy")))
