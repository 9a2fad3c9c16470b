"""Cases that run inside a umockdev test bed: ``umockdev-wrapper python -m tests.inventory.umockdev_cases CASE``.

One test bed per process, and the preload library must be there from the start: so every case is a process of its own,
started by test_umockdev.py. At most ten events may wait unread (net.unix.max_dgram_qlen), so cases go step by step.
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from drabridge.errors import HostError
from drabridge.inventory.devices import PCI_BUS_ID, PCIE_ROOT, Presence, Semver
from drabridge.inventory.dump import dump
from drabridge.inventory.host import HostPaths
from drabridge.inventory.identity import KnownIdentities
from drabridge.inventory.observer import EventSeen
from drabridge.inventory.udev import Udev
from drabridge.inventory.udev_scope import UdevScope
from tests.support import machines
from tests.support.hardware import config
from tests.support.hardware import watching as watching_here
from tests.support.umockdev import Testbed
from tests.support.waiting import PATIENCE

NO_DATABASE = Path("/nonexistent")
# Nothing in a test bed is ever entered into a database of udevd; the machine below may have one all the same.
watching = functools.partial(watching_here, paths=HostPaths(udev_database=NO_DATABASE))

CASES: dict[str, Callable[[], Awaitable[None]]] = {}


def case(function: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    CASES[function.__name__] = function
    return function


NVME_WITH_PATHS = """\
P: /devices/pci0000:00/0000:00:03.0
E: SUBSYSTEM=pci
A: numa_node=1

P: /devices/pci0000:00/0000:00:03.0/nvme/nvme0
E: SUBSYSTEM=nvme

P: /devices/pci0000:00/0000:00:03.0/nvme/nvme0/nvme0c0n1
E: DEVTYPE=disk
E: SUBSYSTEM=block
E: ID_SERIAL_SHORT=NV-0002
A: hidden=1

P: /devices/virtual/nvme-subsystem/nvme-subsys0
E: SUBSYSTEM=nvme-subsystem
L: nvme0=../../../pci0000:00/0000:00:03.0/nvme/nvme0

P: /devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1
N: nvme0n1
E: DEVNAME=/dev/nvme0n1
E: DEVTYPE=disk
E: MAJOR=259
E: MINOR=0
E: SUBSYSTEM=block
E: ID_SERIAL_SHORT=NV-0002
A: dev=259:0
A: hidden=0
"""


@case
async def a_disk_with_paths_is_one_device_in_the_place_of_its_controller() -> None:
    """As the kernel shows an NVMe disk that says it may have several controllers, and most of a data centre's do."""
    Testbed(NVME_WITH_PATHS)
    disk = {"match": {"subsystem": "block", "sysname": "nvme*"}, "id": ["{property:ID_SERIAL_SHORT}"]}
    async with watching(config({"name": "example.com/nvme", "nodes": [{"from": "devnode"}], **disk})) as watched:
        (device,) = watched.inventory.current.devices
        assert device.presence is Presence.PRESENT, device.reason
        assert device.syspath == "/sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1"
        assert (device.numa_nodes, device.pci_bus_id, device.pcie_root) == ((1,), "0000:00:03.0", "pci0000:00")


async def _disk_with_two_controllers(second: str, nodes: tuple[int, ...]) -> None:
    """Which of the two PCI functions leads to it changes with the path. ``second``: the NUMA node of the other one."""
    link = "L: nvme0=../../../pci0000:00/0000:00:03.0/nvme/nvme0\n"
    Testbed(
        machines.device("/devices/pci0000:80/0000:80:03.0", "pci", attributes={"numa_node": second}),
        machines.device("/devices/pci0000:80/0000:80:03.0/nvme/nvme1", "nvme"),
        NVME_WITH_PATHS.replace(link, link + link.replace("0000:00", "0000:80").replace("nvme0", "nvme1")),
    )
    disk = {"match": {"subsystem": "block", "sysname": "nvme*"}, "id": ["{property:ID_SERIAL_SHORT}"]}
    async with watching(config({"name": "example.com/nvme", "nodes": [{"from": "devnode"}], **disk})) as watched:
        (found,) = watched.inventory.current.devices
        assert (found.numa_nodes, found.pci_bus_id) == (nodes, "")


@case
async def a_disk_with_two_controllers_on_one_socket_is_there() -> None:
    await _disk_with_two_controllers("1", (1,))


@case
async def a_disk_with_controllers_on_two_sockets_is_on_none() -> None:
    await _disk_with_two_controllers("0", ())


@case
async def eight_gpus_on_two_sockets() -> None:
    Testbed(machines.eight_gpus())
    proc = machines.nvidia_proc(Path(tempfile.mkdtemp(prefix="dra")))
    async with watching(config(machines.GPU_RESOURCE), paths=HostPaths(proc, NO_DATABASE)) as watched:
        devices = {device.id: device for device in watched.inventory.current.devices}
        assert set(devices) == {machines.GPU_UUID.format(index) for index in range(8)}
        for index in range(8):
            gpu = devices[machines.GPU_UUID.format(index)]
            assert gpu.name == gpu.id.lower()
            assert gpu.presence is Presence.PRESENT, gpu.reason
            assert gpu.numa_nodes == (index // 4,), "every second GPU has it from its bridge only"
            root = f"pci0000:{machines.GPU_BUSES[index]}"
            assert gpu.standard == {PCIE_ROOT: root, PCI_BUS_ID: machines.gpu_address(index)}
            assert [(node.path, node.major, node.minor) for node in gpu.nodes] == [
                (f"/dev/nvidia{index}", 195, index),
                ("/dev/nvidiactl", 195, 255),
            ]
            assert gpu.attributes == {
                "model": "NVIDIA H100 80GB HBM3",
                "driverVersion": Semver("580.95.5"),
                "index": index,
            }


@case
async def a_driver_that_loads_late_heals() -> None:
    bed = Testbed(
        machines.gpu(0, driver=""),
        machines.gpu_node("nvidia0", 0),
        machines.gpu_node("nvidiactl", 255),
    )
    proc = Path(tempfile.mkdtemp(prefix="dra"))
    async with watching(config(machines.GPU_RESOURCE), paths=HostPaths(proc, NO_DATABASE)) as watched:
        assert watched.states() == {}
        assert watched.inventory.current.complete, "no device is a normal state"
        machines.nvidia_proc(proc, 1)
        driver = bed.root / f"sys{machines.gpu_path(0)}/driver"
        driver.symlink_to("../../../../bus/pci/drivers/nvidia")
        (bed.root / "sys/bus/pci/drivers/nvidia").mkdir(parents=True, exist_ok=True)
        bed.uevent(machines.gpu_path(0), "bind")
        await watched.snapshot_with(lambda snapshot: len(snapshot.devices) == 1)
        assert watched.states() == {machines.GPU_UUID.format(0).lower(): "present"}


@case
async def a_gpu_that_nobody_has_opened_says_what_to_do() -> None:
    Testbed(machines.gpu(0), machines.gpu_node("nvidia0", 0), machines.gpu_node("nvidiactl", 255))
    proc = machines.nvidia_proc(Path(tempfile.mkdtemp(prefix="dra")), 1)
    (information,) = proc.glob("driver/nvidia/gpus/*/information")
    text = information.read_text()
    information.write_text(text.replace(machines.GPU_UUID.format(0), "GPU-????????-????-????-????-????????????"))
    async with watching(config(machines.GPU_RESOURCE, resyncSeconds=5), paths=HostPaths(proc, NO_DATABASE)) as watched:
        (collision,) = watched.inventory.current.collisions
        assert "has no identity. The driver knows a GPU's UUID once something has opened the GPU" in str(collision)
        information.write_text(text)
        snapshot = await watched.snapshot_with(lambda snapshot: bool(snapshot.devices), timeout=8)
        assert not snapshot.collisions


@case
async def an_excluded_gpu_is_faulty() -> None:
    Testbed(machines.eight_gpus())
    proc = machines.nvidia_proc(Path(tempfile.mkdtemp(prefix="dra")), excluded=[3])
    async with watching(config(machines.GPU_RESOURCE), paths=HostPaths(proc, NO_DATABASE)) as watched:
        faulty = [device for device in watched.inventory.current.devices if device.presence is Presence.FAULTY]
        assert [device.pci_bus_id for device in faulty] == [machines.gpu_address(3)]
        assert "excludes" in faulty[0].reason


@case
async def identical_sticks_go_by_their_ports() -> None:
    bed = Testbed(machines.usb_host(), machines.stick(1), machines.stick(2))
    async with watching(config(machines.STICK_RESOURCE)) as watched:
        before = {device.id: device for device in watched.inventory.current.devices}
        assert sorted(before) == ["pci-0000:00:08.0-usb-0:1", "pci-0000:00:08.0-usb-0:2"]
        names = {device.name for device in before.values()}
        assert all(name.startswith("pci-0000-00-08-0-usb-0-") for name in names)

        bed.remove(machines.stick_path(2))
        await watched.snapshot_with(lambda s: "gone" in {str(d.presence) for d in s.devices})
        assert watched.states()[before["pci-0000:00:08.0-usb-0:1"].name] == "present", "the other keeps its name"

        bed.add(machines.stick(2, number=9))  # the same stick again, under another number
        snapshot = await watched.snapshot_with(lambda s: {str(d.presence) for d in s.devices} == {"present"})
        assert {device.name for device in snapshot.devices} == names
        again = next(device for device in snapshot.devices if device.id.endswith(":2"))
        (node,) = again.nodes
        assert (node.path, node.minor, node.container_path) == ("/dev/bus/usb/001/009", 8, "/dev/radio")
        assert watched.inventory.resolve(again).nodes == again.nodes


@case
async def a_held_stick_keeps_its_name_when_its_twin_comes() -> None:
    bed = Testbed(machines.usb_host(), machines.stick(1))
    async with watching(config(machines.STICK_RESOURCE)) as watched:
        (first,) = watched.inventory.current.devices
        assert first.id == "00000001"
        bed.add(machines.stick(2))
        snapshot = await watched.snapshot_with(lambda s: len(s.devices) == 2)
        assert {device.id for device in snapshot.devices} == {"00000001", "pci-0000:00:08.0-usb-0:2"}
        assert snapshot.by_name()[first.name].syspath == first.syspath
    # The agent starts again: nothing is remembered, and the name is held by one of them.
    async with watching(config(machines.STICK_RESOURCE), held=lambda name: name == first.name) as watched:
        assert watched.states() == {}
        (collision,) = watched.inventory.current.collisions
        assert set(collision.syspaths) == {
            f"/sys{machines.stick_path(1)}",
            f"/sys{machines.stick_path(2)}",
        }
    # Or the agent remembered.
    memory = KnownIdentities({(first.resource, first.syspath): first.id})
    async with watching(config(machines.STICK_RESOURCE), held=lambda name: name == first.name, known=memory) as watched:
        assert watched.states()[first.name] == "present"
        assert not watched.inventory.current.collisions


@case
async def an_unplugged_stick_stays_listed_while_it_is_held() -> None:
    bed = Testbed(machines.usb_host(), machines.stick(1, serial="abc"))
    held = {"abc"}
    async with watching(config(machines.STICK_RESOURCE), held=held.__contains__, tombstone_seconds=0.3) as watched:
        (stick,) = watched.inventory.current.devices
        bed.remove(machines.stick_path(1))
        await watched.snapshot_with(lambda s: s.devices[0].presence is Presence.GONE)
        await asyncio.sleep(0.8)
        assert watched.states() == {"abc": "gone"}
        with pytest.raises(HostError, match="abc is unplugged"):
            watched.inventory.resolve(stick)
        held.clear()
        watched.inventory.refresh()
        await watched.snapshot_with(lambda s: not s.devices)


@case
async def a_held_stick_in_another_port_is_not_offered_beside_its_twin() -> None:
    bed = Testbed(machines.usb_host(), machines.stick(1))
    held = {"d-00000001-ae5ce162"}
    async with watching(config(machines.STICK_RESOURCE), held=held.__contains__) as watched:
        bed.add(machines.stick(2))
        twin = (await watched.snapshot_with(lambda s: len(s.devices) == 2)).by_name().keys() - held
        bed.remove(machines.stick_path(1))
        await watched.snapshot_with(lambda s: any(device.presence is Presence.GONE for device in s.devices))
        bed.add(machines.stick(3))
        await watched.snapshot_with(lambda s: bool(s.collisions))
        assert watched.states() == dict.fromkeys(twin, "present") | dict.fromkeys(held, "gone")
        released = set(held)
        held.clear()
        watched.inventory.released(released)
        await watched.snapshot_with(lambda s: not s.collisions)
        assert list(watched.states().values()).count("present") == 2


@case
async def what_hangs_on_a_device_shares_its_fate() -> None:
    """Only the stick itself has events; the serial port below it is matched by the stick's attribute."""
    bed = Testbed(machines.usb_host(), machines.serial_port(1, 0, "abc", vendor="0403", product="6001"))
    resource = {
        "name": "example.com/serial",
        "match": [{"subsystem": "tty", "parent": {"subsystem": "usb", "attr": {"idVendor": "0403"}}}],
        "id": ["{parent.attr:serial}"],
    }
    stick = machines.STICK_RESOURCE | {"nodes": []}
    async with watching(config(resource, stick | {"id": ["stick-{sysname}"]})) as watched:
        assert watched.states() == {"abc": "present", "stick-1-1": "present"}
        bed.attribute(machines.stick_path(1), "serial", "def")
        bed.uevent(machines.stick_path(1), "change")
        await watched.snapshot_with(lambda s: {d.name for d in s.devices if d.presence is Presence.PRESENT} >= {"def"})
        assert watched.states() == {"abc": "gone", "def": "present", "stick-1-1": "present"}
        bed.uevent(
            machines.stick_path(1), "remove"
        )  # and the directory is still there for a moment, as with the kernel
        await watched.snapshot_with(lambda s: {d.presence for d in s.devices} == {Presence.GONE}, timeout=0.09)


@case
async def nodes_are_resolved_again_at_the_last_moment() -> None:
    """The stick was renumbered, its event is still under way: an Allocate gets the node that is there now."""
    bed = Testbed(machines.usb_host(), machines.stick(1, serial="abc"))
    async with watching(config(machines.STICK_RESOURCE)) as watched:
        (stick,) = watched.inventory.current.devices
        attributes = {"dev": "189:8"}
        bed.add(
            machines.device("/devices/virtual/fakenodes/x", "fakenodes", node="bus/usb/001/009", attributes=attributes)
        )
        uevent = bed.root / f"sys{machines.stick_path(1)}/uevent"
        text = uevent.read_text().replace("001/002", "001/009").replace("MINOR=1\n", "MINOR=8\n")
        uevent.write_text(text)
        (node,) = watched.inventory.resolve(stick).nodes
        assert (node.path, node.minor, node.container_path) == ("/dev/bus/usb/001/009", 8, "/dev/radio")


@case
async def virtual_functions_know_their_card() -> None:
    bed = Testbed(machines.nic(2))
    async with watching(config(machines.VF_RESOURCE)) as watched:
        first, second = watched.inventory.current.devices
        assert (first.id, second.id) == ("0000:af:00.2", "0000:af:00.3")
        assert (first.name, first.root, second.root) == ("pci-0000-af-00-2", "pci-0000-af-00-0", "pci-0000-af-00-0")
        assert first.attributes == {"pf": machines.PF, "driver": "vfio-pci"}
        assert [(node.path, node.minor) for node in second.nodes] == [("/dev/vfio/41", 1)]
        assert first.numa_nodes == (1,)

        bed.remove(machines.vf_path(1))
        await watched.snapshot_with(lambda s: s.devices[1].presence is Presence.GONE)
        bed.add(machines.vf(1))
        await watched.snapshot_with(lambda s: s.devices[1].presence is Presence.PRESENT)


@case
async def virtual_functions_are_chosen_by_their_cards_interface_and_number() -> None:
    Testbed(machines.nic(4))
    chosen = {"subsystem": "pci", "property": {"SRIOV_PF_NAME": "ens1f0", "SRIOV_VF": "[1-2]"}}
    async with watching(config(machines.VF_RESOURCE | {"match": [chosen]})) as watched:
        assert [device.id for device in watched.inventory.current.devices] == ["0000:af:00.3", "0000:af:00.4"]


@case
async def parts_of_a_listed_whole_name_it() -> None:
    Testbed(machines.nic(2))
    card = {
        "name": "example.com/nic",
        "match": [{"subsystem": "pci", "sysname": machines.PF}],
        "id": ["nic-a"],
        "nodes": [],
    }
    part = machines.VF_RESOURCE | {"partition": {"of": "example.com/nic", "by": "link:physfn"}}
    async with watching(config(card, part)) as watched:
        assert [device.root for device in watched.inventory.current.devices] == ["", "nic-a", "nic-a"]


@case
async def attributes_and_health_follow_change_events() -> None:
    bed = Testbed(machines.nic(1))
    resource = machines.VF_RESOURCE | {
        "health": [{"attr": {"vendor": "0x15b3"}}, {"driverBound": "vfio-pci"}],
        "match": [{"subsystem": "pci", "exists": ["link:physfn"]}],
    }
    async with watching(config(resource)) as watched:
        bed.attribute(machines.vf_path(0), "vendor", "0xffff")  # what a card that fell off the bus answers
        bed.uevent(machines.vf_path(0), "change")
        snapshot = await watched.snapshot_with(lambda s: s.devices[0].presence is Presence.FAULTY)
        assert snapshot.devices[0].reason == 'the attribute vendor is "0xffff", expected "0x15b3"'
        bed.attribute(machines.vf_path(0), "vendor", "0x15b3")
        bed.uevent(machines.vf_path(0), "change")
        await watched.snapshot_with(lambda s: s.devices[0].presence is Presence.PRESENT)


@case
async def hostile_values_do_no_harm() -> None:
    """What a USB device says of itself is anything: it must not take the others down with it."""
    bed = Testbed(
        machines.usb_host(),
        machines.stick(1, serial="good"),
        machines.stick(2, serial="x"),
        machines.stick(3, serial="y"),
    )
    serial = bed.root / f"sys{machines.stick_path(2)}/serial"
    serial.write_bytes(b"\xff\xfe\x1b[2J bad, id/../..\nsecond::7\n")
    (bed.root / f"sys{machines.stick_path(3)}/serial").write_bytes(b"A" * (1 << 20))
    uevent = bed.root / f"sys{machines.stick_path(2)}/uevent"
    uevent.write_bytes(uevent.read_bytes() + b"ID_MODEL=\xff\xfe\n")
    resource = machines.STICK_RESOURCE | {"attributes": {"serial": {"from": "attr:serial"}}}
    async with watching(config(resource)) as watched:
        devices = watched.inventory.current.devices
        assert len(devices) == 3, watched.inventory.current.collisions
        assert all(device.presence is Presence.PRESENT for device in devices)
        for device in devices:
            assert device.id.isprintable()
            assert device.id.isascii()
            assert len(device.id) <= 63
            assert len(str(device.attributes["serial"]).encode()) <= 64
        assert {device.id for device in devices if device.id == "good"}
        first = [device.id for device in devices]
    async with watching(config(resource)) as watched:
        assert [device.id for device in watched.inventory.current.devices] == first, "escaped the same way every time"


@case
async def a_record_can_be_plugged_in_elsewhere() -> None:
    """The dump of this machine, loaded by umockdev, lists the same devices; serial numbers are gone from it."""
    text = Path(os.environ["DRABRIDGE_DUMP"]).read_text() if "DRABRIDGE_DUMP" in os.environ else ""
    if not text:  # first half: write it
        Testbed(
            machines.usb_host(),
            machines.stick(1, "SECRET123"),
            machines.stick(2, "SECRET123"),
            machines.stick(3, "OTHER9876"),
        )
        udev = Udev(UdevScope(frozenset({"usb"})))
        sticks = [record for path, record in udev.enumerate().items() if path.startswith(f"/sys{machines.USB_HOST}/")]
        assert len(sticks) == 3
        sys.stdout.write(dump(udev, sticks))
        return
    assert "SECRET123" not in text
    assert "OTHER9876" not in text
    descriptors = re.findall("H: descriptors=.*", machines.stick(1))
    assert len(descriptors[0]) > 100, "a real one has zeros in it, from the sixth byte on"
    assert re.findall("H: descriptors=.*", text)[-3:] == descriptors * 3, "binary attributes are whole"
    Testbed(text)
    async with watching(config(machines.STICK_RESOURCE)) as watched:
        devices = watched.inventory.current.devices
        assert len(devices) == 3
        assert all(device.presence is Presence.PRESENT for device in devices), devices
        assert sum(device.id.startswith("pci-") for device in devices) == 2, "the twins are still twins"
        assert {device.syspath.split("/")[4] for device in devices} == {"0000:00:08.0"}


@case
async def events_come_from_the_test_bed_and_are_counted() -> None:
    bed = Testbed(machines.usb_host(), machines.stick(1, serial="abc"))
    async with watching(config(machines.STICK_RESOURCE)) as watched:
        assert str(watched.inventory.status.kind) == "udev"
        assert "emulated" in watched.inventory.status.why
        bed.uevent(machines.stick_path(1), "change")
        async with asyncio.timeout(5 * PATIENCE):
            while not watched.told(EventSeen):
                await asyncio.sleep(0.01)
        assert {fact.action for fact in watched.told(EventSeen)} == {"change"}
        assert {fact.subsystem for fact in watched.told(EventSeen)} == {"usb"}


def main() -> None:
    if "umockdev" not in os.environ.get("LD_PRELOAD", ""):
        raise SystemExit("run this under umockdev-wrapper")
    asyncio.run(CASES[sys.argv[1]]())  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
