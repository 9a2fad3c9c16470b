"""The configuration calls held hardware something else: nobody else is given it, under whatever name or resource."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from drabridge.inventory.model import Presence
from drabridge.ledger import (
    Allocate,
    Checkpoint,
    Discovered,
    Entry,
    Facts,
    Forgotten,
    Lane,
    Ledger,
    NodeState,
    Observed,
    Owner,
    Prepare,
    RefusalCode,
    Use,
)
from drabridge.ledger.store import Store
from tests.ledger.node import CLAIM, NOON, OTHER, PODS, Node, allocate, allocated, device, prepare
from tests.ledger.test_store import load

PLACE = "/sys/devices/virtual/gpu/0"
OLD = Facts("gpu-0", "r", ("GPU-0",), syspath=PLACE)
NEW = Facts("gpu-1", "r", ("GPU-1",), syspath=PLACE)


def renamed(lane: Lane) -> Discovered:
    """The inventory calls the device of gpu-0 gpu-1 from now on."""
    return Discovered((replace(OLD, presence=Presence.GONE), NEW), NOON + 1, {"gpu-1": lane})


def let_go(node: Node) -> None:
    """Kubelet and its checkpoint agree that no pod is there, for long enough."""
    for at in (NOON + 500, NOON + 600):
        node.yes(Observed(at, node.ledger.seq, {}, Checkpoint({}), {}))


def test_a_held_device_is_not_offered_under_another_resource_and_is_once_it_is_let_go() -> None:
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
    node.yes(Observed(NOON + 400, node.ledger.seq, PODS, Checkpoint(PODS), {}))
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
        assert node.do(Prepare(CLAIM, (Use("gpu-0"),), NOON)).decision.accepted, "the claim has what it has"


def test_a_whole_with_a_new_name_overlaps_with_what_its_part_was_called_before() -> None:
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


def test_the_place_and_the_resource_of_a_hold_are_on_disk(tmp_path: Path) -> None:
    node = Node(Entry(OLD))
    node.yes(allocate(0))
    node.yes(Discovered((replace(OLD, resource="other"),), NOON + 1))
    store = Store(tmp_path, node="n")
    store.rewrite(node.ledger)
    store.close()
    loaded = load(tmp_path, "n").ledger
    assert loaded.entries == node.ledger.entries
    again = Node()
    again.ledger = Ledger.of(loaded.entries.values(), NodeState("boot", merged=True))
    assert again.offers("gpu-0") == (False, False)
    again.yes(Discovered((NEW,), NOON + 1))
    assert again.offers("gpu-1") == (False, False)
