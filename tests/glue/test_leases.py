"""What the scheduler hears of the leases that it waits for, and when, in hours that pass in moments."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from msgspec.structs import replace

from tests.glue.lessor import DENIED, LEASE, Lessor, play, result, shared  # isort: skip  # first: it brings the clock
from drabridge.config.schema import Leases as Rules
from drabridge.dra import leases
from drabridge.kube.claim_hints import ClaimHint, hints_object, hints_text, lock_name
from drabridge.ledger.entries import ClaimPhase, ClaimRef, Lane, Owner
from drabridge.ledger.events import ClaimDeallocated, DeviceUse, LeaseDenied
from drabridge.sim.apiserver.objects import Writer
from tests.glue.worlds import CONTROL, DRIVER, NAMESPACE, NODE


def test_a_claim_is_told_once_kubelet_has_given_up_all_of_its_devices() -> None:
    async def script(one: Lessor) -> None:
        one.kubelet_seconds = 5.0
        one.create("c")
        one.allocate("c", result("d0"), result("d1"), result("fast", pool="another"), result("x", driver="another"))
        one.nominate("c", "c")
        await asyncio.sleep(4.0)
        assert one.conditions("c") == set()
        await asyncio.sleep(4.0)
        assert one.conditions("c") == {("d0", LEASE), ("d1", LEASE)}
        assert one.phases("d0") == one.phases("d1") == {"c": ClaimPhase.GRANTED}
        (fact,) = one.facts
        assert (fact.claim.name, fact.devices, str(fact.outcome)) == ("c", ("d0", "d1"), "granted")
        assert 5.0 <= fact.seconds < 5.3
        assert one.reads("c") == 1

    play(script)


def test_only_what_the_scheduler_waits_for_is_told_and_each_share_by_itself() -> None:
    """A claim may have devices of other lanes as well, two shares of one device, and a device for two requests."""

    async def script(one: Lessor) -> None:
        shares = ["11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"]
        one.create("c")
        one.allocate(
            "c",
            result("d0"),
            result("d0", request="again", adminAccess=True),
            result("ours", bindingConditions=[], bindingFailureConditions=[]),
        )
        one.nominate("c", "c")
        one.create("s")
        one.allocate("s", *(result("many", request=f"r{n}", shareID=share) for n, share in enumerate(shares)))
        one.nominate("s", "s")
        await asyncio.sleep(2.0)
        assert [(it["device"], it.get("shareID")) for it in one.claim("c")["status"]["devices"]] == [("d0", None)]
        told = [(it["device"], it.get("shareID")) for it in one.claim("s")["status"]["devices"]]
        assert told == [("many", share) for share in shares]
        reads = one.reads("s")
        one.touch("s")
        await asyncio.sleep(2.0)
        assert one.reads("s") == reads + 1
        assert len(one.facts) == 2, "both are settled"

    many = replace(shared("many")[0], device=replace(shared("many")[0].device, shareable=True))
    play(script, [*shared("d0"), many, *shared("ours", lane=Lane.DRA)])


def test_admin_access_is_told_at_once_and_holds_nothing() -> None:
    async def script(one: Lessor) -> None:
        await one.give_to_pod("d0")
        one.supported = None
        one.create("has-one")
        own = result("ours", request="own", bindingConditions=[], bindingFailureConditions=[])
        one.allocate("has-one", result("d0", adminAccess=True), own)
        one.nominate("has-one", "has-one")
        one.create("looks")
        one.allocate("looks", result("d0", adminAccess=True), result("d1", adminAccess=True))
        one.nominate("looks", "looks", scheduler="unknown")
        await asyncio.sleep(1.0)
        assert one.conditions("looks") == {("d0", LEASE), ("d1", LEASE)}
        assert one.conditions("has-one") == {("d0", LEASE)}
        assert one.service.ledger.entries["d1"].owner is Owner.NONE
        assert one.facts == [], "it is no lease"
        await asyncio.sleep(30.0)
        assert one.reads("looks") == 1

    play(script, [*shared("d0", "d1"), *shared("ours", lane=Lane.DRA)])


def test_a_claim_for_a_device_that_a_pod_has_is_denied_after_the_slices_show_it() -> None:
    async def script(one: Lessor) -> None:
        await one.give_to_pod("d0")
        one.slices_follow = False
        one.waits("c", "d0", "d1")
        await asyncio.sleep(30.0)
        assert one.conditions("c") == set(), "the scheduler would choose the same device again"
        assert one.phases("d1") == {"c": ClaimPhase.DENIED}
        one.follow_slices()
        await asyncio.sleep(0.5)
        assert one.conditions("c") == {("d0", DENIED), ("d1", DENIED)}
        (fact,) = one.facts
        assert str(fact.outcome) == "held"
        assert fact.reason.startswith("d0 is held by a pod")
        assert one.claim("c")["status"]["devices"][0]["conditions"][0]["message"] == fact.reason
        one.allocate("c", result("d2"))
        one.touch("c")
        await asyncio.sleep(6.0)
        assert one.conditions("c") == {("d2", LEASE)}
        assert one.phases("d1") == {}
        assert one.outcomes() == [("c", "held"), ("c", "granted")]

    play(script)


def test_a_claim_whose_device_kubelet_does_not_give_up_in_time_is_denied() -> None:
    async def script(one: Lessor) -> None:
        one.kubelet_seconds = 25.0
        one.rules = Rules(kubelet_seconds=20.0)
        one.waits("c", "d0")
        await asyncio.sleep(19.0)
        assert one.conditions("c") == set()
        await asyncio.sleep(2.0)
        assert one.conditions("c") == {("d0", DENIED)}
        assert one.outcomes() == [("c", "timeout")]
        assert 20.0 <= one.facts[0].seconds < 21.0
        one.slices_follow = False
        one.waits("e", "d1")
        await asyncio.sleep(40.0)
        one.follow_slices()
        await asyncio.sleep(6.0)
        assert one.outcomes() == [("c", "timeout"), ("e", "timeout")], "the first reason counts, whenever it is told"
        assert {fact.reason for fact in one.facts} == {"kubelet did not give it up in 20 s"}

    play(script)


def test_a_denial_that_the_agent_before_did_not_tell_is_told() -> None:
    async def script(one: Lessor) -> None:
        one.create("c")
        claim = ClaimRef(one.claim("c")["metadata"]["uid"], NAMESPACE, "c")
        use = DeviceUse("d0", lease=True)
        assert (await one.service.apply(LeaseDenied(claim, (use,), time.time(), "it was held"))).accepted
        one.allocate("c", result("d0"))
        one.nominate("c", "c")
        await asyncio.sleep(1.0)
        assert one.told == [("c", DENIED)]
        assert one.outcomes() == [("c", "held")]

    play(script)


def test_a_claim_is_denied_where_the_api_server_drops_conditions_and_waits_while_that_is_not_known() -> None:
    async def script(one: Lessor) -> None:
        one.supported = None
        one.waits("later", "d0")
        await asyncio.sleep(30.0)
        assert one.conditions("later") == set()
        assert one.phases("d0") == {}
        one.supported = True
        await asyncio.sleep(10.0)
        assert one.conditions("later") == {("d0", LEASE)}
        one.supported = False
        one.waits("never", "d1")
        await asyncio.sleep(2.0)
        assert one.conditions("never") == {("d1", DENIED)}
        assert one.outcomes() == [("later", "granted"), ("never", "unsupported")]

    play(script)


def test_pods_of_a_scheduler_that_does_not_wait_get_no_lease() -> None:
    async def script(one: Lessor) -> None:
        one.rules = Rules(schedulers=("another", "third"))
        one.waits("c", "d0")
        one.create("b")
        one.allocate("b", result("d1"))
        one.nominate("b", "b", scheduler="third")
        await asyncio.sleep(2.0)
        assert one.conditions("c") == {("d0", DENIED)}
        assert one.conditions("b") == {("d1", LEASE)}
        assert {fact.claim.name: str(fact.outcome) for fact in one.facts} == {"c": "unsupported", "b": "granted"}

    play(script)


def test_a_pod_gets_all_of_its_claims_or_none_and_what_somebody_has_is_told_first() -> None:
    """If the scheduler takes back only the first one, it must not choose the device that is free by then again."""

    async def script(one: Lessor) -> None:
        await one.give_to_pod("d1")
        for name, device in (("a", "d0"), ("b", "d1"), ("c", "d2")):
            one.create(name)
            one.allocate(name, result(device))
        one.nominate("p", "a", "b", "c")
        await asyncio.sleep(5.0)
        assert one.told[0] == ("b", DENIED)
        assert sorted(one.told) == [("a", DENIED), ("b", DENIED), ("c", DENIED)]
        reasons = {fact.claim.name: fact.reason for fact in one.facts}
        assert reasons["b"].startswith("d1 is held by a pod")
        assert all("claim default/b" in reasons[name] and "of its pod was denied" in reasons[name] for name in "ac")
        assert one.outcomes() == [(name, "held") for name, _ in one.told], "each is counted once"

    play(script)


def test_no_claim_of_a_pod_is_told_before_all_are_allocated_and_given_up() -> None:
    async def script(one: Lessor) -> None:
        for name in ("a", "b", "elsewhere"):
            one.create(name)
        one.allocate("a", result("d0"))
        one.allocate("elsewhere", result("d0", pool="another"))
        one.nominate("p", "a", "b", "elsewhere")
        await asyncio.sleep(30.0)
        assert one.told == []
        assert one.phases("d0") == {}, "a claim that waits for another one keeps no device from pods"
        one.kubelet_seconds = 3.0
        one.allocate("b", result("d1"))
        await asyncio.sleep(20.0)
        assert sorted(one.told) == [("a", LEASE), ("b", LEASE)]
        assert one.outcomes() in ([("a", "granted"), ("b", "granted")], [("b", "granted"), ("a", "granted")])

    play(script)


def test_a_claim_that_has_its_lease_keeps_it_when_another_pod_with_it_gets_none() -> None:
    async def script(one: Lessor) -> None:
        one.waits("mine", "d0")
        await asyncio.sleep(2.0)
        await one.give_to_pod("d1")
        one.create("other")
        one.allocate("other", result("d1"))
        one.nominate("second", "mine", "other")
        await asyncio.sleep(5.0)
        assert one.conditions("mine") == {("d0", LEASE)}
        assert one.phases("d0") == {"mine": ClaimPhase.GRANTED}
        assert one.conditions("other") == {("d1", DENIED)}

    play(script)


def test_a_pod_waits_no_longer_than_until_its_claim_is_there_and_allocated() -> None:
    """The scheduler names the node before it allocates, and a claim of a template is created after its pod."""

    async def script(one: Lessor) -> None:
        one.nominate("c", "c")
        await asyncio.sleep(20.0)
        one.create("c")
        await asyncio.sleep(20.0)
        assert one.reads("c") < 25, "it is asked about less and less often"
        one.allocate("c", result("d0"))
        await asyncio.sleep(6.0)
        assert one.conditions("c") == {("d0", LEASE)}

    play(script)


def test_a_claim_is_served_after_whatever_went_wrong(caplog: pytest.LogCaptureFixture) -> None:
    async def script(one: Lessor) -> None:
        one.trouble.away.set()
        one.waits("c", "d0")
        await asyncio.sleep(30.0)
        one.trouble.away.clear()
        one.supported = None
        await asyncio.sleep(60.0)
        one.supported = True
        await asyncio.sleep(0.3)
        one.rules = None  # type: ignore[assignment]
        await asyncio.sleep(30.0)
        assert "a lease failed" in caplog.text
        one.rules = Rules()
        await asyncio.sleep(10.0)
        assert one.told == [("c", LEASE)]

    play(script)


def test_a_write_to_the_ledger_that_failed_is_no_reason_to_deny_a_claim() -> None:
    async def script(one: Lessor) -> None:
        one.failing_writes = 1
        one.waits("c", "d0")
        await asyncio.sleep(10.0)
        assert one.failing_writes == 0
        assert one.told == [("c", LEASE)]

    play(script)


def test_nobody_asks_about_the_claims_of_a_pod_that_is_gone_and_nothing_is_remembered_of_them() -> None:
    """An agent runs for years."""

    async def script(one: Lessor) -> None:
        one.create("unallocated")
        one.nominate("waits", "unallocated")
        one.waits("c", "d0")
        await one.give_to_pod("d1")
        one.waits("e", "d1")
        await asyncio.sleep(5.0)
        one.objects.delete("pods", "waits", NAMESPACE, grace_seconds=0)
        for name in ("c", "e"):
            one.end(name)
        await asyncio.sleep(6.0)
        reads = one.reads("unallocated")
        await asyncio.sleep(60.0)
        assert one.reads("unallocated") == reads
        remembered = {name: value for name, value in vars(one.leases).items() if isinstance(value, dict) and value}
        assert remembered.keys() == {"_denials"}

    play(script)


def test_what_the_scheduler_does_while_it_is_told_is_not_overlooked() -> None:
    """It takes the denied claim back, allocates another device and changes the pod, before the agent has its answer."""

    async def script(one: Lessor) -> None:
        def chosen_again(name: str, condition: str) -> None:
            if condition == DENIED:
                one.allocate(name, result("d1"))
                one.touch(name)

        one.when_told, one.answer_seconds = chosen_again, 1.0
        await one.give_to_pod("d0")
        one.waits("c", "d0")
        await asyncio.sleep(8.0)
        assert one.conditions("c") == {("d1", LEASE)}

    play(script)


def hint(one: Lessor, *hints: tuple[str, str]) -> None:
    """Name claims as a coordinator does: each with a resource version."""
    text = hints_text([ClaimHint(NAMESPACE, name, "some-uid", version) for name, version in hints])
    body = hints_object(DRIVER, NODE, text)
    one.objects.apply(
        "configmaps", body["metadata"]["name"], body, namespace=CONTROL, by=Writer(manager="test", force=True)
    )


def test_a_hint_of_a_coordinator_is_looked_at_once_unless_a_pod_waits() -> None:
    async def script(one: Lessor) -> None:
        one.rules = Rules(coordinator=CONTROL)
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": lock_name(DRIVER)},
            "spec": {"n": 0},
        }
        one.objects.create(lease, namespace=CONTROL)

        async def renew() -> None:
            while True:
                await asyncio.sleep(2.0)
                one.objects.modify(
                    "leases", lock_name(DRIVER), lambda it: it["spec"].update(n=it["spec"]["n"] + 1), namespace=CONTROL
                )

        renewing = asyncio.ensure_future(renew())
        await asyncio.sleep(60.0)
        for name in ("unallocated", "elsewhere", "waits"):
            one.create(name)
        one.allocate("elsewhere", result("d0", pool="another"))
        one.allocate("waits", result("d1"))
        hint(one, ("gone", "1"), ("../../x", "1"), ("unallocated", "1"), ("elsewhere", "1"), ("waits", "1"))
        await asyncio.sleep(100.0)
        assert [one.reads(name) for name in ("gone", "unallocated", "elsewhere")] == [1, 1, 1]
        assert 3 <= one.reads("waits") <= 15
        one.allocate("unallocated", result("d2"))
        hint(one, ("unallocated", "2"), ("waits", "1"))
        body: Any = {"resource": "pods", "name": "p", "uid": ""}
        one.nominate("p", "unallocated", "waits", node="")
        body["uid"] = one.objects.get("pods", "p", NAMESPACE)["metadata"]["uid"]
        for name in ("unallocated", "waits"):
            one.set_status(name, reservedFor=[body])
        await asyncio.sleep(40.0)
        assert one.conditions("unallocated") == {("d2", LEASE)}
        assert one.conditions("waits") == {("d1", LEASE)}
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)

    play(script)


def test_pods_are_followed_only_while_a_claim_may_need_a_lease() -> None:
    """A watch of the pods costs the API server something, on every node."""

    async def script(one: Lessor) -> None:
        await asyncio.sleep(60.0)
        assert one.watches_of_pods == 0
        await one.set_lane("d0", Lane.SHARED)
        await asyncio.sleep(5.0)
        assert one.watches_of_pods == 1
        one.waits("c", "d0")
        await asyncio.sleep(5.0)
        assert one.conditions("c") == {("d0", LEASE)}
        await asyncio.sleep(100.0)
        assert one.watches_of_pods == 1
        one.slices_follow = False
        one.waits("e", "d1")  # by a slice of another time
        await asyncio.sleep(3.0)
        await one.set_lane("d0", Lane.LEGACY)
        one.end("c")
        await asyncio.sleep(100.0)
        assert one.service.ledger.entries["d0"].lane is Lane.LEGACY
        assert one.watches_of_pods == 1, "a claim waits for its denial"
        one.follow_slices()
        await asyncio.sleep(6.0)
        assert one.conditions("e") == {("d1", DENIED)}
        one.end("e")
        await asyncio.sleep(20.0)
        assert one.watches_of_pods == 1, "lanes may change again soon"
        await asyncio.sleep(60.0)
        assert one.watches_of_pods == 0
        await one.set_lane("d0", Lane.SHARED)
        one.waits("f", "d0")
        await asyncio.sleep(5.0)
        assert one.conditions("f") == {("d0", LEASE)}

    play(script, shared("d0", "d1", lane=Lane.LEGACY))


def test_the_api_server_is_not_asked_about_a_claim_that_waits_unless_its_pod_cannot_be_followed() -> None:
    async def script(one: Lessor) -> None:
        one.kubelet_seconds = 25.0
        one.waits("c", "d0")
        await asyncio.sleep(20.0)
        assert one.aside.asked["resourceclaims/c"] == 0
        one.trouble.deaf_to.add("pods")
        one.touch("c")
        await asyncio.sleep(4.0)
        assert one.aside.asked["resourceclaims/c"] >= 1

    play(script)


def test_the_device_of_a_claim_that_was_replaced_while_it_waited_becomes_free() -> None:
    async def script(one: Lessor) -> None:
        one.kubelet_seconds = 1000.0
        one.rules = Rules(kubelet_seconds=5.0)
        one.waits("c", "d0")
        await asyncio.sleep(3.0)
        one.objects.delete("resourceclaims", "c", NAMESPACE)
        one.create("c")
        one.kubelet_seconds = 3.0
        one.allocate("c", result("d1"))
        one.touch("c")
        await asyncio.sleep(60.0)
        assert one.service.ledger.entries["d0"].owner is Owner.NONE
        assert one.conditions("c") == {("d1", LEASE)}

    play(script)


def test_a_claim_that_is_deleted_while_it_waits_frees_its_device_soon() -> None:
    async def script(one: Lessor) -> None:
        one.kubelet_seconds = 1000.0
        one.waits("c", "d0")
        await asyncio.sleep(3.0)
        one.end("c")
        await asyncio.sleep(3.0)
        assert one.service.ledger.entries["d0"].owner is Owner.NONE

    play(script)


@pytest.mark.parametrize("changes", [1, 3, 9])
def test_a_denial_is_told_though_the_scheduler_changes_the_claim_meanwhile(changes: int) -> None:
    async def script(one: Lessor) -> None:
        left = changes

        def change(body: dict[str, Any]) -> None:
            nonlocal left
            if left:
                left -= 1
                one.label("c", str(left))

        one.trouble.before_apply = change
        await one.give_to_pod("d0")
        one.waits("c", "d0")
        await asyncio.sleep(10.0)
        assert one.conditions("c") == {("d0", DENIED)}
        assert one.outcomes() == [("c", "held")]

    play(script)


@pytest.mark.parametrize("anew", [True, False])
def test_no_allocation_is_denied_for_one_before_it(anew: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def script(one: Lessor) -> None:
        again: list[bool] = []

        def allocate_again(body: dict[str, Any]) -> None:
            if not again:
                again.append(True)
                one.allocate("c", *([result("d1")] if anew else []))

        one.trouble.before_apply = allocate_again
        await one.give_to_pod("d0")
        one.waits("c", "d0")
        await asyncio.sleep(0.5)
        assert again
        assert one.conditions("c") == set()
        one.allocate("c", result("d1"))
        one.touch("c")
        await asyncio.sleep(10.0)
        assert one.told == [("c", LEASE)]
        assert one.outcomes() == [("c", "granted")]
        assert "a lease failed" not in caplog.text

    play(script)


def test_no_lease_is_told_to_an_allocation_that_came_after_it() -> None:
    async def script(one: Lessor) -> None:
        again: list[bool] = []

        async def deallocate() -> None:
            await one.service.apply(ClaimDeallocated(one.claim("c")["metadata"]["uid"], time.time()))
            await one.give_to_pod("d0")

        def allocate_again(body: dict[str, Any]) -> None:
            if not again:
                again.append(True)
                one.allocate("c", result("d0"))
                one.later(deallocate())

        one.trouble.before_apply = allocate_again
        one.waits("c", "d0")
        await asyncio.sleep(10.0)
        assert again
        assert one.told == [("c", DENIED)]

    play(script)


def test_a_pod_that_takes_the_device_of_one_claim_denies_all_claims_of_the_other_pod_at_once() -> None:
    async def script(one: Lessor) -> None:
        one.kubelet_seconds = 1000.0
        for name, device in (("a", "d0"), ("b", "d1")):
            one.create(name)
            one.allocate(name, result(device))
        one.nominate("p", "a", "b")
        await asyncio.sleep(5.0)
        assert one.phases("d0") == {"a": ClaimPhase.PENDING}
        await one.give_to_pod("d1")
        await asyncio.sleep(3.0)
        assert one.told == [("b", DENIED), ("a", DENIED)]

    play(script)


def test_a_device_that_is_not_there_any_more_denies_the_claim() -> None:
    async def script(one: Lessor) -> None:
        one.waits("c", "gone")
        one.waits("e", "gone", "d1")
        await asyncio.sleep(5.0)
        assert one.conditions("c") == {("gone", DENIED)}
        assert one.conditions("e") == {("gone", DENIED), ("d1", DENIED)}

    play(script)


def test_a_denied_claim_is_told_though_another_claim_of_its_pod_was_taken_back() -> None:
    async def script(one: Lessor) -> None:
        await one.give_to_pod("d0")
        for name, device in (("a", "d0"), ("b", "d1")):
            one.create(name)
            one.allocate(name, result(device))
        one.slices_follow = False
        one.nominate("p", "a", "b")
        await asyncio.sleep(3.0)
        one.allocate("b")
        await asyncio.sleep(10.0)
        one.follow_slices()
        await asyncio.sleep(6.0)
        assert one.conditions("a") == {("d0", DENIED)}

    play(script)


def test_a_claim_that_an_agent_told_whose_ledger_was_lost_keeps_no_other_claim_waiting() -> None:
    async def script(one: Lessor) -> None:
        one.create("told")
        one.allocate("told", result("d0"))
        entry = {"driver": DRIVER, "pool": NODE, "device": "d0", "conditions": [condition(LEASE)]}
        one.set_status("told", devices=[entry])
        one.create("c")
        one.allocate("c", result("d1"))
        one.nominate("p", "told", "c")
        await asyncio.sleep(3.0)
        assert one.conditions("c") == {("d1", LEASE)}
        assert one.reads("told") <= 3

    play(script)


def test_a_claim_that_was_told_its_denial_before_the_ledger_was_lost_denies_the_others_of_its_pod() -> None:
    async def script(one: Lessor) -> None:
        one.create("told")
        one.allocate("told", result("d0"))
        entry = {"driver": DRIVER, "pool": NODE, "device": "d0", "conditions": [condition(DENIED)]}
        one.set_status("told", devices=[entry])
        one.create("c")
        one.allocate("c", result("d1"))
        one.nominate("p", "told", "c")
        await asyncio.sleep(3.0)
        assert one.conditions("c") == {("d1", DENIED)}

    play(script)


def test_a_pod_with_a_device_of_its_own_and_admin_access_to_others_waits_for_no_device_of_the_others() -> None:
    async def script(one: Lessor) -> None:
        def change(body: dict[str, Any]) -> None:
            if body["metadata"]["name"] == "looks" and len(turns) < 3:
                turns.append(str(len(turns)))
                one.label("looks", turns[-1])  # so that it is told later

        turns: list[str] = []
        one.trouble.before_apply = change
        await one.give_to_pod("d0")
        for name, devices in (("looks", [result("d0", adminAccess=True)]), ("c", [result("d1")])):
            one.create(name)
            one.allocate(name, *devices)
        one.nominate("p", "looks", "c")
        await asyncio.sleep(3.0)
        assert one.conditions("looks") == {("d0", LEASE)}
        assert one.conditions("c") == {("d1", LEASE)}

    play(script)


def test_a_lease_that_was_granted_and_not_told_yet_is_told_though_no_other_would_be_granted_now() -> None:
    async def script(one: Lessor) -> None:
        one.kubelet_seconds = 3.0
        one.waits("c", "d0")
        await asyncio.sleep(2.0)
        one.trouble.away.set()
        await asyncio.sleep(3.0)
        one.supported = False
        one.trouble.away.clear()
        await asyncio.sleep(20.0)
        assert one.told == []
        one.supported = True
        await asyncio.sleep(10.0)
        assert one.told == [("c", LEASE)]

    play(script)


def condition(kind: str, status: str = "True") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}


def test_neither_others_words_nor_a_condition_that_is_false_count_as_told() -> None:
    async def script(one: Lessor) -> None:
        one.create("c")
        elsewhere = (result("d0", driver="another.example.com"), result("d0", pool="another"))
        one.allocate("c", result("d0"), *elsewhere)
        entries = [
            {"driver": "another.example.com", "pool": NODE, "device": "d0", "conditions": [condition(LEASE)]},
            {"driver": DRIVER, "pool": "another", "device": "d0", "conditions": [condition(LEASE)]},
            {"driver": DRIVER, "pool": NODE, "device": "d0", "conditions": [condition(LEASE, "False")]},
        ]
        one.set_status("c", devices=entries)
        one.nominate("c", "c")
        await asyncio.sleep(3.0)
        (mine,) = [it for it in one.claim("c")["status"]["devices"] if (it["driver"], it["pool"]) == (DRIVER, NODE)]
        assert [it["status"] for it in mine["conditions"]] == ["True"]
        one.create("e")
        one.allocate("e", result("d1"))
        one.set_status("e", devices=[{"driver": DRIVER, "pool": NODE, "device": "d1", "data": {}}])
        one.nominate("e", "e")
        await asyncio.sleep(3.0)
        assert one.conditions("e") == {("d1", LEASE)}

    play(script)


def test_a_claim_that_lost_its_devices_begins_anew_without_a_wait() -> None:
    async def script(one: Lessor) -> None:
        one.kubelet_seconds = 1000.0
        one.waits("c", "d0")
        await asyncio.sleep(3.0)
        one.kubelet_seconds = 1.0
        await one.service.apply(ClaimDeallocated(one.claim("c")["metadata"]["uid"], time.time()))
        await asyncio.sleep(5.0)
        assert one.told == [("c", LEASE)]

    play(script)


def test_a_claim_that_follows_one_that_was_just_taken_back_is_not_denied() -> None:
    async def script(one: Lessor) -> None:
        one.waits("old", "d0")
        await asyncio.sleep(100.0)
        one.allocate("old")
        one.waits("new", "d0")
        await asyncio.sleep(2.0)
        assert one.conditions("new") == {("d0", LEASE)}
        assert one.outcomes() == [("old", "granted"), ("new", "granted")]

    play(script)


def test_the_lease_stays_when_other_words_about_the_device_are_written() -> None:
    """After NodePrepare the agent writes the devices' state, as another manager."""

    async def script(one: Lessor) -> None:
        one.waits("c", "d0")
        await asyncio.sleep(3.0)
        entry = {"driver": DRIVER, "pool": NODE, "device": "d0", "conditions": [condition("Ready")]}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "c"},
            "status": {"devices": [entry]},
        }
        by = Writer(manager=DRIVER, force=True)
        one.objects.apply("resourceclaims", "c", body, namespace=NAMESPACE, subresource="status", by=by)
        assert one.conditions("c") == {("d0", "Ready"), ("d0", LEASE)}

    play(script)


def test_claims_that_were_denied_often_are_counted_and_the_oldest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "REMEMBERED", 2)

    async def script(one: Lessor) -> None:
        await one.give_to_pod("d0")
        for name in ("a", "b"):
            one.waits(name, "d0")
            await asyncio.sleep(10.0)
        one.allocate("a", result("d0"))
        one.touch("a")
        await asyncio.sleep(10.0)
        assert one.denials("a", "b") == [2, 1]
        one.waits("c", "d0")
        await asyncio.sleep(10.0)
        assert one.denials("a", "b", "c") == [2, 0, 1]

    play(script)
