"""Run the agent on an example's machine: ``umockdev-wrapper python -m tests.agent.umockdev_examples NAME``.

Started by test_examples.py. The agent is a process inside the test bed's /dev, /sys and /proc; kubelet is this process.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from tests.support import machines, nvidia_h100
from tests.support.agent_process import AgentProcess, node, pod
from tests.support.machines import device, tree
from tests.support.mig import capabilities
from tests.support.umockdev import Testbed
from tests.support.umockdev import tree as recorded
from tests.support.waiting import until

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"


@dataclass(frozen=True)
class Case:
    """A machine for an example: (allocatable, capacity) that kubelet must report, and some of the ids."""

    resource: str
    driver: str
    machine: Callable[[], str]
    allocatable: int
    capacity: int
    ids: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()  # in the container of the one pod that is run


def nvidia() -> str:
    """Eight GPUs with what NVIDIA's driver makes beside them."""
    return tree([machines.eight_gpus(), machines.gpu_node("nvidia-uvm", 0)])


def node_device(path: str, subsystem: str, name: str, major: int, minor: int, **more: dict[str, str]) -> str:
    attributes = {"dev": f"{major}:{minor}", **more.pop("attributes", {})}
    return device(path, subsystem, node=name, attributes=attributes, **more)


def serial() -> str:
    """Three adapters that match, by id, by id and by rule; one of another maker."""
    kinds = (("0403", "6001", "A50285BI"), ("10c4", "ea60", "0001"), ("1a86", "7523", ""), ("2341", "0043", "X"))
    ports = (
        machines.serial_port(index + 1, index, number, vendor=vendor, product=product)
        for index, (vendor, product, number) in enumerate(kinds)
    )
    return tree([machines.usb_host(), *ports])


def sticks() -> str:
    return tree([machines.usb_host(), *(machines.stick(port, vendor="0bda", product="2838") for port in (1, 2, 3))])


def fpga() -> str:
    """Two cards, each with two nodes below it, and a network card of the same maker."""
    parts = []
    for index, address in enumerate(("0000:3b:00.0", "0000:5e:00.0")):
        function = f"/devices/pci{address[:7]}/{address}"
        attributes = {"vendor": "0x8086", "device": "0x0b30", "class": "0x120000"}
        links = {"driver": "../../../bus/pci/drivers/dfl-pci"}
        parts += [
            device(function, "pci", attributes=attributes, properties={"DRIVER": "dfl-pci"}, links=links),
            *(
                node_device(f"{function}/uio/uio{number}", "uio", f"uio{number}", 246, number)
                for number in (2 * index, 2 * index + 1)
            ),
        ]
    attributes = {"vendor": "0x8086", "device": "0x1533", "class": "0x020000"}
    parts.append(device("/devices/pci0000:01/0000:01:00.0", "pci", attributes=attributes, properties={"DRIVER": "igb"}))
    return tree(parts)


def functions() -> str:
    return tree([machines.nic(4), node_device("/devices/virtual/misc/vfio", "misc", "vfio/vfio", 10, 196)])


def kvm() -> str:
    return node_device("/devices/virtual/misc/kvm", "misc", "kvm", 10, 232)


def loop() -> str:
    """Three with a file, one without, one with a low number."""
    return tree(
        node_device(
            f"/devices/virtual/block/loop{number}",
            "block",
            f"loop{number}",
            7,
            number,
            attributes={"size": "2048"} | ({"loop/backing_file": f"/tmp/{number}.img"} if backed else {}),
        )
        for number, backed in ((900, True), (901, True), (902, True), (903, False), (7, True))
    )


CASES = {
    "nvidia-gpu": Case(
        "nvidia.com/gpu",
        "gpu.nvidia.com",
        nvidia,
        8,
        8,
        tuple(machines.GPU_UUID.format(index) for index in range(8)),
        ("/dev/nvidiactl", "/dev/nvidia-uvm"),
    ),
    # More of the GPUs' examples is in umockdev_gpus.py.
    "amd-gpu": Case(
        "amd.com/gpu",
        "gpu.amd.com",
        lambda: recorded("amd-mi210"),
        2,
        2,
        ("0000:43:00.0", "0000:63:00.0"),
        ("/dev/kfd",),
    ),
    "amd-gpu-partitions": Case(
        "amd.com/cpx_nps1",
        "gpu.amd.com",
        lambda: recorded("amd-mi308x-cpx"),
        8,
        8,
        ("0000:0a:00.0", "amdgpu_xcp_30"),
        ("/dev/kfd",),
    ),
    "intel-gpu": Case(
        "gpu.intel.com/xe",
        "gpu.intel.com",
        lambda: recorded("intel-flex170-b60"),
        1,
        1,
        ("card1-0",),
        ("/dev/dri/card1", "/dev/dri/renderD129"),
    ),
    # Instances need NVML, which is not here: a GPU with instances is not offered at all.
    "nvidia-mig": Case(
        "nvidia.com/gpu",
        "gpu.nvidia.com",
        nvidia,
        7,
        7,
        tuple(machines.GPU_UUID.format(index) for index in range(1, 8)),
        ("/dev/nvidiactl", "/dev/nvidia-uvm"),
    ),
    "usb-serial": Case(
        "example.com/usb-serial",
        "serial.example.com",
        serial,
        3,
        3,
        ("A50285BI", "0001", "pci-0000:00:08.0-usb-0:3:1.0"),
    ),
    "rtl-sdr": Case("example.com/rtl-sdr", "radio.example.com", sticks, 3, 3, ("pci-0000:00:08.0-usb-0:2",)),
    # Half of the cards are for claims: kubelet counts them, and gives them to nobody.
    "fpga": Case("example.com/fpga", "fpga.example.com", fpga, 2, 2, ("0000:3b:00.0", "0000:5e:00.0")),
    # Those with a dra lane are all left to pods: without an API server no claim could have one.
    "sriov-vf": Case("example.com/vf", "net.example.com", functions, 4, 4),
    "kvm": Case("example.com/kvm", "kvm.example.com", kvm, 1000, 1000, ("kvm::0", "kvm::999"), ("/dev/kvm",)),
    "fabric": Case("example.com/kvm", "fabric.example.com", kvm, 1000, 1000, ("kvm::0",), ("/dev/kvm",)),
    "loop": Case("example.com/loop", "loop.example.com", loop, 3, 3, ("loop900", "loop901", "loop902")),
}


async def check(name: str) -> None:
    case = CASES[name]
    bed = Testbed(case.machine())
    os.environ["UMOCKDEV_DIR"] = str(bed.root)  # libumockdev tells the C library only; the agent is a child of Python
    if name.startswith("nvidia"):
        machines.nvidia_proc(bed.root / "proc")
    if name == "nvidia-mig":
        capabilities(bed.root / "proc", [(0, 1, 0), (0, 2, 0)])
    text = (EXAMPLES / f"{name}.yaml").read_text()
    if name.startswith("nvidia"):
        text += driver_files(bed)
    async with node(text, case.driver, ready=False) as (agent, kubelet):
        await until(lambda: counted(kubelet, case.resource) == (case.allocatable, case.capacity), 30, agent.text)
        view = kubelet.resources[case.resource]
        assert view.devices >= set(case.ids), sorted(view.devices)
        assert view.streams == 1
        if case.allocatable:
            await one_pod(agent, kubelet, case)
        if name == "usb-serial":
            await moves_unseen(bed, agent, kubelet)


def driver_files(bed: Testbed) -> str:
    """Make a host with NVIDIA's libraries; the line of the configuration that says where."""
    nvidia_h100.libraries(bed.root / "host", "/usr/lib64", version=machines.DRIVER_VERSION)
    return f"\nnvidia: {{hostRoot: {bed.root / 'host'}}}\n"


async def one_pod(agent: AgentProcess, kubelet: SimKubelet, case: Case) -> None:
    status = await kubelet.run_pod(pod("a", resource=case.resource))
    assert status.phase is Phase.RUNNING, status
    assert set(case.nodes) <= set(inside(agent))


async def moves_unseen(bed: Testbed, agent: AgentProcess, kubelet: SimKubelet) -> None:
    """The numbers move and no event says so: Allocate looks again, and the container's path stays."""
    for index in range(3):
        path = f"{machines.USB_HOST}/1-{index + 1}/1-{index + 1}:1.0/ttyUSB{index}/tty/ttyUSB{index}"
        bed.add(device(f"/devices/virtual/fakenodes/{index}", "fakenodes", node=f"ttyUSB{index + 20}",
                       attributes={"dev": f"188:{index + 20}"}))  # fmt: skip
        uevent = bed.root / f"sys{path}" / "uevent"
        uevent.write_text(uevent.read_text().replace(f"ttyUSB{index}\n", f"ttyUSB{index + 20}\n")
                          .replace(f"MINOR={index}\n", f"MINOR={index + 20}\n"))  # fmt: skip
    before = set(inside(agent))
    status = await kubelet.run_pod(pod("b", resource="example.com/usb-serial"))
    assert status.phase is Phase.RUNNING, status
    (new,) = set(inside(agent)) - before
    assert new.startswith("/dev/serial/"), new
    assert inside(agent)[new].removeprefix("/dev/ttyUSB") in ("20", "21", "22"), inside(agent)


def inside(agent: AgentProcess) -> dict[str, str]:
    """Nodes of all CDI files: path in the container -> path on the host."""
    devices = [one for path in agent.cdi.glob("*.json") for one in json.loads(path.read_text())["devices"]]
    nodes = [found for one in devices for found in one["containerEdits"].get("deviceNodes", ())]
    return {found["path"]: found.get("hostPath", found["path"]) for found in nodes}


def counted(kubelet: SimKubelet, resource: str) -> tuple[int, int]:
    status = kubelet.node_status()
    return status["allocatable"].get(resource, -1), status["capacity"].get(resource, -1)


def main() -> None:
    if "umockdev" not in os.environ.get("LD_PRELOAD", ""):
        raise SystemExit("run this under umockdev-wrapper")
    asyncio.run(check(sys.argv[1]))


if __name__ == "__main__":
    main()
