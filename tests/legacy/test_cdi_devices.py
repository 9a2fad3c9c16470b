"""Allocate hands out CDI devices of other programs, beside our own or with the fallback in their place."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest
from msgspec.structs import replace

from deviceplugin import AllocationError, ContainerAllocation
from drabridge.config import load
from drabridge.containers.cdi_store import CdiStore
from drabridge.inventory import cdi_index
from drabridge.inventory.cdi_index import CdiIndex
from drabridge.inventory.devices import Device, DeviceNode, Fallback
from drabridge.ledger.entries import LedgerDevice
from drabridge.ledger.events import AgentStarted, Discovered, NodeBooted
from drabridge.ledger.policy import LedgerPolicy
from drabridge.ledger.service import LedgerService
from drabridge.ledger.store import Store
from drabridge.legacy.cdi_files import LegacyCdiFiles
from drabridge.legacy.resource import LegacyContext, LegacyResource
from tests.support.cdi_files import KIND, write_spec

RESOURCE = load("""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: example.com
resources:
- name: nvidia.com/gpu
  match: [{subsystem: pci}]
""").resources[0]
NODE = DeviceNode("/dev/null", "/dev/null", "rw", "c", 1, 3)
THEIRS = f"{KIND}=GPU-0"
OURS = "example.com/device=legacy-gpu-0"
GPU = Device("gpu-0", "GPU-0", RESOURCE.name, env={"OURS": "1"}, cdi_devices=(THEIRS,))


class Place:
    def __init__(self, service: LedgerService, root: Path, device: Device) -> None:
        self.device = device
        self.store = CdiStore(root / "cdi", "example.com")
        self.foreign = root / "cdi/nvidia.yaml"
        self.foreign.parent.mkdir()
        self.index = CdiIndex((self.foreign.parent,), "example.com", lambda: None)
        self.ledger_service = service
        self.confirmed: list[list[str]] = []
        context = LegacyContext(
            ledger_service=service,
            cdi=self.store,
            devices=lambda: {GPU.name: self.device},
            resolve=self._resolve,
            confirm_cdi=self._confirm,
            now=lambda: 100.0,
        )
        self.resource = LegacyResource(RESOURCE, "cdi", context)
        self.resource.follow_inventory()

    def _resolve(self, device: Device) -> Device:
        """As the inventory does it: by what the index has."""
        missing = "; ".join(filter(None, map(self.index.current.missing, device.cdi_devices)))
        if device.fallback is not None and missing:
            return replace(device, cdi_devices=(), cdi_missing=missing)
        return device

    async def _confirm(self, names: Collection[str]) -> None:
        self.confirmed.append(list(names))
        await self.index.confirm(names)

    async def names(self) -> tuple[str, ...]:
        answer = self.resource.allocate(["GPU-0"])
        answer = answer if isinstance(answer, ContainerAllocation) else await answer
        assert not answer.envs
        assert not answer.devices
        return answer.cdi_devices

    def written(self) -> dict[str, object]:
        path = self.store.directory / "example.com-device-legacy-gpu-0.json"
        entries = json.loads(path.read_text())["devices"] if path.exists() else []
        return {entry["name"]: entry["containerEdits"] for entry in entries}


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[LedgerService]:
    service = LedgerService(Store(tmp_path / "state", node="n"), LedgerPolicy(), now=lambda: 100.0)
    await service.apply(NodeBooted("boot", 0.0))
    await service.apply(Discovered((LedgerDevice.of(GPU),), 0.0))
    await service.apply(AgentStarted(0.0))
    yield service
    await service.close()


async def test_theirs_come_before_ours_whose_variables_win(service: LedgerService, tmp_path: Path) -> None:
    place = Place(service, tmp_path, GPU)
    await place.index.use(frozenset({KIND}))
    write_spec(place.foreign, "GPU-0")
    assert await place.names() == (THEIRS, OURS)
    assert place.written() == {"legacy-gpu-0": {"env": ["OURS=1"]}}


async def test_with_nothing_of_our_own_there_is_only_theirs(service: LedgerService, tmp_path: Path) -> None:
    place = Place(service, tmp_path, replace(GPU, env={}))
    await place.index.use(frozenset({KIND}))
    write_spec(place.foreign, "GPU-0")
    assert await place.names() == (THEIRS,)
    assert [path.name for path in place.store.directory.iterdir()] == ["nvidia.yaml"]


async def test_a_device_that_went_since_is_refused_in_words(
    service: LedgerService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cdi_index, "SETTLE_SECONDS", 0.2)
    place = Place(service, tmp_path, GPU)
    await place.index.use(frozenset({KIND}))
    with pytest.raises(AllocationError, match=f"CDI device {THEIRS} is in no file of .*nvidia-ctk") as refused:
        await place.names()
    assert refused.value.code == "UNAVAILABLE"
    asyncio.get_running_loop().call_later(0.1, write_spec, place.foreign, "GPU-0")
    assert await place.names() == (THEIRS, OURS)  # it was being written anew


async def test_a_file_that_has_just_gone_leads_to_the_fallback(
    service: LedgerService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cdi_index, "SETTLE_SECONDS", 0.2)
    place = Place(service, tmp_path, replace(GPU, fallback=Fallback((NODE,))))
    write_spec(place.foreign, "GPU-0")
    await place.index.use(frozenset({KIND}))
    place.foreign.unlink()
    assert await place.names() == (f"{OURS}.fallback", OURS)


async def test_the_fallback_has_a_name_of_its_own_that_stays(service: LedgerService, tmp_path: Path) -> None:
    """Kubelet repeats for a pod's life what it was told: both names must mean something, whatever is there now."""
    fallback = Fallback((NODE,), {"THEIRS": "0"})
    missing = replace(GPU, cdi_devices=(), fallback=fallback, cdi_missing="it is in no file")
    place = Place(service, tmp_path, missing)
    assert await place.names() == (f"{OURS}.fallback", OURS)
    assert not place.confirmed
    both = {"legacy-gpu-0", "legacy-gpu-0.fallback", "legacy-gpu-0.fallback.joined"}
    assert place.written().keys() == both
    place.device = there = replace(GPU, fallback=fallback)
    LegacyCdiFiles(place.store).follow(service.ledger, {GPU.name: there})
    assert place.written().keys() == both
    write_spec(place.foreign, "GPU-0")
    await place.index.use(frozenset({KIND}))
    assert await place.names() == (THEIRS, OURS)
    assert place.written().keys() == both


async def test_a_node_that_changes_during_the_look_is_given_as_it_is_then(
    service: LedgerService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the container would get whatever has the old number now."""
    place = Place(service, tmp_path, replace(GPU, nodes=(NODE,)))
    write_spec(place.foreign, "GPU-0")
    await place.index.use(frozenset({KIND}))
    look = place.index.confirm

    async def while_it_is_plugged_in_again(names: Collection[str]) -> None:
        place.device = replace(place.device, nodes=(replace(NODE, minor=5),))
        await look(names)

    monkeypatch.setattr(place.index, "confirm", while_it_is_plugged_in_again)
    assert await place.names() == (THEIRS, OURS)
    (node,) = place.written()["legacy-gpu-0"]["deviceNodes"]  # type: ignore[index]
    assert node["minor"] == 5


async def test_nobody_looks_at_files_for_devices_without_others(service: LedgerService, tmp_path: Path) -> None:
    place = Place(service, tmp_path, replace(GPU, cdi_devices=()))
    assert await place.names() == (OURS,)
    assert not place.confirmed
