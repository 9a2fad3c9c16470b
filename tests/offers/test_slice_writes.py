"""Slice plans, carried out on a model of the server: they end in what is desired, and then there is nothing to do."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from drabridge.inventory.devices import PCIE_ROOT, Device, Semver
from drabridge.offers.slice_writes import Accepted, SliceOwner, Verb, Write, accept, dropped, plan, same
from drabridge.offers.slices import (
    ALL_FEATURES,
    DesiredSlices,
    Feature,
    Offer,
    Pool,
    Taint,
    desired_slices,
)
from tests.offers.slices_model import Refused, SliceServer

DRIVER, NODE = "hw.example.com", "node-a"
OWNER = SliceOwner(NODE, "node-uid-1")
FAULT = Taint("hw.example.com/faulty", "node-missing")


def offer(index: int, **changes: Any) -> Offer:
    device = Device(
        f"gpu-{index}",
        f"GPU-{index}",
        "example.com/gpu",
        attributes={"uuid": f"GPU-{index}", "driverVersion": Semver("580.95.5")},
        capacity={"memory": 64 * 1024**3},
    )
    return Offer(device, **changes)


def pool(*offers: Offer, **changes: Any) -> Pool:
    return Pool(DRIVER, NODE, offers, **changes)


def steps(server: SliceServer, wanted: DesiredSlices, **options: Any) -> tuple[Write, ...]:
    return plan(wanted.slices, server.slices.values(), pool=NODE, owner=OWNER, **options)


def settle(server: SliceServer, wanted: DesiredSlices) -> tuple[Write, ...]:
    writes = steps(server, wanted)
    for write in writes:
        server.apply(write)
    return writes


def generations(server: SliceServer) -> list[int]:
    return [slice_["spec"]["pool"]["generation"] for slice_ in server.slices.values()]


def test_an_empty_pool_is_one_slice_without_devices() -> None:
    server = SliceServer()
    assert [write.verb for write in settle(server, desired_slices(pool()))] == [Verb.CREATE]
    assert server.complete_pool() == []
    assert steps(server, desired_slices(pool())) == ()


def test_sixty_five_devices_are_two_slices_in_order() -> None:
    server = SliceServer()
    settle(server, desired_slices(pool(*map(offer, range(65)))))

    assert [len(s["spec"]["devices"]) for _, s in sorted(server.slices.items())] == [64, 1]
    assert server.complete_pool() == [f"gpu-{i}" for i in range(65)]


def test_a_taint_in_one_slice_is_one_update_in_the_same_generation() -> None:
    server = SliceServer()
    offers = [offer(i) for i in range(130)]
    settle(server, desired_slices(pool(*offers)))
    offers[70] = replace(offers[70], taints=(FAULT,))

    writes = settle(server, desired_slices(pool(*offers)))

    assert [write.verb for write in writes] == [Verb.UPDATE]
    assert generations(server) == [1, 1, 1]


def test_changes_in_two_slices_are_a_new_generation_of_all() -> None:
    server = SliceServer()
    offers = [offer(i) for i in range(130)]
    settle(server, desired_slices(pool(*offers)))
    offers[0], offers[70] = replace(offers[0], taints=(FAULT,)), replace(offers[70], taints=(FAULT,))

    assert [write.verb for write in settle(server, desired_slices(pool(*offers)))] == [Verb.UPDATE] * 3
    assert generations(server) == [2, 2, 2]


def test_a_time_that_the_server_gave_a_taint_stays() -> None:
    server = SliceServer()
    settle(server, desired_slices(pool(offer(0, taints=(FAULT,)))))
    (name,) = server.slices
    server.slices[name]["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2020-01-01T00:00:00Z"
    tainted = desired_slices(pool(offer(0, taints=(FAULT,))))
    assert steps(server, tainted) == ()

    settle(server, desired_slices(pool(offer(0, taints=(FAULT, Taint("hw.example.com/other"))))))

    times = [taint["timeAdded"] for taint in server.slices[name]["spec"]["devices"][0]["taints"]]
    assert times == ["2020-01-01T00:00:00Z", "2026-11-21T00:00:00Z"]
    settle(server, desired_slices(pool(offer(0))))
    assert "taints" not in server.slices[name]["spec"]["devices"][0]


def test_eviction_counts_from_the_same_time_in_a_slice_that_is_made_anew() -> None:
    server = SliceServer()
    wanted = desired_slices(pool(offer(0, taints=(replace(FAULT, since=1_700_000_000.9),))))
    for _ in range(2):
        settle(server, wanted)
        (name,) = server.slices
        (taint,) = server.slices[name]["spec"]["devices"][0]["taints"]
        assert taint["timeAdded"] == "2023-11-14T22:13:20Z"
        assert steps(server, wanted) == ()
        server.slices.clear()  # kubelet's start deletes them


def test_a_deleted_slice_comes_back_in_its_generation_and_an_edited_one_is_restored() -> None:
    server = SliceServer()
    wanted = desired_slices(pool(*map(offer, range(200))))
    settle(server, wanted)
    names = sorted(server.slices)
    del server.slices[names[1]], server.slices[names[2]]
    assert [write.verb for write in settle(server, wanted)] == [Verb.CREATE, Verb.CREATE]
    assert generations(server) == [1] * 4

    server.slices[names[0]]["spec"]["devices"][3]["attributes"]["uuid"] = {"string": "edited"}
    assert [write.verb for write in settle(server, wanted)] == [Verb.UPDATE]
    assert steps(server, wanted) == ()


def test_slices_of_an_older_pool_and_of_another_layout_are_deleted_first() -> None:
    server = SliceServer()
    old = plan({"other": {"driver": DRIVER, "nodeName": NODE}}, [], pool="old-pool")[0]
    server.apply(old)
    settle(server, desired_slices(pool(*map(offer, range(65)))))
    assert sorted(server.slices) == ["node-a-hw.example.com-00000", "node-a-hw.example.com-00001"]

    writes = settle(server, desired_slices(pool(offer(0))))
    assert [write.verb for write in writes] == [Verb.DELETE, Verb.UPDATE]
    assert server.complete_pool() == ["gpu-0"]


def test_a_node_that_was_recreated_owns_its_slices_again_without_a_new_generation() -> None:
    server = SliceServer()
    wanted = desired_slices(pool(offer(0)))
    settle(server, wanted)
    fresh = SliceOwner(NODE, "node-uid-2")

    (write,) = plan(wanted.slices, server.slices.values(), pool=NODE, owner=fresh)
    server.apply(write)

    assert write.verb is Verb.UPDATE
    assert server.slices[write.name]["metadata"]["ownerReferences"][0]["uid"] == "node-uid-2"
    assert generations(server) == [1]
    assert plan(wanted.slices, server.slices.values(), pool=NODE, owner=fresh) == ()


def test_a_server_that_drops_taints_is_noticed_and_the_device_is_left_out() -> None:
    server = SliceServer(drops=["taints"])
    writes = steps(server, desired_slices(pool(offer(0, taints=(FAULT,)), offer(1))))
    answer = server.apply(writes[0])
    assert answer is not None
    assert writes[0].body is not None
    gone = dropped(writes[0].body, answer)
    assert gone == {Feature.TAINTS}

    again = desired_slices(pool(offer(0, taints=(FAULT,)), offer(1)), ALL_FEATURES - gone)
    settle(server, again)

    assert server.complete_pool() == ["gpu-1"]
    assert again.notes == (
        "device gpu-0 is not in a ResourceSlice: hw.example.com/faulty=node-missing, "
        "and the API server keeps no taints",
    )


def test_what_a_server_made_of_a_spec_counts_as_equal_until_somebody_edits_it() -> None:
    server = SliceServer()
    wanted = desired_slices(pool(offer(0)))
    (write,) = steps(server, wanted)
    answer = copy.deepcopy(server.apply(write))
    assert answer is not None
    assert write.body is not None
    answer["spec"]["devices"][0]["futureField"] = {"default": True}
    server.slices[write.name] = dict(answer)
    assert [w.verb for w in steps(server, wanted)] == [Verb.UPDATE]

    known: dict[str, Accepted] = {write.name: accept(write.body, answer)}
    assert steps(server, wanted, accepted=known) == ()
    server.slices[write.name]["spec"]["devices"][0]["futureField"] = {"default": False}
    assert [w.verb for w in steps(server, wanted, accepted=known)] == [Verb.UPDATE]


def test_spelling_of_quantities_is_no_difference_but_their_amount_is() -> None:
    wanted = desired_slices(pool(offer(0))).slices["node-a-hw.example.com-00000"]
    stored = copy.deepcopy(wanted)
    stored["devices"][0]["capacity"]["memory"]["value"] = "65536Mi"
    assert same(wanted, stored)
    stored["devices"][0]["capacity"]["memory"]["value"] = "65537Mi"
    assert not same(wanted, stored)


def test_a_slice_that_a_real_server_stored_is_equal_to_the_one_we_would_write() -> None:
    """Devices as in ``data/resourceslice.json``, recorded from Kubernetes 1.36.2."""
    stored = json.loads((Path(__file__).parent / "data" / "resourceslice.json").read_text())
    devices = [
        Device(
            f"gpu-{i}",
            f"GPU-{i}",
            "obs.example.com/gpu",
            standard={PCIE_ROOT: "pci0000:00"},
            attributes={
                "type": "gpu",
                "uuid": f"GPU-{i}",
                "index": i,
                "ecc": True,
                "cudaComputeCapability": Semver("9.0.0"),
                "driverVersion": Semver("580.95.5"),
            },
            capacity={"memory": 64 * 1024**3},
        )
        for i in range(4)
    ]
    (spec,) = desired_slices(Pool("obs.example.com", "node-a", tuple(map(Offer, devices)))).slices.values()
    for device in spec["devices"]:
        assert device["attributes"].pop("resource") == {"string": "obs.example.com/gpu"}

    assert (
        plan(
            {"obs-slice": spec},
            [stored],
            pool="node-a",
            owner=SliceOwner("node-a", "07de8fb4-bbeb-4aae-bc95-aeb13bd363f0"),
        )
        == ()
    )


def test_leased_devices_are_in_a_slice_of_their_own_at_the_end() -> None:
    wanted = desired_slices(pool(offer(0, lease=True), offer(1)))
    first, second = wanted.slices.values()
    assert [device["name"] for device in first["devices"]] == ["gpu-1"]
    assert second["devices"][0]["bindingConditions"] == ["hw.example.com/lease"]
    assert second["devices"][0]["bindingFailureConditions"] == ["hw.example.com/lease-denied"]
    assert second["devices"][0]["bindsToNode"] is True
    without = desired_slices(pool(offer(0, lease=True), offer(1)), ALL_FEATURES - {Feature.LEASES})
    assert [device["name"] for spec in without.slices.values() for device in spec["devices"]] == ["gpu-1"]


def test_a_shared_device_carries_its_policy_or_is_offered_alone() -> None:
    policies = {"memory": {"default": "1Gi", "validRange": {"min": "1Gi", "max": "64Gi", "step": "1Gi"}}}
    (spec,) = desired_slices(pool(offer(0, policies=policies))).slices.values()
    (device,) = spec["devices"]
    assert device["allowMultipleAllocations"] is True
    assert device["capacity"]["memory"] == {"value": "64Gi", "requestPolicy": policies["memory"]}

    alone = desired_slices(pool(offer(0, policies=policies)), ALL_FEATURES - {Feature.SHARING})
    (spec,) = alone.slices.values()
    assert "allowMultipleAllocations" not in spec["devices"][0]
    assert spec["devices"][0]["capacity"] == {"memory": {"value": "64Gi"}}
    assert alone.notes == (), "the feature's sentence says it"


def test_a_whole_and_its_parts_share_counters_in_a_slice_of_their_own() -> None:
    whole = offer(0, consumes={"gpu-0": {"parts": 2}})
    part = replace(offer(1), consumes={"gpu-0": {"parts": 1}})
    part = replace(part, device=replace(part.device, root="gpu-0"))
    counters = {"gpu-0": {"parts": 2}}

    first, second = desired_slices(pool(whole, part, counters=counters)).slices.values()

    assert [device["consumesCounters"] for device in first["devices"]] == [
        [{"counterSet": "gpu-0", "counters": {"parts": {"value": "2"}}}],
        [{"counterSet": "gpu-0", "counters": {"parts": {"value": "1"}}}],
    ]
    assert second["sharedCounters"] == [{"name": "gpu-0", "counters": {"parts": {"value": "2"}}}]
    assert "devices" not in second
    bare = desired_slices(pool(whole, part, counters=counters), ALL_FEATURES - {Feature.PARTITIONS})
    assert [d["name"] for spec in bare.slices.values() for d in spec["devices"]] == ["gpu-0"]
    assert "part of gpu-0" in bare.notes[0]


# What may happen to the slices of a node, in any order: the inventory changes, somebody deletes or edits a slice, the
# agent dies in the middle of a plan.
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("devices"), st.integers(0, 200)),
        st.tuples(st.just("taint"), st.integers(0, 199)),
        st.tuples(st.just("delete"), st.integers(0, 3)),
        st.tuples(st.just("edit"), st.integers(0, 3)),
        st.tuples(st.just("wipe"), st.just(0)),
        st.tuples(st.just("crash after"), st.integers(0, 4)),
    ),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(start=st.integers(0, 140), events=EVENTS)
def test_every_history_ends_in_what_is_desired_and_then_in_silence(start: int, events: list[tuple[str, int]]) -> None:
    server = SliceServer()
    offers = [offer(i) for i in range(start)]
    settle(server, desired_slices(pool(*offers)))
    for event, number in events:
        names = sorted(server.slices)
        chosen = names[number % len(names)] if names else None
        if event == "devices":
            offers = [offer(i) for i in range(number)]
        elif event == "taint" and number < len(offers):
            offers[number] = replace(offers[number], taints=() if offers[number].taints else (FAULT,))
        elif event == "delete" and chosen:
            del server.slices[chosen]
        elif event == "edit" and chosen:
            server.slices[chosen]["spec"]["pool"]["generation"] += number
        elif event == "wipe":
            server.slices.clear()
        elif event == "crash after":
            for write in steps(server, desired_slices(pool(*offers)))[:number]:
                server.apply(write)
                assert_never_a_mixture(server)
    wanted = desired_slices(pool(*offers))
    settle(server, wanted)

    assert server.complete_pool() == [o.device.name for o in offers]
    for name, spec in wanted.slices.items():
        assert same(spec, server.slices[name]["spec"])
    assert steps(server, wanted) == ()


def assert_never_a_mixture(server: SliceServer) -> None:
    """Half-way through a plan the pool is either unusable or free of duplicates."""
    try:
        names = server.complete_pool() if server.slices else []
    except Refused:
        return
    assert len(set(names)) == len(names)
