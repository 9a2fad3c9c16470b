"""What a CDI file says: its version, names and edits, and what is refused."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from drabridge.containers.cdi_spec import (
    CdiDevice,
    CdiSpec,
    ContainerEdits,
    claim_device_name,
)
from drabridge.containers.cdi_store import CdiStore
from drabridge.errors import HostError
from drabridge.inventory.devices import Device, DeviceNode, Fallback, Mount
from tests.containers.cdi_samples import NODE, RENAMED, UID, read


@pytest.mark.parametrize(
    ("device", "version"),
    [
        (CdiDevice("a", ContainerEdits((NODE,))), "0.3.0"),
        (CdiDevice("0a", ContainerEdits((NODE,))), "0.5.0"),
        (CdiDevice("a", ContainerEdits((RENAMED,))), "0.5.0"),
        (CdiDevice("a", ContainerEdits((DeviceNode("/dev/x", ""),))), "0.3.0"),
        (CdiDevice("0a", ContainerEdits()), "0.3.0"),
        (CdiDevice("a", ContainerEdits((replace(NODE, file_mode=0o660, uid=0, gid=20),))), "0.3.0"),
        (CdiDevice("0a", ContainerEdits((replace(NODE, joined_gid=20),))), "0.7.0"),
        (CdiDevice("a", ContainerEdits((replace(NODE, joined_gid=0),))), "0.3.0"),
    ],
    ids=["plain", "digit-name", "renamed-node", "no-alias", "not-written", "owner", "group", "roots-group"],
)
def test_the_version_is_the_lowest_that_covers_the_file(device: CdiDevice, version: str) -> None:
    assert CdiSpec("f.json", "v/c", (CdiDevice("plain", ContainerEdits((NODE,))), device)).version == version


def test_a_renamed_node_names_both_paths(store: CdiStore) -> None:
    spec = store.claim_spec(UID, [CdiDevice("a", ContainerEdits((RENAMED,)))])
    store.write(spec)

    devices = read(store, spec)["devices"]
    assert isinstance(devices, list)
    assert devices[0]["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/radio", "hostPath": "/dev/radio7", "type": "b", "major": 7, "minor": 7, "permissions": "rwm"}
    ]


def test_mode_owner_and_groups_are_as_cdi_names_them(store: CdiStore) -> None:
    nodes = (replace(NODE, file_mode=0o660, uid=0, gid=20, joined_gid=20), replace(RENAMED, joined_gid=6))
    spec = store.claim_spec(UID, [CdiDevice("a", ContainerEdits(nodes))])
    store.write(spec)

    devices = read(store, spec)["devices"]
    assert isinstance(devices, list)
    edits = devices[0]["containerEdits"]
    first, second = edits["deviceNodes"]
    assert (first["fileMode"], first["uid"], first["gid"]) == (0o660, 0, 20)
    assert not {"fileMode", "uid", "gid"} & second.keys()
    assert edits["additionalGids"] == [6, 20]


def test_names_of_claims_begin_with_a_letter_and_hold_everything_that_makes_them_one(store: CdiStore) -> None:
    name = claim_device_name(UID, "gpu", "radio-a", "share-1")

    assert name == f"claim-{UID}-gpu-radio-a-share-1"
    assert store.claim_spec(UID, [CdiDevice(name, ContainerEdits((NODE,)))]).version == "0.3.0"
    assert claim_device_name(UID, "look", "radio-a", admin=True) == f"admin-{UID}-look-radio-a"


@pytest.mark.parametrize(
    "device",
    [
        CdiDevice("bad name", ContainerEdits((NODE,))),
        CdiDevice("a", ContainerEdits((DeviceNode("dev/x", "/dev/x"),))),
        CdiDevice("a", ContainerEdits(mounts=(Mount("relative", "/x"),))),
        CdiDevice("a", ContainerEdits(env={"A=B": "1"})),
        CdiDevice("a", ContainerEdits(env={"A": "1\0"})),
    ],
)
def test_what_no_runtime_would_accept_is_refused_before_it_is_written(store: CdiStore, device: CdiDevice) -> None:
    with pytest.raises(HostError):
        store.write(store.claim_spec(UID, [device]))
    assert not store.directory.exists()


def test_two_devices_of_one_name_are_refused(store: CdiStore) -> None:
    with pytest.raises(HostError, match="twice"):
        store.write(
            store.claim_spec(UID, [CdiDevice("a", ContainerEdits((NODE,))), CdiDevice("a", ContainerEdits((RENAMED,)))])
        )


def test_edits_join_and_the_later_wins() -> None:
    joined = ContainerEdits((NODE,), {"A": "1", "B": "1"}) | ContainerEdits(
        (RENAMED,), {"B": "2"}, (Mount("/a", "/b"),)
    )

    assert joined == ContainerEdits((NODE, RENAMED), {"A": "1", "B": "2"}, (Mount("/a", "/b"),))


def test_the_hook_of_a_fallback_is_in_the_file_however_many_devices_enter_together(store: CdiStore) -> None:
    hook = ("/usr/bin/nvidia-cdi-hook", "nvidia-cdi-hook", "update-ldcache")
    fallback = Fallback((NODE,), {"A": "1"}, hook=hook)
    spec = store.legacy_spec(Device("gpu", "GPU", "nvidia.com/gpu", fallback=fallback, cdi_missing="no file"))
    entries = {one["name"]: one["containerEdits"] for one in json.loads(spec.encode())["devices"]}
    assert len(entries) == 2
    for edits in entries.values():
        assert edits["hooks"] == [{"hookName": "createContainer", "path": hook[0], "args": list(hook[1:])}]
