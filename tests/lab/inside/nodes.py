"""Configurations for the shelf, and what the tests in the guest ask of a node again and again."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

import pyudev

from drabridge.containers.cdi_spec import JOINED
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from tests.lab.inside.found import find
from tests.support.agent_process import AgentProcess, cdi_devices, pod
from tests.support.waiting import until

DRIVER = "lab.example.com"
HEAD = f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
safety: {{minHoldSeconds: 0.4, unconfirmedSeconds: 2, absentSeconds: 0.4, settleSeconds: 1}}
resources:
"""
SERIAL = "example.com/serial"
SERIAL_PORTS = f"""\
- name: {SERIAL}
  match: [{{subsystem: tty, sysname: "ttyUSB*"}}]
  id: ["{{property:ID_SERIAL_SHORT}}", "{{property:ID_PATH}}"]
  nodes: [{{from: devnode, as: /dev/radio}}]
  env: {{RADIO: "{{property:ID_SERIAL_SHORT}}"}}
"""
NVME = "example.com/nvme"
DISKS = f"""\
- name: {NVME}
  match: [{{subsystem: block, devtype: disk, sysname: "nvme*"}}]
  id: ["{{parent.attr:serial}}"]
  nodes: [{{from: devnode, as: /dev/disk0}}]
"""
CARD = "example.com/card"
CARDS = f"""\
- name: {CARD}
  match: [{{subsystem: pci, attr: {{vendor: "0x1234", device: "0x11e8"}}, driver: vfio-pci}}]
  id: ["{{pci}}"]
  nodes: [{{path: "/dev/vfio/{{iommu_group}}"}}, {{path: /dev/vfio/vfio}}]
"""
VM = "example.com/vm-disk"
VM_DISKS = f"""\
- name: {VM}
  match: [{{subsystem: pci, attr: {{class: "0x010802"}}, not: {{exists: ["attr:sriov_totalvfs"]}}}}]
  vfio: {{allow: ["1b36:0010"]}}
"""


def ids(kubelet: SimKubelet, resource: str) -> tuple[set[str], set[str]]:
    """The healthy and the other devices that kubelet has in its list."""
    view = kubelet.resources.get(resource)
    return (set(view.healthy), set(view.devices - view.healthy)) if view else (set(), set())


async def listed(agent: AgentProcess, kubelet: SimKubelet, resource: str, healthy: set[str], other: set[str]) -> None:
    """Wait until kubelet's list is exactly this."""
    await until(
        lambda: ids(kubelet, resource) == (healthy, other),
        20,
        lambda: f"{ids(kubelet, resource)}, not {(healthy, other)}\n{agent.text()[-3000:]}",
    )


async def give(
    agent: AgentProcess, kubelet: SimKubelet, wanted: str, everything: set[str], resource: str = SERIAL
) -> str:
    """Run pods until one has this device, and delete the others; its uid. It is the only holder then."""
    others: list[str] = []
    for index in range(len(everything)):
        status = await kubelet.run_pod(pod(f"p{index}", resource=resource))
        assert status.phase is Phase.RUNNING, status.message
        (one,) = kubelet.allocated_resources_status(f"uid-p{index}")["main"]
        if one["resources"][0]["resourceID"] == wanted:
            for other in others:
                await kubelet.delete_pod(other)
            await until(lambda: _one_is_held(agent), 20, agent.text)
            return f"uid-p{index}"
        others.append(f"uid-p{index}")
    raise AssertionError(f"no pod got {wanted}")


async def _one_is_held(agent: AgentProcess) -> bool:
    owners = [row["owner"] for row in (await agent.status())["devices"]]
    return len(owners) - owners.count("none") == 1


async def holder(agent: AgentProcess, name: str) -> tuple[str, str]:
    """(presence, owner) of a device in the agent's status."""
    row = await agent.device(name)
    return str(row.get("presence")), str(row.get("owner"))


def given_nodes(agent: AgentProcess) -> list[dict[str, Any]]:
    """The device nodes of all CDI files; ``hostPath`` is filled in where it is the path in the container, too.

    A device has other forms beside, for containers that get several devices: those are left out.
    """
    return [
        {"hostPath": node["path"], **node}
        for one in cdi_devices(agent.cdi)
        if JOINED not in one["name"]
        for node in one["containerEdits"].get("deviceNodes", ())
    ]


def number(node: str) -> tuple[int, int]:
    """Major and minor of a node under /dev."""
    status = os.stat(node)
    return os.major(status.st_rdev), os.minor(status.st_rdev)


async def run(*words: str) -> None:
    """Run a program of the guest to its good end, while the loop goes on."""
    await asyncio.to_thread(subprocess.run, words, check=True)


def address(name: str) -> str:
    """The PCI function that a device of the shelf is, or is a part of."""
    place = Path(find(name))
    if place.parent.name.startswith("nvme-subsys"):  # a disk whose controllers are paths to it
        place = next(place.parent.glob("nvme[0-9]")).resolve()
    device = pyudev.Devices.from_sys_path(pyudev.Context(), str(place))
    return str(device.sys_name if device.subsystem == "pci" else device.find_parent("pci").sys_name)


def group(function: str) -> str:
    """The number of its IOMMU group."""
    return Path(f"/sys/bus/pci/devices/{function}/iommu_group").resolve().name


def own_node(function: str) -> str:
    """The node that a function bound to vfio-pci has for IOMMUFD; "" on a kernel that makes none."""
    found = Path(f"/sys/bus/pci/devices/{function}/vfio-dev").glob("vfio*/dev")
    return next((f"/dev/vfio/devices/{one.parent.name}" for one in found), "")


def driver_of(function: str) -> str:
    """The driver of a PCI function; "" when it has none."""
    link = Path("/sys/bus/pci/devices") / function / "driver"
    return link.resolve().name if link.exists() else ""


def as_before(function: str, driver: str) -> bool:
    """Whether a function has this driver, and is reserved for none."""
    override = Path("/sys/bus/pci/devices") / function / "driver_override"
    return (driver_of(function), override.read_text().strip()) == (driver, "(null)")


def bind(address: str, driver: str) -> None:
    """Give a PCI function to a driver, as ``driverctl`` does."""
    function = Path("/sys/bus/pci/devices") / address
    (function / "driver_override").write_text(f"{driver}\n")
    if (function / "driver").exists():
        (function / "driver/unbind").write_text(address)
    Path("/sys/bus/pci/drivers_probe").write_text(address)
    assert (function / "driver").resolve().name == driver


def release(address: str) -> None:
    """Take a PCI function from the driver that :func:`bind` gave it to."""
    function = Path("/sys/bus/pci/devices") / address
    if (function / "driver").exists():
        (function / "driver/unbind").write_text(address)
    (function / "driver_override").write_text("\n")
    Path("/sys/bus/pci/drivers_probe").write_text(address)


def physical(name: str = "functions") -> Path:
    """The physical function that a device of the shelf is, or is a part of."""
    path = Path(find(name))
    return next(one for one in (path, *path.parents) if (one / "sriov_numvfs").exists())


def make_functions(count: int, name: str = "functions") -> list[str]:
    """Make so many virtual functions, given to vfio-pci; return their addresses."""
    subprocess.run(["modprobe", "vfio-pci"], check=True)
    function = physical(name)
    (function / "sriov_drivers_autoprobe").write_text("0\n")
    (function / "sriov_numvfs").write_text("0\n")
    (function / "sriov_numvfs").write_text(f"{count}\n")
    addresses = [(function / f"virtfn{number}").resolve().name for number in range(count)]
    for address in addresses:
        bind(address, "vfio-pci")
    return addresses
