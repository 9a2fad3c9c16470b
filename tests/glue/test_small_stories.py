"""The smallest stories of what the random ones are about, each with its own order of messages."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import Any

from drabridge.coordinator.hint_writer import MANAGER, HintWriter
from drabridge.coordinator.pending_claims import PendingClaims, waiting_claim
from drabridge.kube.claim_hints import hints_name, hints_object
from drabridge.ledger.entries import Owner
from drabridge.ledger.events import ClaimDeallocated
from drabridge.sim.apiserver.objects import Objects, Writer
from drabridge.sim.apiserver.server import SimApiServer
from drabridge.sim.kubelet.faults import ListFault
from tests.glue import processes
from tests.glue.api_connection import Connection, Trouble
from tests.glue.node import Node
from tests.glue.small_story import ask_for, claim, device_of, phase, play
from tests.glue.story import Story
from tests.glue.worlds import CONTROL, COORDINATOR, DRIVER, NAMESPACE, NODE


def test_no_lease_is_told_of_an_allocation_that_came_after_it() -> None:
    """While the condition is on its way the claim is deallocated and allocated again: its device may be a pod's now."""

    async def script(node: Node, story: Story) -> None:
        def allocate_again(body: dict[str, Any]) -> None:
            if body.get("status", {}).get("devices") and not again:
                found, objects = claim(node, "c"), node.cluster.api.objects
                for status in (dict[str, Any](), found["status"]):
                    objects.update({**claim(node, "c"), "status": status}, subresource="status")
                again.append(node.service.submit(ClaimDeallocated(found["metadata"]["uid"], time.time())))

        again: list[object] = []
        node.trouble.before_apply = allocate_again
        await ask_for(story, "c")
        await asyncio.sleep(30.0)
        assert again
        assert phase(node, "c") == "Running"

    play(script)


def test_a_claim_waits_while_kubelet_says_nothing_and_is_served_when_it_does() -> None:
    async def script(node: Node, story: Story) -> None:
        node.kubelet.faults.podresources = ListFault.ERROR
        await ask_for(story, "c")
        await asyncio.sleep(15.0)
        assert node.ledger.entries[device_of(node, "c")].owner is Owner.DRA_PENDING
        assert phase(node, "c") == "Pending"
        node.kubelet.faults.podresources = ListFault.NONE
        await asyncio.sleep(15.0)
        assert phase(node, "c") == "Running"

    play(script)


def test_a_claim_that_ends_while_pods_cannot_be_followed_gives_its_device_back() -> None:
    """Its lease is not told yet, and nobody says that its pod is gone: then the API server is asked about the claim."""

    async def script(node: Node, story: Story) -> None:
        node.kubelet.faults.podresources = ListFault.ERROR
        await ask_for(story, "c")
        await asyncio.sleep(5.0)
        device = device_of(node, "c")
        assert node.ledger.entries[device].owner is Owner.DRA_PENDING
        node.trouble.deaf_to.add("pods")
        objects = node.cluster.api.objects
        objects.delete("pods", "c", NAMESPACE, grace_seconds=0)
        objects.delete("resourceclaims", "c", NAMESPACE)
        await asyncio.sleep(20.0)
        assert node.ledger.entries[device].owner is Owner.NONE

    play(script)


def test_a_hint_at_a_claim_that_is_gone_is_followed_once() -> None:
    """A coordinator's old hint must not make every agent ask about a claim for ever."""

    async def script(node: Node, story: Story) -> None:
        node.start_coordinator()
        await asyncio.sleep(60.0)
        hint = '[{"namespace":"default","name":"gone","uid":"u","resourceVersion":"1"}]'
        late = Writer(manager=MANAGER, force=True)
        node.cluster.api.objects.apply(
            "configmaps", hints_name(DRIVER, NODE), hints_object(DRIVER, NODE, hint), namespace=CONTROL, by=late
        )
        await asyncio.sleep(50.0)
        assert node.trouble.asked["resourceclaims/gone"] == 1

    play(script, COORDINATOR)


def test_a_denied_claim_is_offered_elsewhere_first() -> None:
    """Kubelet gives up nothing in time: the claim is denied, and the slice says so before the claim does."""

    async def script(node: Node, story: Story) -> None:
        denied: list[str] = []
        node.kubelet.faults.podresources = ListFault.ERROR
        node.cluster.api.objects.store.subscribe(
            lambda change: (
                denied.append(str(change.object))
                if "lease-denied" in str(change.object.get("status", {}).get("devices"))
                else None
            )
        )
        await ask_for(story, "c")
        await asyncio.sleep(45.0)
        assert denied
        node.kubelet.faults.podresources = ListFault.NONE
        await asyncio.sleep(60.0)
        assert phase(node, "c") == "Running"

    play(script)


def test_a_late_write_of_an_ended_coordinator_is_mended_within_a_minute() -> None:
    """A leader that stood still in a write goes on when another one leads: a claim would miss its hint."""

    async def whole(dice: random.Random) -> None:
        objects: Objects = SimApiServer().objects
        pending = PendingClaims(DRIVER, lambda pool: writer.changed(pool))
        connections: Any = (Connection(objects, Trouble(dice)),)
        writer = HintWriter(connections, DRIVER, CONTROL, pending, lambda how: None)
        pending.listed(())
        work = asyncio.ensure_future(writer.run())
        pending.changed("ADDED", waiting_claim(WAITS, DRIVER))
        await asyncio.sleep(5.0)
        name = hints_name(DRIVER, NODE)

        def hints() -> str:
            return str(objects.get("configmaps", name, CONTROL)["data"]["claims"])

        assert "the-claim" in hints()
        late = Writer(manager=MANAGER, force=True)
        objects.apply("configmaps", name, hints_object(DRIVER, NODE, "[]"), namespace=CONTROL, by=late)
        await asyncio.sleep(61.0)
        assert "the-claim" in hints()
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work

    processes.run(1, whole)


CONDITION = f"{DRIVER}/lease"
RESULT = {"driver": DRIVER, "pool": NODE, "device": "d0", "bindingConditions": [CONDITION], "adminAccess": True}
WAITS: dict[str, Any] = {
    "metadata": {"namespace": NAMESPACE, "name": "the-claim", "uid": "u", "resourceVersion": "5"},
    "status": {"allocation": {"devices": {"results": [RESULT]}}},
}


def test_a_coordinator_names_claims_with_admin_access_until_they_are_told() -> None:
    """The scheduler waits for a word about these, too."""
    told = {"driver": DRIVER, "pool": NODE, "device": "d0", "conditions": [{"type": CONDITION, "status": "True"}]}
    assert waiting_claim(WAITS, DRIVER).pools == (NODE,)
    assert waiting_claim({**WAITS, "status": {**WAITS["status"], "devices": [told]}}, DRIVER).pools == ()
