"""Hardware of several devices is one place: who has one of them keeps others from the rest, at every step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from drabridge.ledger.effects import Notify, RefusalCode, Step, Subject
from drabridge.ledger.eligibility import dra_schedulable, leasable
from drabridge.ledger.entries import Entry, Lane, LedgerDevice, Owner
from drabridge.ledger.events import (
    AgentStarted,
    Allocate,
    CheckpointRead,
    ClaimAllocated,
    ClaimDevices,
    DeviceUse,
    LeaseGranted,
    Observed,
    Prepare,
    WithdrawnFromKubelet,
)
from tests.support.ledger_node import CLAIM, NOON, OTHER, POD, Node, allocated, device, prepare

BOTH = (DeviceUse("gpu-0", lease=True), DeviceUse("gpu-1", admin=True))
SEEN = {("r", "GPU-1"): (POD,)}


def whole_and_part(lane: Lane) -> Node:
    return Node(device(0, lane), device(1, lane, root="gpu-0"))


def function_and_neighbour(lane: Lane) -> Node:
    """Two functions of one card: one device node for both, neither is a part of the other."""
    entries = (
        Entry(LedgerDevice(f"gpu-{n}", "r", (f"GPU-{n}",), syspath=f"/sys/{n}", also_at=("/dev/vfio/7",)), lane=lane)
        for n in range(2)
    )
    return Node(*entries)


PLACES = pytest.mark.parametrize("place", [whole_and_part, function_and_neighbour])


def pod_is_seen(node: Node, at: float = NOON + 1) -> Step:
    """A pod has the second device, as kubelet shows; another plugin gave it out."""
    return node.yes(Observed(at, node.ledger.seq, listed=SEEN, checkpoint=CheckpointRead(SEEN)))


def conflicts(done: Step) -> set[Subject]:
    return {one.subject for one in done.effects if isinstance(one, Notify) and one.reason == "DeviceConflict"}


@PLACES
def test_a_granted_claim_is_not_prepared_beside_a_pod_on_the_same_hardware(place: Callable[[Lane], Node]) -> None:
    node = place(Lane.DRA)
    node.yes(allocated(0))
    assert conflicts(pod_is_seen(node)) == {Subject.NODE, Subject.POD, Subject.CLAIM}
    code, text = node.no(prepare(0, at=NOON + 2))
    assert (code, "gpu-0 shares its hardware with gpu-1: gpu-1 is held by" in text) == (RefusalCode.LEGACY_HELD, True)


@PLACES
def test_a_lease_is_not_granted_beside_a_pod_on_the_same_hardware(place: Callable[[Lane], Node]) -> None:
    node = place(Lane.SHARED)
    node.yes(allocated(0, lease=True))
    node.yes(WithdrawnFromKubelet("gpu-0", node.ledger.seq, NOON))
    pod_is_seen(node)
    assert node.no(LeaseGranted(CLAIM, NOON + 2))[0] is RefusalCode.LEGACY_HELD
    assert node.no(allocated(0, lease=True))[0] is RefusalCode.LEGACY_HELD, "so that the claim is denied at once"


@PLACES
def test_a_pod_found_beside_a_prepared_claim_is_told_to_both(place: Callable[[Lane], Node]) -> None:
    node = place(Lane.DRA)
    found = (ClaimDevices(CLAIM, (DeviceUse("gpu-0"),)),)
    done = node.yes(AgentStarted(NOON, found, listed=SEEN, checkpoint=CheckpointRead(SEEN)))
    assert conflicts(done) == {Subject.NODE, Subject.POD, Subject.CLAIM}
    assert (node.owner("gpu-0"), node.owner("gpu-1")) == (Owner.DRA_PREPARED, Owner.LEGACY)
    node.no(prepare(0, claim=OTHER))


def test_one_pod_that_has_both_functions_is_no_conflict_when_the_agent_starts() -> None:
    node = function_and_neighbour(Lane.LEGACY)
    seen = {("r", f"GPU-{n}"): (POD,) for n in range(2)}
    assert not conflicts(node.yes(AgentStarted(NOON, (), listed=seen, checkpoint=CheckpointRead(seen))))


def test_one_claim_has_both_functions_of_a_card() -> None:
    node = function_and_neighbour(Lane.DRA)
    node.yes(allocated(0, 1))
    assert not conflicts(node.yes(prepare(0, 1)))
    assert not conflicts(node.yes(Prepare(CLAIM, (DeviceUse("gpu-0"), DeviceUse("gpu-1")), NOON)))


def test_one_claim_that_gets_its_second_function_later_has_both() -> None:
    node = function_and_neighbour(Lane.DRA)
    node.yes(prepare(0))
    assert not conflicts(node.yes(prepare(0, 1)))
    assert node.owner("gpu-1") is Owner.DRA_PREPARED


@PLACES
def test_a_pod_that_comes_first_ends_the_wait_for_the_same_hardware(place: Callable[[Lane], Node]) -> None:
    node = place(Lane.SHARED)
    node.yes(allocated(0, lease=True))
    node.yes(Allocate({"gpu-1": ("GPU-1",)}, NOON, "r"))
    assert (node.owner("gpu-0"), node.owner("gpu-1")) == (Owner.NONE, Owner.LEGACY)
    assert [held.claim for held in node["gpu-0"].denied] == [CLAIM]


@PLACES
def test_hardware_of_several_devices_is_not_leased(place: Callable[[Lane], Node]) -> None:
    node = place(Lane.SHARED)
    for name in ("gpu-0", "gpu-1"):
        assert not leasable(node.ledger, node[name])
        assert not dra_schedulable(node.ledger, node[name])


def test_admin_access_to_one_device_does_not_stop_the_lease_of_another() -> None:
    node = Node(device(0, Lane.SHARED), device(1, Lane.SHARED))
    node.yes(prepare(1, admin=True))
    node.yes(ClaimAllocated(CLAIM, BOTH, NOON))
    node.yes(WithdrawnFromKubelet("gpu-0", node.ledger.seq, NOON))
    node.yes(LeaseGranted(CLAIM, NOON))
    assert (node.owner("gpu-0"), node.owner("gpu-1")) == (Owner.DRA_GRANTED, Owner.NONE)


def test_a_denied_lease_denies_nothing_that_the_claim_looks_at_only() -> None:
    node = Node(device(0, Lane.SHARED), device(1, Lane.SHARED))
    node.yes(prepare(1, admin=True))
    node.yes(ClaimAllocated(CLAIM, BOTH, NOON))
    node.yes(Allocate({"gpu-0": ("GPU-0",)}, NOON, "r"))
    assert [len(node[name].denied) for name in ("gpu-0", "gpu-1")] == [1, 0]
    assert node.offers("gpu-1") == (True, True)


def test_a_device_to_which_the_claim_has_admin_access_from_now_on_is_let_go() -> None:
    node = Node(device(0, Lane.SHARED), device(1, Lane.SHARED))
    node.yes(allocated(0, lease=True))
    node.yes(WithdrawnFromKubelet("gpu-0", node.ledger.seq, NOON))
    node.yes(LeaseGranted(CLAIM, NOON))
    node.yes(ClaimAllocated(CLAIM, (DeviceUse("gpu-1", lease=True), DeviceUse("gpu-0", admin=True)), NOON))
    assert (node.owner("gpu-0"), node.owner("gpu-1")) == (Owner.NONE, Owner.DRA_PENDING)
