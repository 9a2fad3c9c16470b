"""Functions are bound to vfio-pci for their holder and go back to their drivers, on a real kernel."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from tests.lab.inside.nodes import (
    DISKS,
    DRIVER,
    HEAD,
    NVME,
    VM,
    VM_DISKS,
    address,
    as_before,
    driver_of,
    given_nodes,
    group,
    ids,
    listed,
    own_node,
    run,
)
from tests.support.agent_on_cluster import CLASS, bridge, claim_pod
from tests.support.agent_process import COMMAND, AgentProcess, node, noted, pod, restart_kubelet
from tests.support.agent_process import DRIVER as MEMORY_DRIVER
from tests.support.waiting import until

CARD = "example.com/vm-card"
BOTH = HEAD + DISKS + VM_DISKS
CARDS = f"""\
- name: {CARD}
  match: [{{subsystem: pci, sysname: "ADDRESS"}}]
  vfio: {{allow: ["1234:11e8", "8086:100e"]}}
"""  # the shelf has more of them
HOSTS = {"NV-0002", "NV-0003"}


@pytest.fixture(autouse=True)
def module() -> None:
    subprocess.run(["modprobe", "vfio-pci"], check=True)


@pytest.fixture
def disks() -> tuple[str, str]:
    """The functions of the two disks."""
    return address("nvme2"), address("nvme3")


def named(*functions: str) -> set[str]:
    return {f"vfio-{function}" for function in functions}


@contextlib.asynccontextmanager
async def in_vm(disks: tuple[str, str], config: str = BOTH) -> AsyncIterator[tuple[AgentProcess, SimKubelet, str]]:
    """A node with a pod that has one of the disks bound to vfio-pci; its function."""
    async with node(config, DRIVER) as (agent, kubelet):
        await listed(agent, kubelet, VM, named(*disks), set())
        status = await kubelet.run_pod(pod("vm", 1, VM))
        assert status.phase is Phase.RUNNING, status.message + agent.text()
        (function,) = (one for one in disks if driver_of(one) == "vfio-pci")
        yield agent, kubelet, function


async def test_a_disk_goes_to_a_machine_and_back_and_is_never_in_a_container_meanwhile(disks: tuple[str, str]) -> None:
    async with in_vm(disks) as (agent, kubelet, function):
        other = next(one for one in disks if one != function)
        assert driver_of(other) == "nvme"
        paths = {one["hostPath"] for one in given_nodes(agent)}
        own = [path for path in (own_node(function), "/dev/iommu") if own_node(function)]
        assert paths == {f"/dev/vfio/{group(function)}", "/dev/vfio/vfio", *own}
        (text,) = (path.read_text() for path in agent.cdi.glob("*.json"))
        assert f"PCI_RESOURCE_EXAMPLE_COM_VM-DISK={function}" in text
        await until(lambda: len(ids(kubelet, NVME)[0]) == 1, 20, agent.text)
        assert (await kubelet.run_pod(pod("two", 2, NVME))).phase is Phase.FAILED
        assert (await kubelet.run_pod(pod("one", 1, NVME))).phase is Phase.RUNNING
        await until(lambda: ids(kubelet, VM)[0] == named(function), 20, agent.text)
        await kubelet.delete_pod("uid-one")
        await kubelet.delete_pod("uid-vm")
        await until(lambda: as_before(function, "nvme"), 30, agent.text)
        await listed(agent, kubelet, NVME, HOSTS, set())
        await listed(agent, kubelet, VM, named(*disks), set())


async def test_a_machine_keeps_its_disk_through_restarts_of_agent_and_kubelet(disks: tuple[str, str]) -> None:
    async with in_vm(disks) as (agent, kubelet, function):
        await agent.stop(signal.SIGKILL)
        await agent.start()
        await agent.ready()
        await restart_kubelet(kubelet)
        await asyncio.sleep(7)  # two looks at what could go back
        assert driver_of(function) == "vfio-pci"
        await kubelet.delete_pod("uid-vm")
        await until(lambda: as_before(function, "nvme"), 30, agent.text)


async def test_what_a_process_has_open_stays_bound_and_the_status_says_so(disks: tuple[str, str]) -> None:
    async with in_vm(disks) as (agent, kubelet, function):
        machine = os.open(f"/dev/vfio/{group(function)}", os.O_RDWR)
        await kubelet.delete_pod("uid-vm")
        await until(lambda: noted(agent, "in use although no pod has it"), 30, agent.text)
        assert driver_of(function) == "vfio-pci"
        assert len(ids(kubelet, NVME)[0]) == 1
        os.close(machine)
        await until(lambda: as_before(function, "nvme"), 30, agent.text)


async def test_an_agent_that_dies_between_unbinding_and_binding_is_healed(disks: tuple[str, str]) -> None:
    async with node(BOTH, DRIVER) as (agent, kubelet):
        await listed(agent, kubelet, VM, named(*disks), set())
        await agent.stop()
        agent.command = ("-m", "tests.lab.inside.dying_agent", "2")
        await agent.start()
        await listed(agent, kubelet, VM, named(*disks), set())
        failed = await kubelet.run_pod(pod("vm", 1, VM))
        assert failed.phase is not Phase.RUNNING
        assert agent.process is not None
        assert await agent.process.wait() == -signal.SIGKILL
        record = json.loads((agent.control.parent / "vfio.json").read_text())["functions"]
        ((function, taken),) = record.items()
        assert (taken["driver"], taken["override"]) == ("nvme", "")
        agent.command = COMMAND
        await agent.start()
        await agent.ready()
        await kubelet.delete_pod("uid-vm")
        await until(lambda: as_before(function, "nvme"), 60, agent.text)
        await listed(agent, kubelet, NVME, HOSTS, set())
        assert (await kubelet.run_pod(pod("next", 1, VM))).phase is Phase.RUNNING
        await kubelet.delete_pod("uid-next")
        await until(lambda: all(as_before(one, "nvme") for one in disks), 60, agent.text)


async def test_the_host_comes_first() -> None:
    card, beside = address("edu3"), address("oldnet")
    interface = Path(f"/sys/bus/pci/devices/{beside}/net")
    name = next(interface.iterdir()).name
    await run("ip", "link", "set", name, "up")
    try:
        async with node(HEAD + CARDS.replace("ADDRESS", card), DRIVER) as (agent, kubelet):
            await listed(agent, kubelet, CARD, set(), named(card))
            row = next(row for row in (await agent.status())["devices"] if row["id"] == f"vfio-{card}")
            assert f"the network interface {name} is up" in str(row)
            await run("ip", "link", "set", name, "down")
            await run("ip", "address", "add", "192.0.2.1/24", "dev", name)
            await until(lambda: noted_of(agent, f"vfio-{card}", "has an address"), 30, agent.text)
            await run("ip", "address", "flush", "dev", name)
            await listed(agent, kubelet, CARD, named(card), set())
            assert (await kubelet.run_pod(pod("vm", 1, CARD))).phase is Phase.RUNNING, agent.text()
            assert (driver_of(card), driver_of(beside)) == ("vfio-pci", "vfio-pci")
            os.close(os.open(f"/dev/vfio/{group(card)}", os.O_RDWR))
            await kubelet.delete_pod("uid-vm")
            await until(lambda: as_before(card, "") and as_before(beside, "e1000"), 30, agent.text)
            assert any(interface.iterdir())
    finally:
        with contextlib.suppress(StopIteration, OSError):
            await run("ip", "link", "set", next(interface.iterdir()).name, "down")


async def noted_of(agent: AgentProcess, device: str, text: str) -> bool:
    rows = (await agent.status())["devices"]
    return any(row["id"] == device and text in str(row) for row in rows)


async def test_nothing_is_bound_that_is_not_allowed() -> None:
    card = address("edu3")
    text = CARDS.replace("ADDRESS", card).replace(', "8086:100e"', "")
    async with node(HEAD + text, DRIVER) as (agent, kubelet):
        await listed(agent, kubelet, CARD, set(), named(card))
        await until(lambda: noted_of(agent, f"vfio-{card}", "(8086:100e, e1000) may not be bound"), 30, agent.text)


async def test_a_claim_binds_and_its_file_says_which_function(disks: tuple[str, str]) -> None:
    lanes = '  lanes: {legacy: 0, dra: "*"}\n'
    async with bridge(HEAD + DISKS + lanes + VM_DISKS + lanes, driver=DRIVER) as (agent, cluster, _runtime):
        only = f"device.attributes['{DRIVER}'].resource == '{VM}'"
        class_text = CLASS.replace(MEMORY_DRIVER, DRIVER).replace("'\"}", f"' && {only}\"}}")
        await cluster.apply(class_text)
        await cluster.apply(claim_pod("vm"))
        await cluster.wait_pod("vm")
        (function,) = (one for one in disks if driver_of(one) == "vfio-pci")
        (file,) = agent.root.rglob("metadata.json")
        text = file.read_text()
        assert function in text
        assert "resource.kubernetes.io/pciBusID" in text
        await cluster.delete("pods", "vm")
        await until(lambda: as_before(function, "nvme"), 60, agent.text)
