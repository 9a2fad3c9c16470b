"""A virtual machine opens its function by IOMMUFD, on a kernel that makes a node for each function (Linux 6.6)."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drabridge.sim.kubelet.pods import Phase
from tests.lab.inside.nodes import (
    DISKS,
    DRIVER,
    HEAD,
    VM,
    VM_DISKS,
    address,
    as_before,
    driver_of,
    given_nodes,
    group,
    listed,
    own_node,
)
from tests.support.agent_process import node, noted, pod
from tests.support.waiting import until

# Linux include/uapi/linux/vfio.h and iommufd.h: both count in the type ';'.
IOAS_ALLOC, GET_INFO, BIND_IOMMUFD, ATTACH = (ord(";") << 8 | number for number in (0x81, 107, 118, 119))
IS_PCI = 2


@pytest.fixture(autouse=True)
def module() -> None:
    subprocess.run(["modprobe", "vfio-pci"], check=True)


def ask(file: int, request: int, *numbers: int) -> tuple[int, ...]:
    """Send a structure of 32-bit numbers, the first of which is its size; return what the kernel made of it."""
    form = f"={1 + len(numbers)}i"
    answer = bytearray(struct.pack(form, struct.calcsize(form), *numbers))
    fcntl.ioctl(file, request, answer)
    return struct.unpack(form, answer)


@contextmanager
def machine(path: str) -> Iterator[tuple[int, ...]]:
    """Open a function as a virtual machine does, with an address space of its own; yield VFIO_DEVICE_GET_INFO."""
    iommu = os.open("/dev/iommu", os.O_RDWR)
    device = os.open(path, os.O_RDWR)
    try:
        ask(device, BIND_IOMMUFD, 0, iommu, 0)
        space = ask(iommu, IOAS_ALLOC, 0, 0)[2]
        ask(device, ATTACH, 0, space)
        yield ask(device, GET_INFO, 0, 0, 0, 0)
    finally:
        os.close(device)
        os.close(iommu)


async def test_a_machine_has_its_disk_by_iommufd_until_it_ends() -> None:
    disks = [address("nvme2"), address("nvme3")]
    async with node(HEAD + DISKS + VM_DISKS, DRIVER) as (agent, kubelet):
        await listed(agent, kubelet, VM, {f"vfio-{one}" for one in disks}, set())
        status = await kubelet.run_pod(pod("vm", 1, VM))
        assert status.phase is Phase.RUNNING, status.message + agent.text()
        (function,) = (one for one in disks if driver_of(one) == "vfio-pci")
        own = own_node(function)
        given = {one["hostPath"] for one in given_nodes(agent)}
        assert given == {own, "/dev/iommu", f"/dev/vfio/{group(function)}", "/dev/vfio/vfio"}, agent.text()
        with machine(own) as info:
            assert info[1] & IS_PCI
            with pytest.raises(OSError, match=os.strerror(errno.EBUSY)):  # the kernel: one owner for a group
                os.close(os.open(f"/dev/vfio/{group(function)}", os.O_RDWR))
            await kubelet.delete_pod("uid-vm")
            await until(lambda: noted(agent, "in use although no pod has it"), 30, agent.text)
            assert driver_of(function) == "vfio-pci"
        await until(lambda: as_before(function, "nvme"), 30, agent.text)
        assert not Path(own).exists()
