"""udevd as it is in the field: restarted, late, full of events, with rules that rename, and not seen at all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drabridge.sim.kubelet.pods import Phase
from tests.lab.inside.found import find, find_all
from tests.lab.inside.hardware import plug, unplug
from tests.lab.inside.nodes import DRIVER, HEAD, SERIAL, SERIAL_PORTS, ids, listed, run
from tests.support.agent_process import AgentProcess, cdi_devices, node, pod
from tests.support.waiting import until

NETWORK = "example.com/network"
NETWORKS = f"""\
- name: {NETWORK}
  match: [{{subsystem: net, parent: {{subsystem: pci, attr: {{vendor: "0x8086", device: "0x10d3"}}}}}}]
  id: ["{{attr:address}}"]
  nodes: []
  env: {{INTERFACE: "{{sysname}}"}}
"""
WITH_SERIALS = {"RADIO1", "RADIO2", "RADIO3"}
BY_SERIAL = SERIAL_PORTS.replace(', "{property:ID_PATH}"', "")


@contextlib.contextmanager
def rule(text: str) -> Iterator[None]:
    """A udev rule, for the time of a test."""
    file = Path("/run/udev/rules.d/99-lab.rules")
    file.parent.mkdir(exist_ok=True)
    file.write_text(text + "\n")
    subprocess.run(["udevadm", "control", "--reload"], check=True)
    try:
        yield
    finally:
        file.unlink()
        subprocess.run(["udevadm", "control", "--reload"], check=True)


@contextlib.contextmanager
def plugged(name: str) -> Iterator[None]:
    plug(name)
    try:
        yield
    finally:
        unplug(name)


def udevd() -> int:
    """The process id of the udevd that runs, the parent of its workers."""
    found = subprocess.run(["pgrep", "-o", "-x", "systemd-udevd"], capture_output=True, text=True, check=True)
    return int(found.stdout)


async def test_a_restarted_udevd_is_heard_again() -> None:
    async with node(HEAD + BY_SERIAL, DRIVER) as (agent, kubelet):
        await until(lambda: ids(kubelet, SERIAL)[0] >= WITH_SERIALS, 20, agent.text)
        os.kill(udevd(), signal.SIGKILL)
        await asyncio.sleep(0.5)
        await run("/lib/systemd/systemd-udevd", "--daemon")
        with plugged("radio4"):
            await until(lambda: "RADIO4" in ids(kubelet, SERIAL)[0], 20, agent.text)


async def test_a_database_that_is_late_gives_no_device_a_wrong_name() -> None:
    """Events of the kernel come seconds before udevd has found the serial: nothing may be offered by its path then."""
    config = HEAD.replace("resources:", "udevEvents: kernel\nresources:") + SERIAL_PORTS
    late = 'SUBSYSTEM=="usb-serial|usb|tty", ACTION=="add", PROGRAM="/bin/sleep 4"'
    async with node(config, DRIVER) as (agent, kubelet):
        await until(lambda: ids(kubelet, SERIAL)[0] >= WITH_SERIALS, 20, agent.text)
        before = ids(kubelet, SERIAL)[0]
        seen: set[str] = set()
        with rule(late), plugged("radio4"):

            def look() -> bool:
                seen.update(ids(kubelet, SERIAL)[0])
                return "RADIO4" in seen

            await until(look, 30, agent.text)
            assert seen - before == {"RADIO4"}


async def test_a_renamed_interface_is_the_same_device() -> None:
    async with node(HEAD + NETWORKS, DRIVER) as (agent, kubelet):
        name = Path(find("ethernet")).name
        await until(lambda: len(ids(kubelet, NETWORK)[0]) == 1, 20, agent.text)
        (identity,) = ids(kubelet, NETWORK)[0]
        assert (await kubelet.run_pod(pod("a", 1, NETWORK))).phase is Phase.RUNNING
        await run("ip", "link", "set", name, "name", "lab9")
        try:
            await until(lambda: _interfaces(agent) == ["INTERFACE=lab9"], 20, agent.text)
            assert ids(kubelet, NETWORK) == ({identity}, set())
        finally:
            back = (
                f"ip link property del dev lab9 altname {name}; ip link set lab9 name {name}"  # udevd kept the old one
            )
            await run("sh", "-c", back)
        await kubelet.delete_pod("uid-a")


def _interfaces(agent: AgentProcess) -> list[str]:
    """The variables that containers are given."""
    return [variable for one in cdi_devices(agent.cdi) for variable in one["containerEdits"]["env"]]


async def test_links_of_a_users_own_rule_can_be_matched() -> None:
    config = HEAD + BY_SERIAL.replace('sysname: "ttyUSB*"', "devlink: /dev/radios/*")
    with rule('SUBSYSTEM=="tty", ENV{ID_SERIAL_SHORT}=="RADIO*", SYMLINK+="radios/$env{ID_SERIAL_SHORT}"'):
        await run("udevadm", "trigger", "--subsystem-match=tty")
        await run("udevadm", "settle")
        async with node(config, DRIVER) as (agent, kubelet):
            await listed(agent, kubelet, SERIAL, WITH_SERIALS, set())
    await run("udevadm", "trigger", "--subsystem-match=tty")


def processor_seconds(agent: AgentProcess) -> float:
    assert agent.process is not None
    fields = Path(f"/proc/{agent.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_a_storm_of_events_changes_nothing() -> None:
    async with node(HEAD + SERIAL_PORTS, DRIVER) as (agent, kubelet):
        await until(lambda: ids(kubelet, SERIAL)[0] >= WITH_SERIALS, 20, agent.text)
        before, began, used = ids(kubelet, SERIAL), time.monotonic(), processor_seconds(agent)
        for _ in range(3):
            await run("udevadm", "trigger")
        await run("udevadm", "settle", "--timeout=900")
        await asyncio.sleep(2)
        print(f"storm: {processor_seconds(agent) - used:.1f} s of processor time in {time.monotonic() - began:.0f} s")
        assert ids(kubelet, SERIAL) == before
        assert len(kubelet.calls.of("ListAndWatch")) == 1, "the stream stayed"
        assert processor_seconds(agent) - used < (time.monotonic() - began) / 2


@pytest.mark.parametrize("mounted", [True, False], ids=["mounted", "not mounted"])
async def test_a_pod_that_sees_udevs_database_or_does_not(mounted: bool) -> None:
    """As in the chart's pod: other mounts, another network namespace, so no events of udevd's."""
    with_port = SERIAL_PORTS.replace('"{property:ID_SERIAL_SHORT}"', '"{parent.attr:serial}"').replace(
        '"{property:ID_PATH}"', '"{pci}-usb-{parent.attr:devpath}"'
    )
    places = {f"{_controller()}-usb-{port}" for port in "345"}
    command = ("-m", "tests.lab.inside.pod_agent", "mounted" if mounted else "hidden")
    async with node(HEAD + with_port, DRIVER, ready=False) as (agent, kubelet):
        await agent.stop(signal.SIGKILL)
        agent.command = command
        await agent.start()
        await agent.ready()
        await listed(agent, kubelet, SERIAL, WITH_SERIALS | places, set())
        with plugged("radio4"):
            await until(lambda: "RADIO4" in ids(kubelet, SERIAL)[0], 20, agent.text)
        await until(lambda: "RADIO4" not in ids(kubelet, SERIAL)[0], 20, agent.text)
        assert 'source="kernel' in agent.text()
    assert not find_all("radio4")


def _controller() -> str:
    return next(part for part in reversed(find("bare").split("/usb")[0].split("/")) if part.startswith("0000:"))
