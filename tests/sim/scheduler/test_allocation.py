"""Which devices the scheduler takes: order, modes, alternatives, constraints, taints, counters, shares, admins."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.scheduler.world import DRIVER, World, device


@pytest.fixture
async def world() -> World:
    world = World()
    world.device_class()
    return world


def request(name: str, **exactly: Any) -> Any:
    return {"name": name, "exactly": {"deviceClassName": "gpu", **exactly}}


def selecting(expression: str) -> Any:
    return [{"cel": {"expression": f'device.attributes["{DRIVER}"].{expression}'}}]


TAINT = {"key": "k.example.com/held", "value": "legacy", "effect": "NoSchedule"}


async def test_first_fit_in_listed_order(world: World) -> None:
    world.slice("b", "a", pool_fields={"resourceSliceCount": 2}, name="s1")
    world.slice("z", pool_fields={"resourceSliceCount": 2}, name="s0")
    for number, expected in enumerate(("z", "b", "a")):
        world.claim(f"c{number}")
        world.pod(f"p{number}", f"c{number}")
        world.step()
        assert world.devices(f"c{number}") == [expected]
    world.claim("c3")
    world.pod("p3", "c3")
    world.step()
    assert world.why("p3") == "0/1 nodes are available: 1 cannot allocate all claims."


async def test_incomplete_pools_and_old_generations_are_ignored(world: World) -> None:
    world.slice("old", name="s0", pool_fields={"generation": 1})
    world.slice("new", name="s1", pool_fields={"generation": 2, "resourceSliceCount": 2})
    world.claim()
    world.pod("p", "c")
    world.step()
    assert world.devices() == []
    world.slice("more", name="s2", pool_fields={"generation": 2, "resourceSliceCount": 2})
    world.step()
    assert world.devices() == ["new"]


async def test_pool_with_duplicate_names_is_not_used(world: World) -> None:
    world.slice("a", name="s0", pool_fields={"resourceSliceCount": 2})
    world.slice("a", name="s1", pool_fields={"resourceSliceCount": 2})
    world.claim()
    world.pod("p", "c")
    world.step()
    assert world.devices() == []


async def test_pool_with_binding_conditions_comes_last(world: World) -> None:
    conditions = {"bindingConditions": ["x.example.com/ok"], "bindingFailureConditions": ["x.example.com/no"]}
    world.slice(device("guarded", **conditions), name="s0", pool="a-pool")
    world.slice("plain", name="s1", pool="b-pool")
    world.claim("c", count=2)
    world.pod("p", "c")
    world.step()
    assert world.devices() == ["plain", "guarded"]


async def test_selectors_of_class_and_request_both_hold(world: World) -> None:
    world.device_class("big", f'device.attributes["{DRIVER}"].size > 5')
    world.slice(*(device(f"d{n}", attributes={"size": n, "odd": n % 2 == 1}) for n in range(4, 9)))
    world.claim("c", {"name": "r", "exactly": {"deviceClassName": "big", "selectors": selecting("odd")}})
    world.pod("p", "c")
    world.step()
    assert world.devices() == ["d7"]


async def test_all_takes_every_match_or_nothing(world: World) -> None:
    world.slice(*(device(f"d{n}", attributes={"even": n % 2 == 0}) for n in range(4)))
    world.claim("evens", allocationMode="All", selectors=selecting("even"))
    world.claim("all", allocationMode="All")
    world.pod("p", "evens")
    world.pod("q", "all")
    world.step()
    assert world.devices("evens") == ["d0", "d2"]
    assert world.devices("all") == []
    world.end("p")
    world.step()
    assert world.devices("all") == ["d0", "d1", "d2", "d3"]


async def test_first_available_prefers_and_falls_back(world: World) -> None:
    sub = {"deviceClassName": "gpu", "count": 2}
    prioritized = {"name": "r", "firstAvailable": [{"name": "two", **sub}, {"name": "one", **sub, "count": 1}]}
    world.slice("d0", "d1", "d2")
    for name in ("a", "b"):
        world.claim(name, prioritized)
        world.pod(name, name)
        world.step()
    assert [one["request"] for one in world.results("a")] == ["r/two", "r/two"]
    assert [one["request"] for one in world.results("b")] == ["r/one"]


async def test_match_attribute_backtracks(world: World) -> None:
    world.slice(*(device(f"d{n}", attributes={"numa": numa}) for n, numa in enumerate((0, 1, 1))))
    world.claim("c", request("x"), request("y"), constraints=[{"matchAttribute": f"{DRIVER}/numa"}])
    world.pod("p", "c")
    world.step()
    assert world.devices() == ["d1", "d2"]


@pytest.mark.parametrize(
    ("effect", "tolerations", "expected"),
    [
        ("NoSchedule", [], ["free"]),
        ("NoExecute", [], ["free"]),
        ("None", [], ["held"]),
        ("NoSchedule", [{"operator": "Exists"}], ["held"]),
        ("NoSchedule", [{"key": TAINT["key"], "operator": "Equal", "value": "legacy"}], ["held"]),
        ("NoSchedule", [{"key": TAINT["key"], "operator": "Equal", "value": "other"}], ["free"]),
        ("NoSchedule", [{"key": TAINT["key"], "operator": "Exists", "effect": "NoExecute"}], ["free"]),
    ],
)
async def test_taints(world: World, effect: str, tolerations: Any, expected: Any) -> None:
    world.slice(device("held", taints=[{**TAINT, "effect": effect}]), "free")
    world.claim("c", tolerations=tolerations)
    world.pod("p", "c")
    world.step()
    assert world.devices() == expected


def rule(world: World, name: str, selector: Any, effect: str = "NoSchedule") -> None:
    spec = {"taint": {**TAINT, "effect": effect}, **({} if selector is None else {"deviceSelector": selector})}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": name}, "spec": spec}
    world.objects.create(body)


@pytest.mark.parametrize(
    ("selector", "free"),
    [
        (None, ["held"]),
        ({"device": "held"}, ["free"]),
        ({"driver": DRIVER, "pool": "node-a", "device": "held"}, ["free"]),
        ({"driver": "other.example.com", "device": "held"}, ["held"]),
        ({"pool": "other"}, ["held"]),
        ({}, []),
    ],
)
async def test_rules_taint_the_devices_that_they_select(selector: Any, free: list[str]) -> None:
    world = World(release="1.37")
    world.device_class()
    world.slice("held", "free")
    rule(world, "repair", selector)
    world.claim()
    world.pod("p", "c")
    world.step()
    assert world.devices() == free
    (stored,) = world.objects.list("resourceslices")
    assert not any("taints" in one for one in stored["spec"]["devices"]), "a rule writes nothing to slices"


async def test_a_rule_evicts_users_and_lets_them_in_again_when_it_is_deleted() -> None:
    world = World(release="1.37")
    world.device_class()
    world.slice("d0")
    world.claim()
    world.pod("p", "c", terminationGracePeriodSeconds=0)
    world.step()
    rule(world, "repair", {"device": "d0"}, "NoExecute")
    world.step()
    assert not world.objects.list("pods")
    world.claim("again")
    world.pod("q", "again")
    world.step()
    assert world.devices("again") == []
    world.objects.delete("devicetaintrules", "repair")
    world.step()
    assert world.devices("again") == ["d0"]


async def test_no_execute_evicts_users_but_not_of_extended_claims(world: World) -> None:
    world.device_class("ext", extendedResourceName="example.com/gpu")
    world.slice("d0", "d1", "d2")
    world.claim("c")
    world.claim("t", tolerations=[{"operator": "Exists"}])
    world.pod("p", "c", terminationGracePeriodSeconds=0)
    world.pod("q", "t", terminationGracePeriodSeconds=0)
    world.pod("x", limits={"example.com/gpu": "1"}, terminationGracePeriodSeconds=0)
    world.step()

    def taint(slice_: Any) -> None:
        for one in slice_["spec"]["devices"]:
            one["taints"] = [{**TAINT, "effect": "NoExecute"}]

    world.objects.modify("resourceslices", "s0", taint)
    world.step()
    assert [pod["metadata"]["name"] for pod in world.objects.list("pods")] == ["q", "x"]


async def test_admin_access_sees_held_devices_and_holds_none(world: World) -> None:
    world.slice("d0")
    world.claim("user")
    world.claim("admin", adminAccess=True)
    world.claim("later")
    for name in ("user", "admin", "later"):
        world.pod(name, name)
    world.step()
    assert world.devices("user") == world.devices("admin") == ["d0"]
    assert world.results("admin")[0]["adminAccess"] is True
    assert world.devices("later") == []
    world.end("user")
    world.step()
    assert world.devices("later") == ["d0"]


def uses(amount: str) -> Any:
    return [{"counterSet": "card", "counters": {"memory": {"value": amount}}}]


async def test_shared_counters_exclude_whole_and_parts(world: World) -> None:
    world.slice(
        name="s0",
        pool_fields={"resourceSliceCount": 2},
        sharedCounters=[{"name": "card", "counters": {"memory": {"value": "40Gi"}}}],
    )
    world.slice(
        device("whole", attributes={"part": False}, consumesCounters=uses("40Gi")),
        device("half-0", attributes={"part": True}, consumesCounters=uses("20Gi")),
        device("half-1", attributes={"part": True}, consumesCounters=uses("20Gi")),
        name="s1",
        pool_fields={"resourceSliceCount": 2},
    )
    world.claim("half", selectors=selecting("part"))
    world.claim("whole", selectors=selecting("part == false"))
    world.claim("other", selectors=selecting("part"))
    world.pod("p", "half")
    world.pod("q", "whole")
    world.pod("r", "other")
    world.step()
    assert (world.devices("half"), world.devices("whole"), world.devices("other")) == (["half-0"], [], ["half-1"])
    for pod in ("p", "r"):
        world.end(pod)
    world.step()
    assert world.devices("whole") == ["whole"]


SHARED = {
    "value": "40Gi",
    "requestPolicy": {"default": "10Gi", "validRange": {"min": "5Gi", "step": "5Gi", "max": "40Gi"}},
}


@pytest.mark.parametrize(("asked", "taken"), [(None, "10Gi"), ("1Gi", "5Gi"), ("11Gi", "15Gi"), ("40Gi", "40Gi")])
async def test_consumable_capacity_is_rounded_by_policy(world: World, asked: str | None, taken: str) -> None:
    world.slice(device("card", allowMultipleAllocations=True, capacity={"memory": SHARED}))
    world.claim("c", **({"capacity": {"requests": {"memory": asked}}} if asked else {}))
    world.pod("p", "c")
    world.step()
    (result,) = world.results()
    assert result["consumedCapacity"] == {"memory": taken}
    assert len(result["shareID"]) == 36


async def test_shares_fill_a_device_and_no_more(world: World) -> None:
    world.slice(device("card", allowMultipleAllocations=True, capacity={"memory": SHARED}))
    shares = set()
    for number in range(3):
        world.claim(f"c{number}", capacity={"requests": {"memory": "15Gi"}})
        world.pod(f"p{number}", f"c{number}")
        world.step()
        shares |= {one["shareID"] for one in world.results(f"c{number}")}
    assert len(shares) == 2
    assert world.devices("c2") == []


async def test_devices_of_another_node_and_of_all_nodes() -> None:
    world = World(nodes=("node-a", "node-b"))
    world.device_class()
    world.slice("local", node="node-b")
    world.claim("c")
    world.pod("p", "c")
    world.step()
    assert world.node_of("p") == "node-b"
    world.slice("network", name="net", pool="net", allNodes=True)
    world.claim("n")
    world.pod("q", "n")
    world.step()
    assert world.node_of("q") == "node-a"
    assert "nodeSelector" not in world.get("resourceclaims", "n")["status"]["allocation"]


async def test_second_pod_of_a_claim_follows_to_its_node() -> None:
    world = World(nodes=("node-a", "node-b"))
    world.device_class()
    world.slice("d0", node="node-b")
    world.claim("c")
    for pod in ("p", "q"):
        world.pod(pod, "c")
    world.step()
    assert [world.node_of(pod) for pod in ("p", "q")] == ["node-b", "node-b"]


async def test_several_claims_of_one_pod_are_all_or_nothing(world: World) -> None:
    world.slice("d0")
    for name in ("c1", "c2"):
        world.claim(name)
    world.pod("p", "c1", "c2")
    world.step()
    assert world.devices("c1") == world.devices("c2") == []
