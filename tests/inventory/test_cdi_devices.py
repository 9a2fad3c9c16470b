"""Devices that enter containers by CDI files of other programs: their health, and what is given instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drabridge.config.schema import Config
from drabridge.errors import HostError
from drabridge.inventory import cdi_index
from drabridge.inventory.devices import Device, Presence, Snapshot
from drabridge.inventory.host import HostPaths
from drabridge.inventory.observer import FallbackGiven
from drabridge.ledger.entries import Entry, LedgerDevice
from drabridge.ledger.events import Allocate
from tests.support.cdi_files import KIND, write_spec
from tests.support.hardware import config, watching
from tests.support.ledger_node import NOON, Node

GONE = f"CDI device {KIND}=GPU-zero is in no file of"


def of_mem(**more: Any) -> Config:
    """The kernel's memory devices, of which every machine has the same."""
    return config(
        {
            "name": "example.com/mem",
            "match": [{"subsystem": "mem", "sysname": ["zero"]}],
            "id": ["{sysname}"],
            "nodes": [],
            "cdiDevices": [f"{KIND}=GPU-{{sysname}}"],
            **more,
        },
        resyncSeconds=3600,
        udevEvents="kernel",
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdi_index, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(cdi_index, "AGAIN_SECONDS", 0.02)
    monkeypatch.setattr(cdi_index, "SETTLE_SECONDS", 0.2)


def only(snapshot: Snapshot) -> Device:
    (device,) = snapshot.devices
    return device


def is_(presence: Presence) -> Any:
    return lambda snapshot: only(snapshot).presence is presence


async def test_a_device_is_healthy_while_its_cdi_device_is_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "nvidia.yaml"
    async with watching(of_mem(), paths=HostPaths(cdi=(tmp_path,))) as watched:
        device = only(watched.snapshots[-1])
        assert device.presence is Presence.FAULTY
        assert device.reason == (
            f"{GONE} {tmp_path}: run nvidia-ctk cdi generate --device-name-strategy=uuid "
            f"--output={tmp_path}/nvidia.yaml, or restart nvidia-cdi-refresh"
        )
        write_spec(path, "GPU-zero")
        device = only(await watched.snapshot_with(is_(Presence.PRESENT)))
        assert device.cdi_devices == (f"{KIND}=GPU-zero",)
        assert watched.inventory.resolve(device) == device
        count = len(watched.snapshots)
        path.unlink()
        write_spec(path, "GPU-zero", "GPU-one")
        await watched.inventory.cdi.confirm(device.cdi_devices)
        assert len(watched.snapshots) == count  # regenerated, and nothing else
        write_spec(path, "GPU-one")
        device = only(await watched.snapshot_with(is_(Presence.FAULTY)))
        with pytest.raises(HostError, match=GONE):
            watched.inventory.resolve(device)
        write_spec(path, "GPU-zero")
        await watched.snapshot_with(is_(Presence.PRESENT))


async def test_the_first_snapshot_knows_the_files(tmp_path: Path) -> None:
    write_spec(tmp_path / "nvidia.yaml", "GPU-zero")
    async with watching(of_mem(), paths=HostPaths(cdi=(tmp_path,))) as watched:
        assert only(watched.snapshots[0]).presence is Presence.PRESENT


async def test_the_fallback_is_given_while_there_is_no_file(tmp_path: Path) -> None:
    fallback = {"nodes": [{"path": "/dev/null"}], "env": {"A": "{sysname}"}, "mounts": [{"hostPath": "/etc/hostname"}]}
    async with watching(of_mem(cdiFallback=fallback), paths=HostPaths(cdi=(tmp_path,))) as watched:
        device = only(watched.snapshots[-1])
        assert (device.presence, device.cdi_devices, device.nodes) == (Presence.PRESENT, (), ())
        assert device.cdi_missing.startswith(GONE)
        assert watched.inventory.resolve(device) == device
        assert device.fallback is not None
        assert [node.path for node in device.fallback.nodes] == ["/dev/null"]
        assert (device.fallback.env, device.fallback.mounts[0].host_path) == ({"A": "zero"}, "/etc/hostname")
        write_spec(tmp_path / "nvidia.yaml", "GPU-zero")
        device = only(await watched.snapshot_with(lambda s: bool(only(s).cdi_devices)))
        assert (device.cdi_missing, device.fallback is None) == ("", False)
        assert [(fact.devices, bool(fact.why)) for fact in watched.told(FallbackGiven)] == [(1, True), (0, False)]


async def test_a_fallback_that_lacks_something_is_no_help(tmp_path: Path) -> None:
    fallback = {"nodes": [{"path": "/dev/none"}]}
    async with watching(of_mem(cdiFallback=fallback), paths=HostPaths(cdi=(tmp_path,))) as watched:
        device = only(watched.snapshots[-1])
        assert device.presence is Presence.FAULTY
        assert device.reason.startswith(GONE)
        assert device.reason.endswith("; /dev/none: no such file or directory")
        write_spec(tmp_path / "nvidia.yaml", "GPU-zero")
        await watched.snapshot_with(is_(Presence.PRESENT))  # with its CDI device it needs no fallback


async def test_a_name_that_cannot_be_one_is_said(tmp_path: Path) -> None:
    for template, reason in (
        (f"{KIND}={{attr:none}}", "cannot be filled in: {attr:none} has no value"),
        (f"{KIND}={{devnode}}", f"'{KIND}=/dev/zero' cannot be a CDI device"),
    ):
        async with watching(of_mem(cdiDevices=[template]), paths=HostPaths(cdi=(tmp_path,))) as watched:
            assert reason in only(watched.snapshots[-1]).reason


async def test_a_changed_configuration_looks_for_other_files_first(tmp_path: Path) -> None:
    write_spec(tmp_path / "nvidia.yaml", "GPU-zero")
    write_spec(tmp_path / "other.yaml", "zero", kind="other.com/x")
    async with watching(of_mem(cdiDevices=[]), paths=HostPaths(cdi=(tmp_path,))) as watched:
        assert only(watched.snapshots[-1]).cdi_devices == ()
        for name in (f"{KIND}=GPU-{{sysname}}", "other.com/x={sysname}"):
            watched.inventory.reconfigure(of_mem(cdiDevices=[name]))
            await watched.snapshot_with(lambda s: bool(only(s).cdi_devices))
        await watched.snapshot_with(lambda s: only(s).cdi_devices == ("other.com/x=zero",))
        assert Presence.FAULTY not in {only(snapshot).presence for snapshot in watched.snapshots}


async def test_devices_with_one_cdi_device_are_never_given_out_side_by_side(tmp_path: Path) -> None:
    """As devices with one node: a name with fields is a device's own, one without is for all."""
    two = of_mem(
        match=[{"subsystem": "mem", "sysname": ["zero", "null"]}],
        cdiDevices=[f"{KIND}=GPU-{{subsystem}}", f"{KIND}=all"],
    )
    write_spec(tmp_path / "nvidia.yaml", "GPU-mem", "all")
    async with watching(two, paths=HostPaths(cdi=(tmp_path,))) as watched:
        first, second = watched.snapshots[-1].devices
        assert first.also_at == second.also_at == (f"cdi:{KIND}=GPU-mem",)
        node = Node(Entry(LedgerDevice.of(first)), Entry(LedgerDevice.of(second)))
        node.yes(Allocate({first.name: first.units}, NOON))
        assert "shares its hardware" in node.no(Allocate({second.name: second.units}, NOON))[1]
        assert node.offers(second.name) == (False, False)
