"""A device that is out of service: nobody new gets it or its relatives, and who has it keeps it."""

from __future__ import annotations

from msgspec.structs import replace

from drabridge.ledger.effects import Notify, RefusalCode
from drabridge.ledger.entries import ClaimShare, Lane, Owner
from drabridge.ledger.events import (
    ClaimAllocated,
    ClaimDeallocated,
    Cordoned,
    DeviceUse,
    Discovered,
    LeaseGranted,
    Prepare,
    Unprepare,
)
from tests.support.ledger_node import CLAIM, NOON, OTHER, Node, allocate, allocated, device, prepare

FAN = {"gpu-0": "fan"}


def cordoned(node: Node, **devices: str) -> None:
    node.yes(Cordoned({name.replace("_", "-"): why for name, why in devices.items()}, NOON))


def test_a_free_device_goes_to_nobody_until_it_is_back() -> None:
    node = Node(device(0), device(1, Lane.DRA))
    cordoned(node, gpu_0="fan", gpu_1="fan")
    assert (node.offers("gpu-0"), node.offers("gpu-1")) == ((False, False), (False, False))
    code, said = node.no(allocate(0))
    assert (code, "gpu-0 is out of service: fan" in said) == (RefusalCode.CORDONED, True)
    assert "drabridge devices uncordon gpu-0" in said
    assert node.no(prepare(1))[0] is RefusalCode.CORDONED
    assert node.no(allocated(1))[0] is RefusalCode.CORDONED  # by a scheduler that tolerates every taint
    cordoned(node)
    assert (node.offers("gpu-0"), node.offers("gpu-1")) == ((True, False), (False, True))
    node.yes(allocate(0))
    node.yes(prepare(1))


def test_a_pod_keeps_it_and_no_other_pod_gets_it() -> None:
    node = Node(device(0))
    node.yes(allocate(0))
    cordoned(node, gpu_0="fan")
    node.yes(allocate(0, at=NOON + 0.5))  # the pod's next container, in the same admission
    assert node.owner("gpu-0") is Owner.LEGACY
    assert node.no(allocate(0, at=NOON + 5))[0] is RefusalCode.CORDONED
    assert node.offers("gpu-0") == (True, False)  # a kubelet that restarts asks whether it is Healthy


def test_a_claim_keeps_it_through_restarts_of_its_pod_and_no_other_gets_it() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(allocated(0))
    cordoned(node, gpu_0="fan")
    for _ in range(2):
        node.yes(prepare(0))
        node.yes(Unprepare(CLAIM.uid, NOON))
        node.yes(allocated(0))
    assert node.offers("gpu-0") == (False, False)
    node.yes(ClaimDeallocated(CLAIM.uid, NOON))
    assert node.no(prepare(0, claim=OTHER))[0] is RefusalCode.CORDONED
    assert node.no(prepare(0))[0] is RefusalCode.CORDONED  # allocated anew is new


def test_claims_that_share_it_keep_their_shares_and_no_claim_joins_them() -> None:
    node = Node(device(0, Lane.DRA, shareable=True))

    def share(n: int) -> Prepare:
        return Prepare(CLAIM if n == 1 else OTHER, (DeviceUse("gpu-0", ClaimShare(str(n))),), NOON)

    node.yes(share(1))
    cordoned(node, gpu_0="fan")
    assert node.no(share(2))[0] is RefusalCode.CORDONED
    assert node.no(ClaimAllocated(OTHER, share(2).uses, NOON))[0] is RefusalCode.CORDONED
    node.yes(share(1))
    cordoned(node)
    node.yes(share(2))


def test_a_claim_that_waits_for_the_lease_does_not_get_it() -> None:
    node = Node(device(0, Lane.SHARED))
    node.yes(allocated(0, lease=True))
    cordoned(node, gpu_0="fan")
    assert node.no(allocated(0, lease=True))[0] is RefusalCode.CORDONED
    assert not node.do(LeaseGranted(CLAIM, NOON)).decision.accepted
    assert node.no(allocate(0))[0] is RefusalCode.CORDONED


def test_the_whole_and_the_parts_are_out_of_service_with_it() -> None:
    node = Node(device(0), device(1, root="gpu-0"), device(2, root="gpu-0"), device(3))
    cordoned(node, gpu_1="fan")  # the whole would give the part; the other part is well
    assert [node.offers(f"gpu-{n}")[0] for n in range(4)] == [False, False, True, True]
    assert "gpu-0 shares its hardware with gpu-1, which is out of service" in node.no(allocate(0))[1]
    cordoned(node, gpu_0="fan")
    assert [node.offers(f"gpu-{n}")[0] for n in range(4)] == [False, False, False, True]


def test_snapshots_say_anew_what_is_out_of_service_and_people_hear_of_changes() -> None:
    node = Node(device(0), device(1))
    facts = tuple(node[name].device for name in ("gpu-0", "gpu-1"))
    (notice,) = node.yes(Discovered(facts, NOON, cordoned=FAN)).effects
    assert isinstance(notice, Notify)
    assert notice.reason == "DeviceCordoned"
    assert not node.do(Discovered(facts, NOON, cordoned=FAN))  # nothing new
    node.yes(Discovered(facts[1:], NOON, cordoned=FAN))
    assert node["gpu-0"].device.cordoned == "fan"  # pulled out for its exchange
    node.yes(Discovered(facts, NOON, cordoned=FAN))
    assert node.no(allocate(0))[0] is RefusalCode.CORDONED
    node.yes(Discovered(facts[1:], NOON))
    assert node["gpu-0"].device.cordoned == ""
    new = replace(facts[0], name="gpu-2")
    node.yes(Discovered((*facts, new), NOON, cordoned={"gpu-2": "new, not tested"}))
    assert node.offers("gpu-2") == (False, False)
