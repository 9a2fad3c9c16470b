"""A plan on numbers: no device is given twice, and each step leaves every workload its devices."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from drabridge.migrate.plan.document import How
from drabridge.migrate.plan.packing import Demand, NodeState, Packing, may_run
from drabridge.migrate.report.readers import NodeFacts, Placement, Requirement, Toleration

GPUS = 8


def facts(name: str, *, cordoned: bool = False, taint: str = "", **labels: str) -> NodeFacts:
    taints = ((taint, "", "NoSchedule"),) if taint else ()
    return NodeFacts(name, (), cordoned, taints, labels)


def state(name: str, *, held: int = 0, total: int = GPUS, cordoned: bool = False) -> NodeState:
    return NodeState(facts(name, cordoned=cordoned), total, 0, total - held, 0)


def said(packing: Packing, demand: Demand) -> list[tuple[str, bool]]:
    return list(packing.move(demand))


def rollout(devices: int, *on: str, unavailable: int = 0) -> Demand:
    pods = [(name, devices) for name in on]
    surge = int(not unavailable)
    return Demand("team", "Deployment", "web", How.ROLLOUT, devices, pods, 0, surge, unavailable)


def test_a_rollout_with_surge_takes_one_more_device_and_leaves_it_free_for_claims() -> None:
    packing = Packing([state("a", held=2)], keep=0)
    assert said(packing, rollout(1, "a", "a")) == []
    (node,) = packing.nodes.values()
    assert (node.claims, node.free_claims, node.free_limits) == (3, 1, 5)


def test_a_second_rollout_uses_the_device_that_the_first_one_left() -> None:
    packing = Packing([state("a", held=4)], keep=0)
    assert said(packing, rollout(1, "a", "a")) + said(packing, rollout(1, "a", "a")) == []
    assert packing.nodes["a"].claims == 5


def test_without_a_free_device_a_surge_does_not_fit_and_the_words_say_where() -> None:
    packing = Packing([state("a", held=8), state("b", held=8), state("c", cordoned=True)], keep=0)
    ((words, lacks),) = said(packing, rollout(1, "a"))
    assert lacks
    assert "1 free device on one of a, b" in words
    assert "maxUnavailable: 1" in words


def test_without_a_free_device_a_rollout_that_may_lack_a_pod_fits() -> None:
    packing = Packing([state("a", held=8)], keep=0)
    assert said(packing, rollout(2, "a", "a", unavailable=1)) == []
    assert packing.nodes["a"].claims == 4


def test_free_devices_on_two_nodes_are_not_free_devices_on_one() -> None:
    packing = Packing([state("a", held=6), state("b", held=6)], keep=0)
    ((words, lacks),) = said(packing, rollout(4, "a"))
    assert lacks
    assert "4 free devices on one of a, b" in words


def test_kept_devices_stay_for_limits() -> None:
    packing = Packing([state("a", held=7)], keep=8)
    (_, lacks), *_ = said(packing, rollout(1, "a"))
    assert lacks
    packing = Packing([state("b", held=2)], keep=3)
    assert packing.take_the_rest("b") == 5
    assert packing.nodes["b"].free_limits == 1


def test_what_ends_by_itself_gives_its_devices_when_it_ends() -> None:
    packing = Packing([state("a", held=3)], keep=0)
    assert said(packing, Demand("team", "Job", "train", How.ENDS, 3, [("a", 3)])) == []
    assert packing.nodes["a"].claims == 3


def test_the_next_run_finds_its_devices_free_and_says_when_it_would_wait() -> None:
    packing = Packing([state("a", held=5)], keep=0)
    night = Demand("team", "CronJob", "night", How.NEXT, 2, waiting=2)
    ((words, lacks),) = said(packing, night)
    assert (words, lacks) == ("CronJob/night: its next run would wait for 2 free devices on one node", False)
    assert packing.nodes["a"].free_claims == 2


LINUX = Requirement("os", "In", ("linux",))


def test_labels_taints_and_cordons_say_where_a_pod_may_run() -> None:
    assert may_run(Placement(), facts("a"))
    assert not may_run(Placement(), facts("a", cordoned=True))
    assert may_run(Placement(labels=(("os", "linux"),)), facts("a", os="linux"))
    assert not may_run(Placement(labels=(("os", "linux"),)), facts("a"))
    assert may_run(Placement(terms=((Requirement("x", "Exists", ()),), (LINUX,))), facts("a", os="linux"))
    assert not may_run(Placement(terms=((Requirement("x", "Exists", ()), LINUX),)), facts("a", os="linux"))
    assert may_run(Placement(terms=((Requirement("n", "Gt", ("4",)),),)), facts("a", n="5"))
    assert not may_run(Placement(terms=((Requirement("n", "Lt", ("4",)),),)), facts("a", n="many"))
    assert may_run(
        Placement(terms=((Requirement("x", "NotIn", ("1",)), Requirement("y", "DoesNotExist", ())),)), facts("a")
    )
    assert not may_run(Placement(), facts("a", taint="gpu"))
    assert may_run(Placement(tolerations=(Toleration("gpu", True, "", ""),)), facts("a", taint="gpu"))
    assert may_run(Placement(tolerations=(Toleration("", True, "", "NoSchedule"),)), facts("a", taint="gpu"))
    assert not may_run(Placement(tolerations=(Toleration("gpu", True, "", "NoExecute"),)), facts("a", taint="gpu"))
    assert may_run(Placement(tolerations=(Toleration("gpu", False, "", ""),)), facts("a", taint="gpu"))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[NodeState], list[Demand], int]:
    """Nodes with pods on limits that fit on them, and what becomes of each workload."""
    nodes = {name: state(name, total=draw(st.integers(1, GPUS))) for name in "abc"}
    demands = []
    for number in range(draw(st.integers(1, 5))):
        devices = draw(st.integers(1, 4))
        pods = []
        for name in draw(st.lists(st.sampled_from("abc"), max_size=4)):
            if nodes[name].free_limits >= devices:
                nodes[name].free_limits -= devices
                pods.append((name, devices))
        how = draw(st.sampled_from(How))
        waiting, unavailable = draw(st.integers(0, 2)), draw(st.integers(0, 1))
        demands.append(Demand("n", "Deployment", str(number), how, devices, pods, waiting, 1, unavailable))
    return list(nodes.values()), demands, draw(st.integers(0, 2))


@given(clusters())
def test_devices_are_neither_lost_nor_given_twice(cluster: tuple[list[NodeState], list[Demand], int]) -> None:
    nodes, demands, keep = cluster
    packing = Packing(nodes, keep)
    on_limits = {node.facts.name: node.total - node.free_limits for node in nodes}
    claimed = 0
    for demand in demands:
        before = {name: node.claims for name, node in packing.nodes.items()}
        lacks = any(lacking for _, lacking in packing.move(demand))
        for name, node in packing.nodes.items():
            assert min(node.claims, node.free_claims, node.free_limits) >= 0
            assert node.free_claims <= node.claims <= node.total - min(keep, node.total)
            assert node.claims >= before[name], "a step takes nothing back from claims"
        if lacks:
            return
        for name, devices in demand.on:
            on_limits[name] -= devices
        held = sum(node.claims - node.free_claims for node in packing.nodes.values())
        if demand.how is How.ROLLOUT:
            assert held - claimed >= sum(devices for _, devices in demand.on), "each pod has its devices again"
        claimed = held
        for name, node in packing.nodes.items():
            assert node.total - node.claims - node.free_limits == on_limits[name], "the rest is held by limits"
