"""What ListAndWatch says of a resource, device by device and as a whole."""

from __future__ import annotations

from msgspec.structs import replace

from drabridge.inventory.devices import Device, Presence
from drabridge.ledger.entries import Entry, Lane, LedgerDevice, Owner
from drabridge.ledger.events import (
    Allocate,
    CheckpointRead,
    ClaimDeallocated,
    Cordoned,
    Discovered,
    KubeletStarted,
    Observed,
    SetLane,
    Unprepare,
    WithdrawnFromKubelet,
)
from drabridge.ledger.proofs import End
from drabridge.offers.device_list import ListedUnit, legacy_list
from tests.support.ledger_node import CLAIM, NOON, POD, PODS, Node, allocate, allocated, prepare

DEVICES = {f"gpu-{n}": Device(f"gpu-{n}", f"GPU-{n}", "r", numa_nodes=(n,)) for n in range(2)}
TOMBSTONE = 60.0


def node_of(*lanes: Lane) -> Node:
    return Node(*(Entry(LedgerDevice.of(DEVICES[f"gpu-{n}"]), lane=lane) for n, lane in enumerate(lanes)))


def listed(node: Node, at: float) -> tuple[ListedUnit, ...]:
    return legacy_list(node.ledger, DEVICES, "r", at=at, policy=node.policy)


def to_claims(node: Node, name: str, at: float) -> None:
    node.yes(SetLane(name, Lane.DRA, at))
    node.yes(WithdrawnFromKubelet(name, node.ledger.seq, at))


def test_a_list_has_numa_nodes_only_while_something_is_left_for_limits() -> None:
    """Kubelet aligns pods that DRA serves with this list: Unhealthy devices with nodes would have them rejected."""
    node = node_of(Lane.LEGACY, Lane.DRA)
    assert listed(node, NOON) == (ListedUnit("GPU-0", True, (0,)), ListedUnit("GPU-1", False, (1,)))
    node.yes(allocate(0))
    assert listed(node, NOON) == (ListedUnit("GPU-0", True, (0,)), ListedUnit("GPU-1", False, (1,)))
    free = node_of(Lane.LEGACY, Lane.DRA)
    to_claims(free, "gpu-0", NOON)
    assert listed(free, NOON) == (ListedUnit("GPU-0", False), ListedUnit("GPU-1", False))
    assert listed(free, NOON + TOMBSTONE) == ()
    free.yes(SetLane("gpu-0", Lane.LEGACY, NOON + TOMBSTONE))  # not yet: schedulers may still choose it
    assert listed(free, NOON + TOMBSTONE) == (ListedUnit("GPU-0", False), ListedUnit("GPU-1", False))


def let_go(node: Node, at: float) -> None:
    """Kubelet shows no pod, and the API server has shown that the pod ended."""
    for _ in range(2):
        node.yes(Observed(at, node.ledger.seq, {}, CheckpointRead({}, True), ends={POD.uid: End.PHASE_ONLY}))
        at += node.policy.absent_seconds


def test_claims_that_come_and_go_bring_nothing_back_to_an_empty_list() -> None:
    node = node_of(Lane.DRA, Lane.DRA)
    assert listed(node, NOON) == ()
    for event in (allocated(0), prepare(0), Unprepare(CLAIM.uid, NOON), ClaimDeallocated(CLAIM.uid, NOON)):
        node.yes(event)
        assert listed(node, NOON) == ()
    assert node["gpu-0"].since == NOON
    facts = [node[name].device for name in DEVICES]
    for presence in (Presence.FAULTY, Presence.PRESENT):
        node.yes(Discovered((replace(facts[0], presence=presence), facts[1]), NOON))
        assert listed(node, NOON) == ()


def test_ids_that_kubelet_may_be_allocating_stay_listed_for_a_while() -> None:
    """The last device was taken from pods, or the last pod let go of what is a claim's."""
    node = node_of(Lane.LEGACY, Lane.DRA)
    node.yes(allocate(0))
    node.yes(SetLane("gpu-0", Lane.DRA, NOON))
    ended = NOON + 200
    let_go(node, ended - node.policy.absent_seconds)
    assert (node.owner("gpu-0"), node["gpu-0"].lane) == (Owner.NONE, Lane.LEGACY_TO_DRA)
    node.yes(WithdrawnFromKubelet("gpu-0", node.ledger.seq, ended + 1))
    node.yes(replace(allocated(0), at=ended + 30))
    assert len(listed(node, ended + 1 + TOMBSTONE - 1)) == 2
    assert listed(node, ended + 1 + TOMBSTONE) == ()
    both = node_of(Lane.DRA, Lane.DRA)
    both.yes(prepare(0))
    both.yes(Observed(NOON, both.ledger.seq, PODS, None))
    assert both.owner("gpu-0") is Owner.CONFLICT
    let_go(both, ended - both.policy.absent_seconds)
    assert both.owner("gpu-0") is Owner.DRA_PREPARED
    assert len(listed(both, ended + TOMBSTONE - 1)) == 2
    assert listed(both, ended + TOMBSTONE) == ()


def test_kubelet_may_know_the_ids_of_a_node_that_starts_with_everything_for_claims() -> None:
    """From the plugin before this one."""
    node = Node()
    facts = tuple(map(LedgerDevice.of, DEVICES.values()))
    node.yes(Discovered(facts, NOON, dict.fromkeys(DEVICES, Lane.DRA)))
    assert listed(node, NOON + TOMBSTONE - 1) == (ListedUnit("GPU-0", False), ListedUnit("GPU-1", False))
    assert listed(node, NOON + TOMBSTONE) == ()


def test_a_device_that_is_kept_for_claims_is_unhealthy_even_while_a_pod_has_it() -> None:
    node = node_of(Lane.SHARED, Lane.SHARED)
    node.yes(allocate(0))
    for name, healthy in (("gpu-0", (False, True)), ("gpu-1", (True, False))):
        units = legacy_list(node.ledger, DEVICES, "r", at=NOON, policy=node.policy, kept={name})
        assert tuple(unit.healthy for unit in units) == healthy


def test_what_pods_have_of_a_cordoned_device_is_unhealthy_once_they_are_admitted() -> None:
    """Else the next pod is sent for it when they end, and refused; but a kubelet that restarts must see it Healthy."""
    node = node_of(Lane.LEGACY, Lane.LEGACY)
    node.yes(allocate(0))
    node.yes(Cordoned({"gpu-0": "fan"}, NOON))

    def healthy(at: float) -> list[bool]:
        return [unit.healthy for unit in listed(node, at)]

    assert healthy(NOON + 0.1) == [True, True]  # the other containers of the pod are still to come
    assert healthy(NOON + 1) == [False, True]
    node.yes(KubeletStarted(NOON + 10))
    assert healthy(NOON + 11) == [True, True]
    assert healthy(NOON + 10 + node.policy.settle_seconds) == [False, True]


def test_free_replicas_of_a_cordoned_device_go_to_no_other_pod() -> None:
    shared = Device("gpu-0", "GPU-0", "r", replicas=3)
    node = Node(Entry(LedgerDevice.of(shared)))
    node.yes(Allocate({"gpu-0": shared.units[:1]}, NOON))
    node.yes(Cordoned({"gpu-0": "fan"}, NOON))
    node.no(Allocate({"gpu-0": shared.units[1:2]}, NOON))
    for at, expected in ((NOON, [True, False, False]), (NOON + 1, [False, False, False])):
        assert [unit.healthy for unit in listed(node, at)] == expected
