"""Machines as umockdev descriptions: an eight-GPU server, identical USB sticks, an SR-IOV network card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

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
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\nGCC version:\n"
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

# --- sticks that share their serial number --------------------------------------------------------------------------

USB_HOST = "/devices/pci0000:00/0000:00:14.0/usb1"


def stick_path(port: int) -> str:
    return f"{USB_HOST}/1-{port}"


def stick(port: int, serial: str = "00000001", number: int | None = None) -> str:
    """An RTL-SDR stick in a port. ``number`` is the device number on the bus, which changes with every plug."""
    number = port + 1 if number is None else number
    return device(
        stick_path(port),
        "usb",
        node=f"bus/usb/001/{number:03}",
        attributes={
            "idVendor": "0bda",
            "idProduct": "2838",
            "serial": serial,
            "dev": f"189:{number - 1}",
        },
        properties={
            "DEVTYPE": "usb_device",
            "ID_SERIAL_SHORT": serial,
            "ID_PATH": f"pci-0000:00:14.0-usb-0:{port}",
            "MAJOR": "189",
            "MINOR": str(number - 1),
        },
    )


def usb_host() -> str:
    return tree(
        [
            device("/devices/pci0000:00/0000:00:14.0", "pci", attributes={"numa_node": "0", "class": "0x0c0330"}),
            device(
                USB_HOST,
                "usb",
                node="bus/usb/001/001",
                attributes={"idVendor": "1d6b", "idProduct": "0002", "dev": "189:0"},
                properties={"DEVTYPE": "usb_device"},
            ),
        ]
    )


STICK_RESOURCE = {
    "name": "example.com/rtlsdr",
    "match": [{"subsystem": "usb", "devtype": "usb_device", "attr": {"idVendor": "0bda", "idProduct": "2838"}}],
    "id": ["{attr:serial}", "{property:ID_PATH}"],
    "nodes": [{"from": "devnode", "as": "/dev/rtlsdr"}],
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
