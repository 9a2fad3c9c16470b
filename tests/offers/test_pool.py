"""From the ledger's decisions to slices and health: which devices are listed, with which taints and counters."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.config.checker import check
from drabridge.config.quantity import parse
from drabridge.config.schema import Config
from drabridge.inventory.devices import Device, Presence, Snapshot
from drabridge.ledger.entries import (
    ClaimHold,
    ClaimPhase,
    ClaimRef,
    Entry,
    Hold,
    Lane,
    Ledger,
    LedgerDevice,
    Move,
    MoveStep,
    NodeState,
    Owner,
)
from drabridge.offers.pool import pool_of
from drabridge.offers.reported_health import ReportedHealth, health_of
from drabridge.offers.slices import Offer, Pool, desired_slices
from drabridge.sim.apiserver.validation import resource_slice
from drabridge.sim.releases import RELEASES

RESOURCE = "example.com/gpu"
MATCH = [{"subsystem": "pci"}]
DRIVER = "d.example.com"


def config(*more: dict[str, Any], **dra: Any) -> Config:
    lanes = {"legacy": 0, "dra": "*"}
    resources = [
        {"name": RESOURCE, "match": MATCH, "lanes": lanes},
        *({"match": MATCH, "lanes": lanes, **m} for m in more),
    ]
    return check(
        Config,
        {
            "apiVersion": "drabridge/v1alpha1",
            "kind": "AgentConfig",
            "driver": DRIVER,
            "dra": dra,
            "resources": resources,
        },
    )


def device(name: str = "gpu-0", **changes: Any) -> Device:
    return replace(Device(name, name.upper(), RESOURCE), **changes)


def pool(devices: tuple[Device, ...], *entries: Entry, at: float = 100.0, **options: Any) -> Pool:
    named = {entry.name for entry in entries}
    rest = [Entry(LedgerDevice.of(d), lane=Lane.DRA) for d in devices if d.name not in named]
    ledger = Ledger.of([*entries, *rest], NodeState(merged=True))
    known = Snapshot(1, devices), ledger, options.get("config") or config()
    kept = options.get("kept", ())
    return pool_of(*known, "node-a", at, unwell=options.get("unwell", False), kept=lambda entry: entry.name in kept)


def one(entry: Entry, **options: Any) -> Offer | None:
    offers = pool((device(presence=entry.device.presence),), entry, **options).offers
    return offers[0] if offers else None


CLAIM = ClaimHold(ClaimRef("uid", "ns", "cl"), ClaimPhase.PREPARED, 0.0)
FREE = Entry(LedgerDevice.of(device()), lane=Lane.DRA)
LEAVING = Move(Lane.DRA, Lane.LEGACY, MoveStep.WAITING, 0.0, 0.0)


@pytest.mark.parametrize(
    ("entry", "taint"),
    [
        (FREE, None),
        (replace(FREE, owner=Owner.DRA_PREPARED, claims=(CLAIM,)), None),
        (replace(FREE, lane=Lane.LEGACY, owner=Owner.DRA_PREPARED, claims=(CLAIM,)), None),
        (replace(FREE, owner=Owner.DRA_PREPARED, claims=(CLAIM,), move=LEAVING), "leaving"),
        (replace(FREE, owner=Owner.LEGACY, hold=Hold()), "legacy"),
        (replace(FREE, owner=Owner.CONFLICT, claims=(CLAIM,), hold=Hold()), "conflict"),
        (replace(FREE, owner=Owner.QUARANTINE), "quarantine"),
    ],
    ids=["free", "held", "held-in-legacy-lane", "held-and-leaving", "by-a-pod", "conflict", "quarantine"],
)
def test_a_device_that_cannot_be_given_is_tainted(entry: Entry, taint: str | None) -> None:
    offer = one(entry)
    assert offer is not None
    assert [(t.key, t.value, t.effect) for t in offer.taints] == (
        [(f"{DRIVER}/unavailable", taint, "NoSchedule")] if taint else []
    )


@pytest.mark.parametrize(
    ("entry", "values"),
    [
        (FREE, ["node-unwell"]),
        (replace(FREE, owner=Owner.DRA_PREPARED, claims=(CLAIM,)), []),  # its holder may repeat itself
        (replace(FREE, owner=Owner.QUARANTINE), ["quarantine"]),
        (Entry(LedgerDevice.of(device(presence=Presence.FAULTY)), lane=Lane.DRA), [""]),  # of another key
    ],
    ids=["free", "held", "quarantine", "faulty"],
)
def test_what_is_free_is_tainted_while_nothing_can_be_granted(entry: Entry, values: list[str]) -> None:
    offer = one(entry, unwell=True)
    assert offer is not None
    assert [t.value for t in offer.taints] == values


@pytest.mark.parametrize(
    "entry",
    [
        replace(FREE, lane=Lane.LEGACY),
        replace(FREE, lane=Lane.LEGACY, owner=Owner.LEGACY, hold=Hold()),
        replace(FREE, lane=Lane.LEGACY_TO_DRA),
        replace(FREE, lane=Lane.DRA_TO_LEGACY),
        replace(FREE, move=LEAVING),
    ],
    ids=["legacy", "legacy-held", "coming", "going", "about-to-go"],
)
def test_devices_outside_the_claims_lane_are_left_out(entry: Entry) -> None:
    assert one(entry) is None


def test_a_faulty_device_is_tainted_as_configured_and_a_gone_one_after_a_while() -> None:
    settings = config(taints={"faulty": "NoExecute", "gone": "NoExecute", "goneAfterSeconds": 15})
    faulty = replace(FREE, device=LedgerDevice.of(device(presence=Presence.FAULTY)))
    gone = replace(FREE, device=LedgerDevice.of(device(presence=Presence.GONE)), presence_since=90.0)
    for entry, at, expected in (
        (faulty, 100.0, (f"{DRIVER}/faulty", "NoExecute")),
        (gone, 100.0, (f"{DRIVER}/gone", "NoSchedule")),
        (gone, 105.0, (f"{DRIVER}/gone", "NoExecute")),
        (replace(gone, since=104.0), 105.0, (f"{DRIVER}/gone", "NoExecute")),  # its claim came or went
    ):
        offer = one(entry, config=settings, at=at)
        assert offer is not None
        assert [(t.key, str(t.effect)) for t in offer.taints] == [expected]


@pytest.mark.parametrize(
    ("fault", "value", "effect"),
    [
        ("", "", "NoSchedule"),
        ("lost", "lost", "NoExecute"),
        ("xid-79", "xid-79", "NoExecute"),
        ("thermal", "thermal", "None"),
        ("ecc", "ecc", "NoSchedule"),
        ("reset", "reset", "NoSchedule"),
    ],
)
def test_the_taint_of_a_fault_says_which_and_has_an_effect_of_its_own(fault: str, value: str, effect: str) -> None:
    settings = config(taints={"nvml": {"lost": "NoExecute", "xid": "NoExecute", "thermal": "None"}})
    faulty = device(presence=Presence.FAULTY, fault=fault)
    (offer,) = pool((faulty,), replace(FREE, device=LedgerDevice.of(faulty)), config=settings).offers
    assert [(t.key, t.value, str(t.effect)) for t in offer.taints] == [(f"{DRIVER}/faulty", value, effect)]


def test_the_shared_lane_needs_a_lease() -> None:
    shared = replace(FREE, lane=Lane.SHARED)
    offer = one(shared)
    assert offer is not None
    assert offer.lease
    assert offer.taints == ()
    denied = one(replace(shared, claims=(ClaimHold(ClaimRef("uid"), ClaimPhase.DENIED, 0.0),)))
    assert denied is not None
    assert [taint.value for taint in denied.taints] == ["lease-denied"]


def test_shared_devices_carry_the_policies_of_their_capacity() -> None:
    policy = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}
    more = {
        "name": "example.com/shared",
        "sharing": {"allowMultipleAllocations": True},
        "capacity": {
            "memory": {"value": "8Gi", "requestPolicy": policy},
            "slots": {"value": 4, "requestPolicy": {"default": 1, "validValues": [1, 2]}},
            "cores": {"value": 8},
        },
    }
    shared = device(resource="example.com/shared", capacity={"memory": 8 << 30, "slots": 4, "cores": 8})
    (offer,) = pool((shared,), config=config(more)).offers
    assert offer.policies is not None
    assert offer.policies["cores"] == {"default": "0"}, "else a claim that asks for nothing takes all of them"
    assert offer.policies["memory"] == policy
    assert offer.policies["slots"] == {"default": "1", "validValues": ["1", "2"]}


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"min": "1Mi", "step": "1Mi"}, 5 << 20),  # not what the API server would refuse, with the whole slice
        ({"min": 0, "max": "4Mi", "step": "1Mi"}, 4 << 20),
        ({"min": 3}, (5 << 20) + 7),
        (None, (5 << 20) + 7),
    ],
)
def test_a_claim_that_asks_for_nothing_can_get_all_that_may_be_asked_for(limits: Any, expected: int) -> None:
    policy = {"default": "all", **({"validRange": limits} if limits else {})}
    more = {
        "name": "example.com/shared",
        "sharing": {"allowMultipleAllocations": True},
        "capacity": {"memory": {"from": "attr:memory", "requestPolicy": policy}},
    }
    shared = replace(device(resource="example.com/shared"), capacity={"memory": (5 << 20) + 7})
    (offer,) = pool((shared,), config=config(more)).offers
    assert offer.policies is not None
    assert parse(offer.policies["memory"]["default"]) == expected


@pytest.mark.parametrize(
    "policy",
    [
        {"default": "all", "validRange": {"min": "1Mi", "max": "80Gi", "step": "1Mi"}},
        {"default": "1Gi", "validRange": {"min": "1Gi", "max": "80Gi"}},
        {"default": "all", "validRange": {"min": "1Gi"}},
        {"default": 0, "validRange": {"min": 0, "step": "1Gi"}},
        {"default": "1Gi", "validValues": ["1Mi", "1Gi"]},
        {"default": "1Gi"},
    ],
)
def test_what_a_device_has_less_of_than_its_policy_says_is_not_refused_with_the_whole_slice(policy: Any) -> None:
    """Devices of one resource differ: GPUs with 40 and with 80 GiB."""
    more = {
        "name": "example.com/shared",
        "sharing": {"allowMultipleAllocations": True},
        "capacity": {"memory": {"from": "attr:memory", "requestPolicy": policy}},
    }
    shared = replace(device(resource="example.com/shared"), capacity={"memory": (5 << 20) + 7})
    (spec,) = desired_slices(pool((shared,), config=config(more))).slices.values()
    assert spec["devices"][0]["capacity"]["memory"]["value"] == str((5 << 20) + 7)
    named = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    assert not list(resource_slice({"spec": {**spec, "pool": named}}, None, RELEASES["1.36"]))


@pytest.mark.parametrize(
    ("counters", "total", "each"),
    [({}, {"parts": 3}, {"parts": 1}), ({"units": {"total": 8, "each": 2}}, {"units": 8}, {"units": 2})],
)
def test_a_whole_takes_everything_and_each_part_its_share(
    counters: dict[str, Any], total: dict[str, int], each: dict[str, int]
) -> None:
    partition = {"name": "example.com/part", "partition": {"of": RESOURCE, "counters": counters}}
    parts = tuple(device(f"part-{n}", resource="example.com/part", root="gpu-0") for n in range(3))
    result = pool((device(), device("gpu-1"), *parts), config=config(partition))
    assert result.counters == {"gpu-0": total}
    consumed = {offer.device.name: dict(offer.consumes) for offer in result.offers}
    assert consumed["gpu-0"] == {"gpu-0": total}
    assert consumed["gpu-1"] == {}
    assert consumed["part-2"] == {"gpu-0": each}


def test_a_device_that_the_ledger_does_not_know_is_not_offered() -> None:
    result = pool_of(Snapshot(1, (device(),)), Ledger.of(()), config(), "node-a", 0.0)
    assert result.offers == ()


def test_a_device_that_is_back_is_gone_until_the_ledger_knows_what_became_of_it() -> None:
    behind = replace(FREE, device=LedgerDevice.of(device(presence=Presence.GONE)))
    (offer,) = pool((device(),), behind).offers
    assert [taint.key for taint in offer.taints] == [f"{DRIVER}/gone"]


def test_a_device_that_went_before_the_ledger_knows_is_gone() -> None:
    (offer,) = pool((device(presence=Presence.GONE),), FREE).offers
    assert [(taint.key, str(taint.effect)) for taint in offer.taints] == [(f"{DRIVER}/gone", "NoSchedule")]


def test_health_is_a_full_list_that_names_what_is_wrong() -> None:
    devices = (
        device("b", presence=Presence.FAULTY, reason="its node is missing"),
        device("a"),
        device("c", presence=Presence.GONE),
    )
    assert health_of(devices, ["a", "vanished"]) == (
        ReportedHealth("a", True),
        ReportedHealth("b", False, "its node is missing"),
        ReportedHealth("c", False, "the device is gone"),
        ReportedHealth("vanished", False, "the device is gone"),
    )


def test_a_device_that_is_kept_for_pods_is_tainted_as_if_one_had_it() -> None:
    """So the slice is not written anew when the next pod takes it."""
    free = Entry(LedgerDevice.of(device()), lane=Lane.SHARED)
    held = replace(free, owner=Owner.LEGACY, hold=Hold(("GPU-0",), 1.0))
    kept = one(free, kept={"gpu-0"})
    assert kept == one(held)
    assert kept is not None
    assert kept.taints
    assert not (one(free) or kept).taints


def test_a_device_that_will_be_lent_to_claims_is_tainted_until_it_is_in_the_dra_lane() -> None:
    """One write of the slice: from "a pod has it" to "free, without a lease"."""
    held = Entry(LedgerDevice.of(device()), Owner.LEGACY, Lane.SHARED, Hold(("GPU-0",), 1.0))
    free = replace(held, owner=Owner.NONE, hold=None)
    leaving = replace(free, lane=Lane.LEGACY_TO_DRA, move=Move(Lane.SHARED, Lane.DRA, MoveStep.REVOKING, 1.0, 1.0))
    assert one(free, kept={"gpu-0"}) == one(leaving, kept={"gpu-0"}) == one(held)
    lent = one(replace(free, lane=Lane.DRA))
    assert lent is not None
    assert (lent.lease, lent.taints) == (False, ())
