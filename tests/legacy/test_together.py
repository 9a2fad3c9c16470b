"""Several devices in one Allocate: their variables come together, and none of them is lost at another's path."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from deviceplugin import AllocationError, ContainerAllocation
from drabridge.config import load
from drabridge.containers.cdi_store import CdiStore
from drabridge.inventory.devices import Device, DeviceNode, Fallback, Mount
from drabridge.ledger.entries import LedgerDevice, Owner
from drabridge.ledger.events import AgentStarted, Discovered, NodeBooted
from drabridge.ledger.policy import LedgerPolicy
from drabridge.ledger.service import LedgerService
from drabridge.ledger.store import Store
from drabridge.legacy.cdi_files import LegacyCdiFiles
from drabridge.legacy.resource import LegacyContext, LegacyResource

RESOURCE = load("""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: example.com
resources:
- name: example.com/vf
  match: [{subsystem: pci}]
""").resources[0]
Inject = Literal["cdi", "devices"]
BOTH = pytest.mark.parametrize("inject", ["cdi", "devices"])


def vf(index: int, **changes: Any) -> Device:
    node = DeviceNode("/dev/null" if index else "/dev/zero", f"/dev/vf{index}", "rw", "c", 1, 3)
    env = {"PCIDEVICE_EXAMPLE_COM_VF": f"0000:3b:01.{index}", "MODE": "vfio"}
    return replace(Device(f"vf-{index}", f"V{index}", RESOURCE.name, nodes=(node,), env=env), **changes)


class Place:
    def __init__(self, service: LedgerService, root: Path, inject: Inject, *devices: Device) -> None:
        self.service, self.devices = service, {device.name: device for device in devices}
        self.store = CdiStore(root / "cdi", "example.com")
        context = LegacyContext(service, self.store, lambda: self.devices, lambda device: device, now=lambda: 100.0)
        self.resource = LegacyResource(RESOURCE, inject, context)
        self.resource.follow_inventory()

    async def allocate(self, *ids: str) -> ContainerAllocation:
        answer = self.resource.allocate(ids)
        return answer if isinstance(answer, ContainerAllocation) else await answer

    def container(self, answer: ContainerAllocation) -> dict[str, Any]:
        """What a container has then, whatever order the runtime takes the names in."""
        files = [json.loads(path.read_text()) for path in self.store.directory.glob("*.json")]
        entries = {f"{one['kind']}={e['name']}": e["containerEdits"] for one in files for e in one["devices"]}
        found = [entries[name] for name in answer.cdi_devices]
        env = dict(answer.envs)
        for variable in (text for edits in found for text in edits.get("env", ())):
            name, _, value = variable.partition("=")
            assert env.setdefault(name, value) == value
        nodes = [node["path"] for edits in found for node in edits.get("deviceNodes", ())]
        return {"env": env, "nodes": sorted([*nodes, *(node.container_path for node in answer.devices)])}


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[LedgerService]:
    service = LedgerService(Store(tmp_path / "state", node="n"), LedgerPolicy(), now=lambda: 100.0)
    await service.apply(NodeBooted("boot", 0.0))
    await service.apply(Discovered(tuple(LedgerDevice.of(vf(n)) for n in range(3)), 0.0))
    await service.apply(AgentStarted(0.0))
    yield service
    await service.close()


@BOTH
async def test_a_variable_has_the_values_of_all_devices_and_each_has_its_node(
    service: LedgerService, tmp_path: Path, inject: Inject
) -> None:
    place = Place(service, tmp_path, inject, vf(0), vf(1), vf(2))
    answer = await place.allocate("V0", "V2")
    container = {
        "env": {"PCIDEVICE_EXAMPLE_COM_VF": "0000:3b:01.0,0000:3b:01.2", "MODE": "vfio"},
        "nodes": ["/dev/vf0", "/dev/vf2"],
    }
    assert place.container(answer) == container
    if inject == "cdi":  # kubelet repeats its answer when the container starts again: also after a boot
        for path in place.store.directory.iterdir():
            path.unlink()
        LegacyCdiFiles(place.store).restore(service.ledger, place.devices)
        assert place.container(answer) == container
    alone = await place.allocate("V1")
    assert place.container(alone)["env"]["PCIDEVICE_EXAMPLE_COM_VF"] == "0000:3b:01.1"


async def test_variables_of_fallbacks_are_joined_and_our_own_win(service: LedgerService, tmp_path: Path) -> None:
    fallbacks = [Fallback(env={"THEIRS": str(n), "MODE": "theirs"}) for n in range(2)]
    devices = [vf(n, fallback=fallbacks[n], cdi_missing="it is in no file") for n in range(2)]
    place = Place(service, tmp_path, "cdi", *devices, vf(2))
    assert place.container(await place.allocate("V0", "V1"))["env"] == {
        "PCIDEVICE_EXAMPLE_COM_VF": "0000:3b:01.0,0000:3b:01.1",
        "MODE": "vfio",
        "THEIRS": "0,1",
    }


@BOTH
@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": (DeviceNode("/dev/zero", "/dev/vf1"),)},
        {"mounts": (Mount("/sys/x", "/dev/vf1"),)},
    ],
    ids=["node", "mount"],
)
async def test_two_devices_of_one_path_are_refused_before_anything_is_held(
    service: LedgerService, tmp_path: Path, inject: Inject, changes: dict[str, Any]
) -> None:
    place = Place(service, tmp_path, inject, vf(0, **changes), vf(1), vf(2))
    with pytest.raises(AllocationError, match=r"vf-0 and vf-1 would both be at /dev/vf1 .*\{name\}") as refused:
        await place.allocate("V0", "V1")
    assert refused.value.code == "INVALID_ARGUMENT"
    assert {entry.owner for entry in service.ledger.entries.values()} == {Owner.NONE}
    await place.allocate("V0")
    await place.allocate("V1", "V2")


@BOTH
async def test_devices_of_one_container_are_numbered_and_stay_so(
    service: LedgerService, tmp_path: Path, inject: Inject
) -> None:
    def radio(n: int) -> Device:
        node = DeviceNode("/dev/null" if n else "/dev/zero", "/dev/{request}/radio{index}", "rw", "c", 1, 3)
        return vf(n, nodes=(node,), env={"RADIO_{index}": f"serial-{n}", "ALL": str(n)})

    place = Place(service, tmp_path, inject, *map(radio, range(3)))
    answer = await place.allocate("V1", "V2")
    container = {
        "env": {"RADIO_0": "serial-1", "RADIO_1": "serial-2", "ALL": "1,2"},
        "nodes": ["/dev/limits/radio0", "/dev/limits/radio1"],
    }
    assert place.container(answer) == container
    alone = await place.allocate("V0")
    assert place.container(alone) == {"env": {"RADIO_0": "serial-0", "ALL": "0"}, "nodes": ["/dev/limits/radio0"]}
    if inject == "cdi":
        for path in place.store.directory.iterdir():
            path.unlink()
        LegacyCdiFiles(place.store).restore(service.ledger, place.devices)
    assert place.container(answer) == container, "kubelet repeats its answer for the pod's whole life"


async def test_more_devices_than_there_are_numbers_for_are_refused_before_anything_is_held(
    service: LedgerService, tmp_path: Path
) -> None:
    many = [vf(n, nodes=(DeviceNode("/dev/null", f"/dev/{n}/{{index}}", "rw", "c", 1, 3),)) for n in range(17)]
    await service.apply(Discovered(tuple(map(LedgerDevice.of, many)), 0.0))
    place = Place(service, tmp_path, "cdi", *many)
    with pytest.raises(AllocationError, match=r"17 devices in one container, .* at most 16"):
        await place.allocate(*(device.id for device in many))
    assert {entry.owner for entry in service.ledger.entries.values()} == {Owner.NONE}
    assert len((await place.allocate(*(device.id for device in many[:16]))).cdi_devices) == 16
