"""``drabridge status``: the status document on one screen."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.cli.status import moves, render
from drabridge.inventory.devices import Device, Presence, Semver
from drabridge.ledger.entries import Entry, HeldBecause, Hold, Lane, LedgerDevice, Owner
from drabridge.status import page
from drabridge.status.document import KubeletConnection, RecentRefusal
from drabridge.status.wording import holder, parse_time
from tests.support import status_documents
from tests.support.status_documents import GPU, NOW, by_claim, by_pod, free, gpu, status

WHOLE, PART = gpu(0), replace(gpu(1), root=gpu(0).name)


def test_a_free_device_says_why_nobody_is_offered_it() -> None:
    document = status([WHOLE, PART], [free(WHOLE, Lane.LEGACY, 9), free(PART, Lane.DRA, 9)])
    assert [row["offered"] for row in document["devices"]] == [[], []]
    screen = "\n".join(render(document))
    assert f"shares its hardware with {PART.name}, which is in lane dra" in screen
    assert f"shares its hardware with {WHOLE.name}, which is in lane legacy" in screen


def test_the_holder_of_the_whole_is_why_a_part_is_not_offered() -> None:
    document = status([WHOLE, PART], [by_pod(WHOLE, "a/b/c", 9), free(PART, Lane.LEGACY, 9)])
    assert [row["reason"] for row in document["devices"]] == [
        "",
        f"shares its hardware with {WHOLE.name}, which is held (legacy)",
    ]


def test_a_device_that_is_kept_because_it_is_held_says_so() -> None:
    former = replace(WHOLE, former=True)
    screen = " ".join(render(status([former], [by_pod(former, "a/b/c", 9)])))
    assert "of a former configuration, kept while it is held" in screen


def test_a_device_that_cannot_be_used_is_not_counted_as_free() -> None:
    gone = replace(WHOLE, presence=Presence.GONE)
    (row,) = status([gone, gpu(2)], [free(gone, Lane.LEGACY, 9), free(gpu(2), Lane.LEGACY, 9)])["resources"]
    assert (row["devices"], row["free"], row["unusable"]) == (2, 1, 1)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("make", [status_documents.busy, status_documents.troubled])
def test_what_an_on_call_person_needs_is_on_a_narrow_screen(make: Any, width: int) -> None:
    """Names are for copying, or for telling devices apart: none is cut, and no line is longer than the terminal."""
    document = make()
    lines = list(render(document, width=width))
    screen = " ".join(" ".join(lines).split())
    assert max(map(len, "\n".join(lines).splitlines())) <= width
    assert "…" not in screen
    for row in document["devices"]:
        assert row["name"] in screen
        assert row["reason"] in screen
        for one in row["holders"]:
            assert holder(one) in screen


@pytest.mark.parametrize("width", [80, 120, None])
def test_the_lanes_of_a_resource_are_two_numbers(width: int | None) -> None:
    other = replace(gpu(1), resource="nvidia.com/gpu-with-a-longer-name")
    entries = [by_pod(gpu(0), "a/b/c", 9), free(gpu(2), Lane.LEGACY, 9), by_claim(gpu(3), "a/x", 9)]
    document = status([gpu(0), other, gpu(2), gpu(3)], [*entries, free(other, Lane.DRA, 9)])
    lines = [line.split() for line in "\n".join(render(document, width=width)).splitlines()]
    head = next(line for line in lines if line[:1] == ["RESOURCE"])
    found = {line[0]: dict(zip(head, line, strict=True)) for line in lines if line[:1] in ([GPU], [other.resource])}
    assert {name: (row["LEGACY"], row["DRA"]) for name, row in found.items()} == {
        GPU: ("2", "1"),
        other.resource: ("0", "1"),
    }
    assert "DOUBT" not in head


def test_a_move_says_whom_it_waits_for_as_the_page_does() -> None:
    document = status_documents.busy()
    said = "waiting 4m for search/embedder-6c9f7-x2x8q/main; 5 of 8 are wanted in the dra lane"
    assert f"  gpu-4f1c0002-91d2-5a07 to dra: {said}" in render(document)
    assert f"  gpu-4f1c0002-91d2-5a07 to dra: {said}" in moves(document["devices"], parse_time(document["at"]), None)
    assert said in page.render(document).decode()


def test_trouble_with_kubelet_is_said_once() -> None:
    endpoint = KubeletConnection("deviceplugin", GPU, "Refused", False, NOW - 61, "cannot connect")
    document = status([], [], not_ready=[f"{GPU}: Refused (cannot connect)"], endpoints=[endpoint])
    assert "\n".join(render(document)).count("cannot connect") == 1


def test_quarantine_says_what_is_missing_and_names_nobody() -> None:
    hold = Hold(allocated_at=NOW - 90, because=HeldBecause.POD_UNACCOUNTED)
    document = status(
        [WHOLE], [Entry(LedgerDevice.of(WHOLE), Owner.QUARANTINE, Lane.LEGACY, hold=hold, since=NOW - 90)]
    )
    (device,) = document["devices"]
    assert (device["holders"], device["evidence"]) == ([], "pod-unaccounted")
    head, trouble, *_, line = render(document)
    assert head.endswith("READY, BUT DEVICES ARE IN DOUBT")
    assert trouble == f"  ! quarantine: {WHOLE.name} ({GPU}): nobody knows who holds it"
    assert line.splitlines()[-1].split()[-5:] == ["an", "unknown", "holder", "90s", "pod-unaccounted"]
    body = page.render(document).decode()
    assert "pod-unaccounted" in body
    assert "not yet seen" not in body


def test_a_long_verdict_is_whole_on_a_narrow_screen() -> None:
    document = status([WHOLE], [Entry(LedgerDevice.of(WHOLE), Owner.QUARANTINE, Lane.LEGACY, since=NOW)])
    _, verdict, *_ = render({**document, "node": "n" * 20}, width=80)
    assert verdict == "  READY, BUT DEVICES ARE IN DOUBT"


def test_refusals_that_say_the_same_are_one_line() -> None:
    same = [RecentRefusal(NOW - 60 + at, "dra", WHOLE.name, "other-lane", "it is for pods") for at in range(7)]
    document = status([WHOLE], [free(WHOLE, Lane.LEGACY, 9)], refusals=[*same, replace(same[0], device="other")])
    screen = list(render(document))
    assert screen[screen.index("recent refusals") + 1 :] == [
        "  60s ago  dra  other  other-lane  it is for pods",
        f"  54s ago  dra  {WHOLE.name}  other-lane  it is for pods (7 times)",
    ]
    body = page.render(document).decode()
    assert body.count("it is for pods") == 2
    assert "it is for pods (7 times)" in body


@pytest.mark.parametrize(
    ("device", "uuid"),
    [
        (replace(WHOLE, attributes={"uuid": "published"}), "published"),
        (WHOLE, WHOLE.id),
        (replace(WHOLE, id="MIG-1", root="gpu-0"), "MIG-1"),
        (replace(WHOLE, id="0000:3b:00.0"), ""),
        (replace(WHOLE, attributes={"uuid": 7}, id="usb-7"), ""),
    ],
)
def test_the_document_names_the_hardware(device: Device, uuid: str) -> None:
    (row,) = status([device], [free(device, Lane.DRA, 9)])["devices"]
    assert (row["uuid"], row["pciBusID"], row["root"]) == (uuid, device.pci_bus_id, device.root)


def test_the_document_has_the_attributes_as_plain_values_and_none_of_a_device_that_is_gone() -> None:
    published = {"productName": "H200", "driver": Semver("580.1.0"), "numa": 1, "sriov": False}
    device = replace(WHOLE, attributes=published)
    document = status([device], [free(device, Lane.DRA, 9), free(gpu(2), Lane.DRA, 9)])
    rows = {row["name"]: row for row in document["devices"]}
    assert rows[device.name]["attributes"] == {**published, "driver": "580.1.0"}
    assert (rows[gpu(2).name]["attributes"], rows[gpu(2).name]["uuid"]) == ({}, "")
    assert json.loads(json.dumps(document)) == document
