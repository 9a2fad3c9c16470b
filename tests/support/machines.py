"""Machines as umockdev descriptions: an eight-GPU server, recorded USB adapters, an SR-IOV network card."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

TREES = Path(__file__).parent / "trees"
DRIVER_VERSION = "580.95.05"
GPU_UUID = "GPU-{0:08x}-1111-2222-3333-44444444{0:04x}"


def device(
    path: str,
    subsystem: str,
    *,
    node: str = "",
    attributes: Mapping[str, str] | None = None,
    properties: Mapping[str, str] | None = None,
    links: Mapping[str, str] | None = None,
) -> str:
    """One device in umockdev's format."""
    lines = [f"P: {path}"]
    if node:
        lines.append(f"N: {node}")
    lines.append(f"E: SUBSYSTEM={subsystem}")
    if node:
        lines.append(f"E: DEVNAME=/dev/{node}")
    lines += [f"E: {name}={value}" for name, value in (properties or {}).items()]
    lines += [f"A: {name}={value}\\n" for name, value in (attributes or {}).items()]
    lines += [f"L: {name}={target}" for name, target in (links or {}).items()]
    return "\n".join(lines) + "\n"


def tree(parts: Iterable[str]) -> str:
    """Several devices as one description."""
    return "\n".join(parts)


# --- eight GPUs, two sockets ----------------------------------------------------------------------------------------

GPU_BUSES = ("17", "2a", "3d", "5d", "97", "aa", "bd", "dd")  # the first four hang on socket 0


def gpu_address(index: int) -> str:
    return f"0000:{int(GPU_BUSES[index], 16) + 1:02x}:00.0"


def gpu_path(index: int) -> str:
    bus = GPU_BUSES[index]
    return f"/devices/pci0000:{bus}/0000:{bus}:01.0/{gpu_address(index)}"


def gpu(index: int, driver: str = "nvidia") -> str:
    """A GPU and its bridge. The firmware tells the NUMA node to the bridge only, for every second one."""
    numa = str(index // 4)
    bus = GPU_BUSES[index]
    bridge = device(
        f"/devices/pci0000:{bus}/0000:{bus}:01.0",
        "pci",
        attributes={"numa_node": numa, "class": "0x060400", "vendor": "0x8086"},
        properties={"PCI_SLOT_NAME": f"0000:{bus}:01.0"},
    )
    function = device(
        gpu_path(index),
        "pci",
        attributes={"numa_node": "-1" if index % 2 else numa, "class": "0x030200", "vendor": "0x10de"},
        properties={"PCI_SLOT_NAME": gpu_address(index)} | ({"DRIVER": driver} if driver else {}),
        links={"driver": f"../../../../bus/pci/drivers/{driver}"} if driver else {},
    )
    return tree([bridge, function])


def gpu_node(name: str, minor: int) -> str:
    """A node that is no udev device on a real machine; here it has to be one, or stat(2) would not see it."""
    return device(f"/devices/virtual/fakenodes/{name}", "fakenodes", node=name, attributes={"dev": f"195:{minor}"})


def eight_gpus() -> str:
    nodes = [gpu_node(f"nvidia{index}", index) for index in range(8)] + [gpu_node("nvidiactl", 255)]
    return tree([*(gpu(index) for index in range(8)), *nodes])


def nvidia_proc(root: Path, count: int = 8, excluded: Iterable[int] = ()) -> Path:
    """What the driver shows under /proc/driver/nvidia; returns the directory that stands for /proc."""
    for index in range(count):
        folder = root / "driver/nvidia/gpus" / gpu_address(index)
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 95\n"
            f"GPU UUID: \t {GPU_UUID.format(index)}\nVideo BIOS: \t 96.00.30.00.01\nBus Type: \t PCIe\n"
            f"Bus Location: \t {gpu_address(index)}\nDevice Minor: \t {index}\n"
            f"GPU Excluded:\t {'Yes' if index in excluded else 'No'}\n"
        )
    (root / "driver/nvidia").mkdir(parents=True, exist_ok=True)
    (root / "driver/nvidia/version").write_text(
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {DRIVER_VERSION}  Tue Sep 23 10:11:16 UTC 2025\n"
        "GCC version:\n"
    )
    return root


GPU_RESOURCE = {
    "name": "nvidia.com/gpu",
    "match": [{"subsystem": "pci", "attr": {"vendor": "0x10de", "class": "0x0302*|0x0300*"}, "driver": "nvidia"}],
    "id": ["{nvidia.uuid}"],
    "nodes": [{"path": "/dev/nvidia{nvidia.minor}"}, {"path": "/dev/nvidiactl"}],
    "attributes": {
        "model": {"from": "nvidia.model"},
        "driverVersion": {"from": "nvidia.driver_version", "type": "version"},
        "index": {"from": "nvidia.minor", "type": "int"},
    },
}

# --- USB serial adapters, as the lab's guest has them -----------------------------------------------------------------

USB_HOST = "/devices/pci0000:00/0000:00:08.0/usb1"
_TWIN = f"{USB_HOST}/1-3"  # the one that was recorded


def recorded(name: str) -> dict[str, str]:
    """The devices of a description in ``tests/support/trees``, by path."""
    lines = (TREES / f"{name}.umockdev").read_text().splitlines()
    blocks = "\n".join(line for line in lines if not line.startswith("#")).strip().split("\n\n")
    return {block.partition("\n")[0].removeprefix("P: "): block + "\n" for block in blocks}


def usb_host() -> str:
    """The controller and its root hub."""
    devices = recorded("lab-serial")
    return tree([devices[str(Path(USB_HOST).parent)], devices[USB_HOST]])


def stick_path(port: int) -> str:
    return f"{USB_HOST}/1-{port}"


def stick(
    port: int, serial: str = "00000001", number: int | None = None, *, vendor: str = "0403", product: str = "6001"
) -> str:
    """An adapter in a port. ``number`` is the device number on the bus, which changes with every plug."""
    number = port + 1 if number is None else number
    text = _changed(
        recorded("lab-serial")[_TWIN],
        {
            "bus/usb/001/004": f"bus/usb/001/{number:03}",
            "DEVNUM=004": f"DEVNUM={number:03}",
            "MINOR=3\n": f"MINOR={number - 1}\n",
            "dev=189:3\\n": f"dev=189:{number - 1}\\n",
            "devnum=4\\n": f"devnum={number}\\n",
            "devpath=3\\n": f"devpath={port}\\n",
            "=0403": f"={vendor}",
            "=6001": f"={product}",
        },
    )
    return _in_port(text, port, serial)


def serial_port(port: int, index: int, serial: str, *, vendor: str, product: str) -> str:
    """The adapter with its interface, its port and ``ttyUSB<index>``; without a serial, udev has none of it either."""
    devices = recorded("lab-serial")
    interface, above, tty = (devices[f"{_TWIN}/1-3:1.0{more}"] for more in ("", "/ttyUSB2", "/ttyUSB2/tty/ttyUSB2"))
    changed = _changed(tty, {"MINOR=2\n": f"MINOR={index}\n", "dev=188:2\\n": f"dev=188:{index}\\n"})
    below = _changed(tree([interface, above, changed]), {"ttyUSB2": f"ttyUSB{index}", "=0403": f"={vendor}"})
    text = tree([stick(port, serial, vendor=vendor, product=product), _in_port(below, port, serial)])
    return text if serial else "".join(line for line in text.splitlines(True) if not _SERIAL_LINE.match(line))


_SERIAL_LINE = re.compile("A: serial=|E: ID_(USB_)?SERIAL_SHORT=")


def _in_port(text: str, port: int, serial: str) -> str:
    changes = {"/1-3": f"/1-{port}", "usb-0:3": f"usb-0:{port}", "usb-0_3": f"usb-0_{port}", "00000001": serial}
    return _changed(text, changes)


def _changed(text: str, changes: Mapping[str, str]) -> str:
    """The text with other values; each of the old ones is there, or the record is another one than was thought."""
    for old, new in changes.items():
        assert old in text, f"{old} is not in the record"
        text = text.replace(old, new)
    return text


STICK_RESOURCE = {
    "name": "example.com/radio",
    "match": [{"subsystem": "usb", "devtype": "usb_device", "attr": {"idVendor": "0403", "idProduct": "6001"}}],
    "id": ["{attr:serial}", "{property:ID_PATH}"],
    "nodes": [{"from": "devnode", "as": "/dev/radio"}],
}

# --- a network card with virtual functions --------------------------------------------------------------------------

PF = "0000:af:00.0"
NIC_ROOT = "/devices/pci0000:ae/0000:ae:00.0"


def vf_path(index: int) -> str:
    return f"{NIC_ROOT}/0000:af:00.{index + 2}"


def vf(index: int, driver: str = "vfio-pci") -> str:
    return device(
        vf_path(index),
        "pci",
        attributes={"vendor": "0x15b3", "class": "0x020000", "numa_node": "1"},
        properties={"DRIVER": driver},
        links={
            "driver": f"../../../../bus/pci/drivers/{driver}",
            "physfn": f"../{PF}",
            "iommu_group": f"../../../../kernel/iommu_groups/{40 + index}",
        },
    )


def nic(functions: int = 2) -> str:
    parts = [
        device(NIC_ROOT, "pci", attributes={"class": "0x060400", "vendor": "0x8086", "numa_node": "1"}),
        device(
            f"{NIC_ROOT}/{PF}",
            "pci",
            attributes={"vendor": "0x15b3", "class": "0x020000", "numa_node": "1", "sriov_numvfs": str(functions)},
            properties={"DRIVER": "mlx5_core"},
            links={"driver": "../../../../bus/pci/drivers/mlx5_core"}
            | {f"virtfn{index}": f"../{Path(vf_path(index)).name}" for index in range(functions)},
        ),
        device(f"{NIC_ROOT}/{PF}/net/ens1f0", "net"),
    ]
    parts += [vf(index) for index in range(functions)]
    parts += [
        device(f"/devices/virtual/vfio/{40 + i}", "vfio", node=f"vfio/{40 + i}", attributes={"dev": f"237:{i}"})
        for i in range(functions)
    ]
    return tree(parts)


VF_RESOURCE = {
    "name": "example.com/vf",
    "match": [{"subsystem": "pci", "attr": {"vendor": "0x15b3"}, "exists": ["link:physfn"]}],
    "id": ["{sysname}"],
    "nodes": [{"path": "/dev/vfio/{iommu_group}"}],
    "attributes": {"pf": {"from": "link:physfn"}, "driver": {"from": "driver"}},
}
