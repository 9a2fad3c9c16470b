"""CDI files in their directory: written, found again, removed, and what a directory that cannot be used does."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from drabridge.containers.cdi_spec import (
    CdiDevice,
    ContainerEdits,
    claim_device_name,
    claim_uid_of,
    is_admin_only,
)
from drabridge.containers.cdi_store import CdiStore, Family
from drabridge.errors import HostError
from drabridge.inventory.devices import Device
from tests.containers.cdi_samples import DEVICE, NODE, UID, read
from tests.support.waiting import HANG_SECONDS


def test_a_legacy_device_has_one_file_and_one_name_or_another_beside_others(store: CdiStore) -> None:
    spec = store.legacy_spec(DEVICE)

    assert store.write_legacy(DEVICE) == ("drabridge.example.com/device=legacy-radio-a",)
    assert store.write_legacy(DEVICE, index=0) == ("drabridge.example.com/device=legacy-radio-a.joined",)
    document = read(store, spec)
    alone, joined = cast("list[dict[str, Any]]", document["devices"])
    edits = {key: value for key, value in alone["containerEdits"].items() if key != "env"}
    assert joined == {"name": "legacy-radio-a.joined", "containerEdits": edits}
    assert {**document, "devices": [alone]} == {
        "cdiVersion": "0.3.0",
        "kind": "drabridge.example.com/device",
        "devices": [
            {
                "name": "legacy-radio-a",
                "containerEdits": {
                    "deviceNodes": [
                        {"path": "/dev/radio0", "type": "c", "major": 189, "minor": 4, "permissions": "rw"}
                    ],
                    "env": ["A=1", "B=2"],
                    "mounts": [
                        {
                            "hostPath": "/opt/fw",
                            "containerPath": "/fw",
                            "options": ["ro", "nosuid", "nodev", "bind"],
                        }
                    ],
                },
            }
        ],
    }
    assert (store.directory / spec.file_name).stat().st_mode & 0o777 == 0o644
    assert store.keys(Family.LEGACY) == ("radio-a",)


def test_every_replica_of_a_device_gets_the_same_name(store: CdiStore) -> None:
    shared = Device("kvm", "kvm", "example.com/kvm", nodes=(NODE,), replicas=3)

    assert len(shared.units) == 3
    assert store.legacy_spec(shared).names == ("drabridge.example.com/device=legacy-kvm",)


def test_nothing_to_inject_means_no_file_and_no_name(store: CdiStore) -> None:
    spec = store.claim_spec(UID, [CdiDevice("a", ContainerEdits((NODE,)))])
    store.write(spec)

    assert store.write(store.claim_spec(UID, [CdiDevice("a", ContainerEdits())])) == ()
    assert list(store.directory.iterdir()) == []
    half = store.claim_spec(UID, [CdiDevice("a", ContainerEdits()), CdiDevice("b", ContainerEdits(env={"X": "1"}))])
    assert store.write(half) == ("drabridge.example.com/device=b",)
    assert half.qualified("a") is None
    assert half.qualified("b") == "drabridge.example.com/device=b"


def test_an_identical_file_is_left_alone_and_a_damaged_one_is_rewritten(store: CdiStore) -> None:
    spec = store.legacy_spec(DEVICE)
    store.write(spec)
    path = store.directory / spec.file_name
    before = path.stat().st_ino

    store.write(spec)
    assert path.stat().st_ino == before
    path.write_text("{torn")
    store.write(spec)
    assert path.read_bytes() == spec.encode()


def test_regeneration_after_a_reboot_restores_ours_and_leaves_others(store: CdiStore, tmp_path: Path) -> None:
    claim = store.claim_spec(UID, [CdiDevice("c", ContainerEdits((NODE,)))])
    store.write(claim)
    old = store.legacy_spec(Device("old", "old", "r", nodes=(NODE,)))
    store.write(old)
    ours_torn = store.directory / "drabridge.example.com-device-legacy-torn.json"
    ours_torn.write_text("{")
    leftover = store.directory / ".drabridge.example.com-device-legacy-x.json.abc.tmp"
    leftover.write_text("{")
    foreign = store.directory / "nvidia.yaml"
    foreign.write_text("cdiVersion: 0.3.0")
    imitation = store.directory / "drabridge.example.com-device-legacy-imitation.json"
    imitation.write_text('{"kind": "other.example.com/device"}')

    removed = store.regenerate(Family.LEGACY, [store.legacy_spec(DEVICE)])

    assert removed == ("drabridge.example.com-device-legacy-old.json", ours_torn.name)
    assert {path.name for path in store.directory.iterdir()} == {
        "drabridge.example.com-device-legacy-radio-a.json",
        claim.file_name,
        foreign.name,
        imitation.name,
    }
    assert store.keys(Family.LEGACY) == ("radio-a",)


def test_removal_is_idempotent(store: CdiStore) -> None:
    assert store.remove(Family.CLAIM, UID) is False
    store.write(store.claim_spec(UID, [CdiDevice("a", ContainerEdits((NODE,)))]))
    assert store.remove(Family.CLAIM, UID) is True
    assert store.remove(Family.CLAIM, UID) is False


@pytest.mark.parametrize("key", ["../../etc/passwd", "", "a/b", ".hidden", "x" * 200, "a\0b"])
def test_a_key_that_is_not_a_valid_file_name_is_refused(store: CdiStore, key: str) -> None:
    with pytest.raises(HostError, match="cannot be part of a CDI file name"):
        store.file_name(Family.CLAIM, key)


def test_a_directory_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    store = CdiStore(blocked / "cdi", "v.example.com")

    with pytest.raises(HostError) as caught:
        store.write(store.legacy_spec(DEVICE))
    assert str(blocked) in str(caught.value)
    assert "/var/run/cdi" in caught.value.hint
    missing_parent = CdiStore(tmp_path / "no" / "cdi", "v.example.com")
    with pytest.raises(HostError, match="No such file"):
        missing_parent.write(missing_parent.legacy_spec(DEVICE))


def test_a_directory_that_refuses_even_root_says_what_to_do() -> None:
    store = CdiStore(Path("/sys/kernel"), "v.example.com")  # sysfs: nobody creates files there
    with pytest.raises(HostError, match=r"cannot keep CDI files in /sys/kernel: (Operation not|Permission)"):
        store.write(store.legacy_spec(DEVICE))


@pytest.mark.parametrize("vendor", ["1v", "", "v/x"])
def test_an_invalid_vendor_is_refused(tmp_path: Path, vendor: str) -> None:
    with pytest.raises(ValueError, match="is not a vendor in CDI"):
        CdiStore(tmp_path, vendor)


def test_a_failure_lasts_until_a_probe_succeeds(tmp_path: Path) -> None:
    store = CdiStore(tmp_path / "cdi", "drabridge.example.com")
    store.directory.write_text("in the way")
    with pytest.raises(HostError):
        store.write(store.legacy_spec(DEVICE))
    assert "Not a directory" in store.error
    assert not store.probe()
    assert "Not a directory" in store.error
    store.directory.unlink()
    assert store.probe()
    assert store.error == ""
    assert list(store.directory.iterdir()) == []  # the probe leaves nothing


def test_files_that_somebody_else_removed_are_missed_once(store: CdiStore) -> None:
    spec = store.legacy_spec(DEVICE)
    store.write(spec)
    store.write(store.claim_spec(UID, [CdiDevice("claim-x", ContainerEdits((NODE,)))]))
    assert store.missing() == ()
    store.remove(Family.CLAIM, UID)
    assert store.missing() == ()
    (store.directory / spec.file_name).unlink()
    store.directory.rmdir()
    assert store.missing() == (spec.file_name,)
    assert store.missing() == ()
    store.write(spec)
    assert store.missing() == ()


def test_a_directory_that_cannot_be_listed_is_a_failure(store: CdiStore) -> None:
    store.directory.write_text("in the way")
    assert store.missing() == ()
    assert "Not a directory" in store.error


def test_a_claims_file_tells_its_uid_and_its_devices_without_any_record(store: CdiStore, tmp_path: Path) -> None:
    names = [
        claim_device_name(UID, "r", "gpu-0"),
        claim_device_name(UID, "r", "gpu-1", "share"),
        claim_device_name(UID, "look", "gpu-1", admin=True),
    ]
    qualified = store.write(store.claim_spec(UID, [CdiDevice(name, ContainerEdits((NODE,))) for name in names]))
    torn = store.file_name(Family.CLAIM, "torn")
    (store.directory / torn).write_text('{"cdiVersion": "0.3')
    list_ = store.file_name(Family.CLAIM, "list")
    (store.directory / list_).write_text(json.dumps({"kind": store.kind, "devices": ["no", {"name": 1}]}))
    store.write(store.legacy_spec(DEVICE))

    assert store.claims() == {
        UID: (("r-gpu-0", False), ("r-gpu-1-share", False), ("look-gpu-1", True)),
        "torn": (),
        "list": (),
    }
    assert [claim_uid_of(name) for name in qualified] == [UID] * 3
    assert is_admin_only([*qualified[2:], "somebody.else/metadata=x"])
    assert not is_admin_only(qualified[1:])
    assert not is_admin_only([])
    assert claim_uid_of(store.legacy_spec(DEVICE).names[0]) == ""
    assert CdiStore(tmp_path / "none", "v.example.com").claims() == {}


def test_nothing_waits_for_what_another_program_put_into_the_directory(tmp_path: Path) -> None:
    """A FIFO of our name would be read until somebody writes: no claim would be prepared any more."""
    store = CdiStore(tmp_path, "example.com")
    (tmp_path / "target.json").write_text("{}")
    os.mkfifo(tmp_path / "example.com-device-claim-odd.json")
    (tmp_path / "example.com-device-claim-link.json").symlink_to("/dev/zero")
    thread = threading.Thread(target=lambda: store.regenerate(Family.CLAIM, []), daemon=True)
    thread.start()
    thread.join(HANG_SECONDS)
    assert not thread.is_alive()
    assert [path.name for path in tmp_path.iterdir()] == ["target.json"]
