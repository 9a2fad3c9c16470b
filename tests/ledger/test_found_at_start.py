"""Events of inventory and start: devices come, go and come back; the agent starts; the node reboots."""

from __future__ import annotations

from msgspec.structs import replace

from drabridge.inventory.devices import Device, Presence
from drabridge.ledger.effects import Notify, RefusalCode
from drabridge.ledger.eligibility import must_list
from drabridge.ledger.entries import Lane, LedgerDevice, Owner, PodRef
from drabridge.ledger.events import (
    AgentStarted,
    CheckpointRead,
    ClaimDeallocated,
    ClaimDevices,
    DeviceUse,
    Discovered,
    Forgotten,
    NodeBooted,
    Observed,
    RecordLost,
    Unprepare,
    WithdrawnFromKubelet,
)
from tests.support.ledger_node import CLAIM, NOON, OTHER, PODS, Node, allocate, allocated, device, prepare

# --- inventory ---


def test_a_device_that_is_gone_stays_listed_until_it_is_free_and_quiet() -> None:
    node = Node(device(0), device(1))
    node.yes(allocate(0))
    done = node.yes(Discovered((), NOON + 10))
    assert any(isinstance(effect, Notify) and effect.reason == "HeldDeviceUnavailable" for effect in done.effects)
    assert must_list(node["gpu-0"], NOON + 20, node.policy)
    assert must_list(node["gpu-1"], NOON + 20, node.policy)
    assert not must_list(node["gpu-1"], NOON + 80, node.policy)
    assert node.no(Forgotten(("gpu-0",), NOON + 80))[0] is RefusalCode.IN_USE
    assert node.yes(Forgotten(("gpu-1",), NOON + 80)).removed == ("gpu-1",)
    assert "gpu-1" not in node.ledger.entries
    assert must_list(node["gpu-0"], NOON + 999, node.policy)


def test_a_device_that_comes_back_resumes() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    node.yes(Discovered((), NOON))
    assert node.offers("gpu-0") == (False, False)
    node.yes(Discovered((device(0).device,), NOON))
    assert node.owner("gpu-0") is Owner.DRA_PREPARED
    assert not node.yes(Discovered((device(0).device,), NOON))


def test_new_devices_start_where_the_plan_says_and_in_quarantine_after_a_loss() -> None:
    node = Node()
    node.yes(Discovered((device(0).device, device(1).device), NOON, {"gpu-1": Lane.DRA}))
    assert (node["gpu-0"].lane, node["gpu-1"].lane) == (Lane.LEGACY, Lane.DRA)
    node = Node()
    node.yes(RecordLost(NOON, reason="rotten"))
    node.yes(Discovered((device(0).device,), NOON))
    assert node.owner("gpu-0") is Owner.QUARANTINE


def test_a_doubt_about_some_devices_does_not_affect_others_or_known_holders() -> None:
    node = Node(*map(device, range(3)))
    node.yes(allocate(1))
    node.yes(RecordLost(NOON, ("gpu-0", "gpu-1", "unheard-of"), "strange pods"))
    assert [node.owner(f"gpu-{n}") for n in range(3)] == [Owner.QUARANTINE, Owner.LEGACY, Owner.NONE]
    assert node.ledger.node.merged
    assert not node.ledger.node.lost


def test_a_device_that_appears_after_the_merge_is_given_to_claims_when_kubelet_shows_no_pod_on_it() -> None:
    node = Node()
    node.yes(AgentStarted(NOON))
    found, lanes = (device(0).device, device(1).device), {"gpu-0": Lane.DRA, "gpu-1": Lane.DRA}
    node.yes(Discovered(found, NOON + 1, lanes))
    assert [node.offers(name) for name in lanes] == [(False, False)] * 2
    assert node.no(prepare(0))[0] is RefusalCode.OTHER_LANE
    asked = node.ledger.seq
    node.yes(Observed(NOON + 2, asked, PODS))
    for name in lanes:
        node.yes(WithdrawnFromKubelet(name, node.ledger.seq, NOON + 2))
    assert (node.owner("gpu-0"), node["gpu-0"].lane, node.offers("gpu-0")) == (Owner.LEGACY, Lane.LEGACY, (True, False))
    assert (node.owner("gpu-1"), node["gpu-1"].lane, node.offers("gpu-1")) == (Owner.NONE, Lane.DRA, (False, True))


def test_a_free_device_of_claims_that_was_away_is_asked_about_again() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(AgentStarted(NOON))
    faulty = replace(device(0).device, presence=Presence.FAULTY)
    node.yes(Discovered((faulty,), NOON + 1))
    node.yes(Discovered((device(0).device,), NOON + 2))
    assert node.offers("gpu-0") == (False, True), "it was faulty, but never away"
    node.yes(Discovered((), NOON + 3))
    assert node["gpu-0"].lane is Lane.DRA
    node.yes(Discovered((device(0).device,), NOON + 4))
    assert node.offers("gpu-0") == (False, False)
    node.yes(WithdrawnFromKubelet("gpu-0", node.ledger.seq, NOON + 5))
    assert node.offers("gpu-0") == (False, True)


def test_facts_come_from_the_inventory() -> None:
    found = Device("gpu-0", "GPU-0", "r", replicas=2, capacity={"memory": 5}, root="w")
    assert LedgerDevice.of(found) == LedgerDevice("gpu-0", "r", ("GPU-0::0", "GPU-0::1"), "w")
    assert LedgerDevice.of(found, shareable=True).capacity == (("memory", 5),)


# --- starts ---


def test_a_take_over_recognises_the_pods_of_another_plugin() -> None:
    node = Node(device(0), device(1, Lane.DRA))
    node.yes(AgentStarted(NOON, (), {}, CheckpointRead({("r", "GPU-1"): (PodRef(uid="u"),)} | PODS)))
    assert node.owner("gpu-0") is node.owner("gpu-1") is Owner.LEGACY
    assert node["gpu-1"].move  # it goes to its lane when the pod is gone


def test_a_start_believes_cdi_files() -> None:
    node = Node(device(0))
    node.yes(AgentStarted(NOON, (ClaimDevices(CLAIM, (DeviceUse("gpu-0"),)),)))
    assert node.owner("gpu-0") is Owner.DRA_PREPARED
    assert node["gpu-0"].lane is Lane.DRA


def test_a_claim_that_was_deallocated_meanwhile_is_noticed_even_if_only_its_cdi_file_knows_it() -> None:
    node = Node(device(0))
    node.yes(AgentStarted(NOON, (ClaimDevices(CLAIM, (DeviceUse("gpu-0"),)),)))
    node.yes(ClaimDeallocated("uid-1", NOON))
    assert node.owner("gpu-0") is Owner.DRA_PREPARED
    node.yes(Unprepare("uid-1", NOON))
    assert node.owner("gpu-0") is Owner.NONE


def test_a_start_keeps_every_claim() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(allocated(0))
    node.yes(AgentStarted(NOON))
    assert node.owner("gpu-0") is Owner.DRA_GRANTED


def test_a_start_that_finds_a_pod_and_a_claim_is_a_conflict() -> None:
    node = Node(device(0))
    node.yes(AgentStarted(NOON, (ClaimDevices(CLAIM, (DeviceUse("gpu-0"),)),), PODS))
    assert node.owner("gpu-0") is Owner.CONFLICT


def test_admin_access_that_is_found_at_a_start_ends_no_doubt() -> None:
    node = Node(device(0))
    node.yes(RecordLost(NOON, reason="rotten"))
    node.yes(AgentStarted(NOON, (ClaimDevices(CLAIM, (DeviceUse("gpu-0", admin=True),)),)))
    assert node.owner("gpu-0") is Owner.QUARANTINE
    watching = {"gpu-0": (CLAIM,)}  # kubelet shows no difference
    for at in (NOON + 500, NOON + 520):
        node.yes(Observed(at, node.ledger.seq, {}, CheckpointRead({}), {}, claimed=watching, allocated=()))
    assert node.owner("gpu-0") is Owner.NONE
    assert [held.claim for held in node["gpu-0"].claims] == [CLAIM]


def test_a_claim_with_admin_access_and_more_holds_its_device() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(AgentStarted(NOON, (ClaimDevices(CLAIM, (DeviceUse("gpu-0", admin=True), DeviceUse("gpu-0"))),)))
    assert node.owner("gpu-0") is Owner.DRA_PREPARED


def test_a_reboot_unprepares_and_keeps_what_pods_hold() -> None:
    node = Node(device(0), device(1, Lane.DRA), device(2, Lane.DRA))
    node.yes(allocate(0))
    node.yes(prepare(1))
    node.yes(prepare(2, claim=OTHER))
    node.yes(ClaimDeallocated("uid-2", NOON))
    assert node.yes(NodeBooted("another", NOON)).durable
    assert [node.owner(f"gpu-{n}") for n in range(3)] == [Owner.LEGACY, Owner.DRA_GRANTED, Owner.NONE]
    assert not node.yes(NodeBooted("another", NOON))
