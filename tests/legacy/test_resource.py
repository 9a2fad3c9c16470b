"""One resource's Allocate on a real ledger and a real CDI directory."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from deviceplugin import AllocationError, ContainerAllocation, ListedHealth
from drabridge.config import load
from drabridge.config.vfio import Vfio
from drabridge.containers.cdi_store import CdiStore
from drabridge.errors import HostError
from drabridge.inventory.devices import Device, DeviceNode
from drabridge.ledger import store
from drabridge.ledger.entries import ClaimRef, Lane, LedgerDevice, Owner
from drabridge.ledger.events import AgentStarted, Allocate, DeviceUse, Discovered, NodeBooted, Prepare, SetLane
from drabridge.ledger.policy import LedgerPolicy
from drabridge.ledger.service import LedgerService
from drabridge.ledger.store import Store
from drabridge.legacy.cdi_files import LegacyCdiFiles
from drabridge.legacy.resource import LegacyContext, LegacyResource
from tests.support.waiting import until

RESOURCE = load("""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: example.com
resources:
- name: example.com/radio
  match: [{subsystem: tty}]
""").resources[0]
RADIO = Device("radio-0", "R0", RESOURCE.name, nodes=(DeviceNode("/dev/null", "/dev/radio", "rw", "c", 1, 3),))


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service takes the disk for quick, however slow this machine's is: it writes at once, and CDI files beside."""
    monkeypatch.setattr(LedgerService, "_is_lone_request", lambda self: True)


@pytest.fixture
async def ledger_service(tmp_path: Path) -> AsyncIterator[LedgerService]:
    ledger_service = LedgerService(Store(tmp_path / "state", node="n"), LedgerPolicy(), now=lambda: 100.0)
    await ledger_service.apply(NodeBooted("boot", 0.0))
    await ledger_service.apply(Discovered((LedgerDevice.of(RADIO),), 0.0))
    await ledger_service.apply(AgentStarted(0.0))
    yield ledger_service
    await ledger_service.close()


class Place:
    """The resource with one device; ``fault`` is what looking at its nodes raises."""

    def __init__(self, ledger_service: LedgerService, directory: Path, inject: Literal["cdi", "devices"]) -> None:
        self.fault: HostError | None = None
        self.bound: list[str] = []
        self.cdi = directory / "cdi"
        self.store = CdiStore(self.cdi, "example.com")
        self.devices: dict[str, Device] = {RADIO.name: RADIO}
        self.resource = LegacyResource(
            RESOURCE,
            inject,
            LegacyContext(
                ledger_service=ledger_service,
                cdi=self.store,
                devices=lambda: self.devices,
                resolve=self._resolve,
                bind=self._bind,
                now=lambda: 100.0,
            ),
        )
        self.resource.follow_inventory()

    @property
    def healthy(self) -> set[str]:
        current = self.resource.devices().current
        assert current is not None
        return {one.id for one in current.value if one.health is ListedHealth.HEALTHY}

    def _resolve(self, device: Device) -> Device:
        if self.fault is not None:
            raise self.fault
        return device

    async def _bind(self, device: Device) -> None:
        if self.fault is not None:
            raise self.fault
        self.bound.append(device.name)
        self.devices[device.name] = replace(device, nodes=(*device.nodes, DeviceNode("/dev/zero", "/dev/zero")))

    async def allocate(self, *ids: str) -> ContainerAllocation:
        answer = self.resource.allocate(ids)
        return answer if isinstance(answer, ContainerAllocation) else await answer


@pytest.mark.parametrize("inject", ["cdi", "devices"])
async def test_a_device_that_cannot_be_looked_at_is_refused_in_words(
    ledger_service: LedgerService, tmp_path: Path, inject: Literal["cdi", "devices"]
) -> None:
    place = Place(ledger_service, tmp_path, inject)
    place.fault = HostError("radio-0 is unplugged", hint="Plug it in again.")
    with pytest.raises(AllocationError, match=r"radio-0 is unplugged. Plug it in again.") as refused:
        await place.allocate("R0")
    assert refused.value.code == "UNAVAILABLE"
    place.fault = None
    answer = await place.allocate("R0")  # kubelet tries again, and the hold is the same
    assert bool(answer.cdi_devices) == (inject == "cdi")
    assert bool(answer.devices) == (inject == "devices")


async def test_a_device_is_bound_before_its_container_starts_not_in_the_allocate_and_a_failure_is_said(
    ledger_service: LedgerService, tmp_path: Path
) -> None:
    place = Place(ledger_service, tmp_path, "cdi")
    assert not place.resource.reconfigure(replace(RESOURCE, vfio=Vfio(allow=("10de:*",))), "cdi"), "kubelet is told"
    place.resource.config = replace(RESOURCE, vfio=Vfio(allow=("10de:*",)))
    assert place.resource.pre_start_required
    await place.allocate("R0")
    assert place.bound == []
    place.fault = HostError("0000:3b:00.0 is mounted")
    with pytest.raises(AllocationError, match=r"0000:3b:00\.0 is mounted"):
        await place.resource.pre_start(["R0"])
    place.fault = None
    await place.resource.pre_start(["R0"])
    assert place.bound == ["radio-0"]
    (file,) = place.cdi.iterdir()
    assert "/dev/zero" in file.read_text(), "the container gets what the bind made"


async def test_a_driver_that_hangs_keeps_no_other_device_of_the_resource_from_its_container(
    ledger_service: LedgerService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(ledger_service, tmp_path, "devices")
    other = replace(RADIO, name="radio-1", id="R1")
    place.devices[other.name] = other
    await ledger_service.apply(Discovered((LedgerDevice.of(RADIO), LedgerDevice.of(other)), 0.0))
    place.resource.config = replace(RESOURCE, vfio=Vfio(allow=("10de:*",)))
    place.resource.follow_inventory()
    bound: list[str] = []

    async def bind(device: Device) -> None:
        bound.append(device.name)
        await asyncio.sleep(60 if device is RADIO else 0)

    monkeypatch.setattr(place.resource, "_agent", replace(place.resource._agent, bind=bind))
    hangs = asyncio.create_task(place.resource.pre_start(["R0"]))
    await asyncio.sleep(0)
    await asyncio.wait_for(place.resource.pre_start(["R1"]), 5)
    assert bound == ["radio-0", "radio-1"]
    hangs.cancel()


async def test_nothing_is_answered_before_the_grant_is_on_disk(ledger_service: LedgerService, tmp_path: Path) -> None:
    place = Place(ledger_service, tmp_path, "cdi")
    await place.allocate("R0")
    assert ledger_service.ledger.entries["radio-0"].owner is Owner.LEGACY
    assert '"owner":"legacy"' in (tmp_path / "state" / "ledger.jsonl").read_text().splitlines()[-1]
    assert [path.name for path in place.cdi.iterdir()] == ["example.com-device-legacy-radio-0.json"]


async def test_a_cdi_directory_that_fails_is_told_to_kubelet_at_once(
    ledger_service: LedgerService, tmp_path: Path
) -> None:
    """The ledger says held, but the pod failed: kubelet would give the same device to the next one, and the next."""
    place = Place(ledger_service, tmp_path, "cdi")
    place.cdi.write_text("in the way")
    assert place.healthy == {"R0"}
    with pytest.raises(AllocationError, match="cannot keep CDI files"):
        await place.allocate("R0")
    assert place.healthy == set()
    assert not place.store.probe()
    place.resource.follow_ledger()
    assert place.healthy == set()
    place.cdi.unlink()
    assert place.store.probe()
    place.resource.follow_ledger()
    assert place.healthy == {"R0"}
    await place.allocate("R0")
    place.store.error = "fails again"
    place.resource.follow_ledger()
    assert place.healthy == {"R0"}  # a pod has it: it must stay admissible


async def test_a_device_without_a_cdi_file_is_given_despite_a_failing_cdi_directory(
    ledger_service: LedgerService, tmp_path: Path
) -> None:
    place = Place(ledger_service, tmp_path, "devices")
    place.store.error = "cannot be written"
    place.resource.follow_ledger()
    assert place.healthy == {"R0"}


async def test_a_ledger_that_cannot_be_written_is_told_to_kubelet_at_once(
    ledger_service: LedgerService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(ledger_service, tmp_path, "cdi")

    def full(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_write", full)
        with pytest.raises(AllocationError, match="No space left on device"):
            await place.allocate("R0")
        assert place.healthy == set()
    ledger_service.retry_write()  # what housekeeping does
    await ledger_service.apply(NodeBooted("boot", 1.0))
    assert ledger_service.health.ok
    place.resource.follow_ledger()
    assert place.healthy == {"R0"}


@pytest.mark.usefixtures("quick_disk")
async def test_the_file_of_a_grant_that_failed_is_swept(
    ledger_service: LedgerService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written while the grant goes to the disk; nobody was given its name."""
    place = Place(ledger_service, tmp_path, "cdi")
    file = place.cdi / "example.com-device-legacy-radio-0.json"

    def full(fd: int, data: object) -> int:
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.0005)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_write", full)
        with pytest.raises(AllocationError, match="No space left on device"):
            await place.allocate("R0")
    assert file.exists()
    files = LegacyCdiFiles(place.store)
    files.sweep_soon(ledger_service.ledger)
    await place.store.thread.wait_all()
    assert list(place.cdi.iterdir()) == []


@pytest.mark.usefixtures("quick_disk")
async def test_a_file_that_was_swept_while_the_disk_was_slow_is_there_with_the_answer(
    ledger_service: LedgerService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, gate, write = Place(ledger_service, tmp_path, "cdi"), threading.Event(), store._write

    def slow(fd: int, data: bytes) -> None:
        assert gate.wait(60)
        write(fd, data)

    monkeypatch.setattr(store, "_write", slow)
    answer = asyncio.create_task(place.allocate("R0"))
    file = place.cdi / "example.com-device-legacy-radio-0.json"
    await until(file.exists)
    LegacyCdiFiles(place.store).sweep_soon(ledger_service.ledger)  # in which nobody has the device yet
    await until(lambda: not file.exists())
    gate.set()
    assert (await answer).cdi_devices == ("example.com/device=legacy-radio-0",)
    assert file.exists()


async def test_a_refused_device_gets_no_file(tmp_path: Path) -> None:
    service = LedgerService(Store(tmp_path / "state", node="n"), LedgerPolicy(), now=lambda: 100.0)
    await service.apply(NodeBooted("boot", 0.0))
    await service.apply(Discovered((LedgerDevice.of(RADIO),), 0.0, {"radio-0": Lane.DRA}))
    await service.apply(AgentStarted(0.0))
    claim = Prepare(ClaimRef("uid", "team", "claim"), (DeviceUse("radio-0"),), 2.0)
    assert (await service.apply(claim)).accepted
    place = Place(service, tmp_path, "cdi")
    with pytest.raises(AllocationError, match="team/claim"):
        await place.allocate("R0")
    await place.store.thread.wait_all()
    assert not place.cdi.exists()
    await service.close()


async def test_what_is_to_leave_the_lane_is_preferred_last(ledger_service: LedgerService, tmp_path: Path) -> None:
    """Else pods that come and go take it from each other, and it waits for ever beside a device that is idle."""
    radios = [Device(f"radio-{i}", f"R{i}", RESOURCE.name, numa_nodes=(i,)) for i in (2, 1, 0)]
    place = Place(ledger_service, tmp_path, "devices")
    place.devices = {radio.name: radio for radio in radios}
    await ledger_service.apply(Discovered(tuple(map(LedgerDevice.of, radios)), 1.0))
    place.resource.follow_inventory()
    assert place.resource.prefer(["R0", "R1", "R2"], [], 1) == ["R2"]  # claims begin at the other end
    await ledger_service.apply(Allocate({"radio-2": ("R2",)}, 2.0, RESOURCE.name))
    await ledger_service.apply(SetLane("radio-2", Lane.DRA, 3.0))  # it waits until its pod has ended
    assert place.resource.prefer(["R0", "R1", "R2"], [], 1) == ["R1"]
    assert place.resource.prefer(["R0", "R1", "R2"], ["R2"], 2) == ["R2", "R1"]
    assert place.resource.prefer(["R2"], [], 1) == ["R2"]  # better than a pod that fails


async def test_what_was_given_last_is_preferred_last_while_it_is_held(
    ledger_service: LedgerService, tmp_path: Path
) -> None:
    """Kubelet may take it for free though a pod has it (kubernetes/kubernetes#137534)."""
    radios = [Device(f"radio-{i}", f"R{i}", RESOURCE.name) for i in range(3)]
    place = Place(ledger_service, tmp_path, "devices")
    place.devices = {radio.name: radio for radio in radios}
    await ledger_service.apply(Discovered(tuple(map(LedgerDevice.of, radios)), 1.0))
    place.resource.follow_inventory()
    await place.allocate("R0")
    await place.allocate("R1", "R2")
    assert place.resource.prefer(["R0", "R1", "R2"], [], 1) == ["R0"]
    assert place.resource.prefer(["R0", "R1"], ["R1"], 1) == ["R1"]  # an init container's
    assert place.resource.prefer(["R1", "R2"], [], 1) == ["R2"]  # kubelet has no others
    assert place.resource.prefer(["R0", "R2"], [], 2) == ["R2", "R0"]
    place.fault = HostError("no node")
    with pytest.raises(AllocationError):
        await place.allocate("R0")
    assert place.resource.prefer(["R0", "R1"], [], 1) == ["R0"]  # its pod was refused
