"""The configuration renames held hardware: no other pod or claim gets it under any name or resource."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from drabridge.inventory.devices import Presence
from drabridge.ledger.effects import RefusalCode
from drabridge.ledger.entries import Entry, Lane, Ledger, LedgerDevice, NodeState, Owner
from drabridge.ledger.events import (
    Allocate,
    CheckpointRead,
    DeviceUse,
    Discovered,
    Forgotten,
    KubeletStarted,
    Observed,
    Prepare,
)
from drabridge.ledger.store import Store
from tests.ledger.saved_ledger import load
from tests.support.ledger_node import CLAIM, NOON, OTHER, PODS, Node, allocate, allocated, device, prepare

PLACE = "/sys/devices/virtual/gpu/0"
OLD = LedgerDevice("gpu-0", "r", ("GPU-0",), syspath=PLACE)
NEW = LedgerDevice("gpu-1", "r", ("GPU-1",), syspath=PLACE)


def renamed(lane: Lane) -> Discovered:
    """The inventory names the device of gpu-0 "gpu-1" from now on."""
    return Discovered((replace(OLD, presence=Presence.GONE), NEW), NOON + 1, {"gpu-1": lane})


def let_go(node: Node) -> None:
    """Kubelet and its checkpoint agree that no pod is there, for long enough."""
    for at in (NOON + 500, NOON + 600):
        node.yes(Observed(at, node.ledger.seq, {}, CheckpointRead({}), {}))


def test_a_held_device_is_offered_under_another_resource_only_after_its_release() -> None:
    node = Node(device(0))
    node.yes(allocate(0))
    for resource in ("other", "third"):
        node.yes(Discovered((replace(node["gpu-0"].device, resource=resource),), NOON + 1))
        assert node.offers("gpu-0") == (False, False)
        assert node.no(allocate(0))[0] is RefusalCode.LEGACY_HELD
    node.yes(Discovered((replace(node["gpu-0"].device, resource="r"),), NOON + 1))
    assert node.offers("gpu-0") == (True, False), "its own pod needs it Healthy when kubelet restarts"
    node.yes(allocate(0))
    node.yes(Discovered((replace(node["gpu-0"].device, resource="other"),), NOON + 1))
    node.yes(Observed(NOON + 400, node.ledger.seq, PODS, CheckpointRead(PODS), {}))
    assert node.no(allocate(0))[0] is RefusalCode.LEGACY_HELD, "kubelet shows the pod, under the old resource"
    let_go(node)
    assert node.owner("gpu-0") is Owner.NONE
    assert node.offers("gpu-0") == (True, False)
    node.yes(allocate(0))


def test_a_claim_keeps_a_device_that_became_another_resource_s() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    node.yes(Discovered((replace(node["gpu-0"].device, resource="other"),), NOON + 1))
    assert node.no(prepare(0, claim=OTHER))[0] is RefusalCode.CLAIM_HELD
    assert node.no(allocate(0))[0] is RefusalCode.CLAIM_HELD
    node.yes(prepare(0))


def test_a_new_name_for_a_place_that_a_pod_holds_is_given_to_nobody_until_it_lets_go() -> None:
    for lane in (Lane.LEGACY, Lane.DRA):
        node = Node(Entry(OLD))
        node.yes(allocate(0))
        node.yes(renamed(lane))
        assert node.offers("gpu-1") == (False, False)
        request = Allocate({"gpu-1": ("GPU-1",)}, NOON) if lane is Lane.LEGACY else prepare(1)
        code, text = node.no(request)
        assert (code, "shares its hardware with gpu-0" in text) == (RefusalCode.LEGACY_HELD, True)
        let_go(node)
        assert node.owner("gpu-0") is Owner.NONE
        assert node.offers("gpu-1") == (lane is Lane.LEGACY, lane is Lane.DRA), "whatever lane the old name is in"
        node.yes(request)


def test_a_new_name_for_a_place_that_a_claim_holds_is_given_to_nobody() -> None:
    for lane in (Lane.LEGACY, Lane.DRA):
        node = Node(Entry(OLD, lane=Lane.DRA))
        node.yes(prepare(0))
        node.yes(renamed(lane))
        assert node.offers("gpu-1") == (False, False)
        assert (
            node.no(Allocate({"gpu-1": ("GPU-1",)}, NOON) if lane is Lane.LEGACY else allocated(1, claim=OTHER))[0]
            is RefusalCode.CLAIM_HELD
        )
        assert node.do(Prepare(CLAIM, (DeviceUse("gpu-0"),), NOON)).decision.accepted, "the claim has what it has"


def test_a_whole_device_with_a_new_name_overlaps_with_its_part_under_the_former_name() -> None:
    whole, part = (replace(OLD, name=n, units=(n,), syspath=f"/sys/{n}", root=r) for n, r in (("w", ""), ("p", "w")))
    other_whole, other_part = replace(whole, name="w2", units=("w2",)), replace(part, name="p2", root="w2")
    node = Node(Entry(whole), Entry(part))
    node.yes(Allocate({"p": ("p",)}, NOON))
    node.yes(Discovered((other_whole, other_part), NOON + 1))
    node.yes(Forgotten(("w",), NOON + 100))
    assert node.offers("w2") == node.offers("p2") == (False, False)
    assert node.no(Allocate({"w2": ("w2",)}, NOON + 100))[0] is RefusalCode.LEGACY_HELD
    let_go(node)
    assert node.owner("p") is Owner.NONE
    assert node.offers("w2") == node.offers("p2") == (True, False)


CARD = LedgerDevice("card", "r", ("card",), syspath="/sys/card", also_at=("/sys/card/a", "/sys/card/b"))
A, B = (LedgerDevice(name, "r", (name,), syspath=f"/sys/card/{name}") for name in "ab")


@pytest.mark.parametrize("root", ["", "card"])
@pytest.mark.parametrize("lane", [Lane.LEGACY, Lane.DRA])
@pytest.mark.parametrize(("held", "others"), [(CARD, (A, B)), (A, (CARD,))], ids=["card", "part"])
def test_hardware_that_overlaps_a_held_device_is_given_to_nobody_else(
    held: LedgerDevice, others: tuple[LedgerDevice, ...], lane: Lane, root: str
) -> None:
    node = Node(Entry(CARD, lane=lane), *(Entry(replace(part, root=root), lane=lane) for part in (A, B)))
    assert all(node.offers(facts.name) == (lane is Lane.LEGACY, lane is Lane.DRA) for facts in (CARD, A, B))
    node.yes(
        Allocate({held.name: held.units}, NOON)
        if lane is Lane.LEGACY
        else Prepare(CLAIM, (DeviceUse(held.name),), NOON)
    )
    for other in (CARD, A, B):
        if other in others:
            assert node.offers(other.name) == (False, False)
            assert "shares its hardware" in node.no(Prepare(OTHER, (DeviceUse(other.name),), NOON))[1]
            assert node.do(Allocate({other.name: other.units}, NOON)).decision.accepted is False
        elif other is not held:
            assert any(node.offers(other.name)), "two parts do not overlap"


def test_two_devices_that_hand_out_the_same_companion_do_not_overlap() -> None:
    for root in ("", "card"):
        ports = [replace(part, also_at=(CARD.syspath,), root=root) for part in (A, B)]
        node = Node(*map(Entry, [replace(CARD, also_at=()), *ports]))
        node.yes(Allocate({"a": ("a",)}, NOON))
        assert node.offers("b") == (True, False)
        assert node.offers("card") == (False, False)


def test_a_renamed_child_of_held_hardware_is_given_out_once_the_hardware_is_released() -> None:
    card, child = replace(CARD, also_at=()), replace(A, also_at=(CARD.syspath,))
    node = Node(Entry(card))
    node.yes(Allocate({"card": ("card",)}, NOON))
    node.yes(Discovered((card, child), NOON + 1, {"a": Lane.DRA}))
    assert node.offers("a") == (False, False)
    let_go(node)
    node.yes(Discovered((A,), NOON + 700))
    assert node.offers("a") == (False, True)


def test_a_former_name_that_is_gone_does_not_block_its_hardware_in_another_lane() -> None:
    node = Node(Entry(CARD))
    node.yes(Discovered((A,), NOON + 1, {"a": Lane.DRA}))
    assert node.offers("a") == (False, True)
    node.yes(Discovered((CARD, A), NOON + 2))
    assert node.offers("a") == node.offers("card") == (False, False), "each lane counts it as its own"


def test_a_former_name_that_is_gone_does_not_block_parts_or_whole_of_the_device_at_its_place() -> None:
    whole = LedgerDevice("gpu", "r", ("gpu",), syspath=PLACE)
    part = LedgerDevice("part", "r", ("part",), syspath=f"{PLACE}/0", root="gpu")
    former_whole = replace(whole, name="x-gpu", units=("x-gpu",), presence=Presence.GONE)
    former_part = replace(part, name="x-part", units=("x-part",), root="x-gpu", presence=Presence.GONE)
    node = Node(
        *(Entry(one) for one in (whole, part)), *(Entry(one, lane=Lane.DRA) for one in (former_whole, former_part))
    )
    assert node.offers("part") == node.offers("gpu") == (True, False)
    node = Node(Entry(part), Entry(replace(whole, presence=Presence.GONE)), Entry(former_whole, lane=Lane.DRA))
    assert node.offers("part") == (False, False), "no device is at its place: it may come back"


def test_the_place_and_the_resource_of_a_hold_are_saved(tmp_path: Path) -> None:
    node = Node(Entry(OLD))
    node.yes(allocate(0))
    node.yes(Discovered((replace(OLD, resource="other", also_at=(f"{PLACE}/a", f"{PLACE}/b")),), NOON + 1))
    node.yes(KubeletStarted(NOON + 1))  # what kubelet has shown is not on disk
    store = Store(tmp_path, node="n")
    store.rewrite(node.ledger)
    store.close()
    loaded = load(tmp_path, "n").ledger
    assert loaded.entries == node.ledger.entries
    again = Node()
    again.ledger = Ledger.of(loaded.entries.values(), NodeState("boot", merged=True))
    assert again.offers("gpu-0") == (False, False)
    again.yes(Discovered((NEW, LedgerDevice("a", "r", ("a",), syspath=f"{PLACE}/a")), NOON + 1))
    assert again.offers("gpu-1") == again.offers("a") == (False, False)
