"""Devices are pulled out and plugged in under a real agent: kubelet, the pod and its CDI file see it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pyudev

from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from tests.lab.inside.found import devnode, find_all
from tests.lab.inside.hardware import plug, put_back, take_out, unplug
from tests.lab.inside.nodes import DRIVER, HEAD, SERIAL, SERIAL_PORTS, give, given_nodes, holder, ids, listed, number
from tests.support.agent_process import AgentProcess, node
from tests.support.waiting import until

# By serial, else by place: the twins' serial is no identity, and the bare one has none.
UNIQUE = {"RADIO1", "RADIO2", "RADIO3"}


def by_path(port: str) -> str:
    """The identity of a serial port that has no serial of its own: udev's ID_PATH."""
    (device,) = [one for one in pyudev.Context().list_devices(subsystem="tty") if f":1-{port}:" in f":{_usb(one)}:"]
    return str(device.properties["ID_PATH"])


def _usb(device: pyudev.Device) -> str:
    usb = device.find_parent("usb", "usb_device")
    return usb.sys_name if usb is not None and device.sys_name.startswith("ttyUSB") else ""


@contextlib.asynccontextmanager
async def serial_ports() -> AsyncIterator[tuple[AgentProcess, SimKubelet, set[str]]]:
    """An agent with the shelf's USB serial ports, and their ids; what a test unplugged is back afterwards."""
    everything = UNIQUE | {by_path(port) for port in ("3", "4", "5")}
    async with node(HEAD + SERIAL_PORTS, DRIVER) as (agent, kubelet):
        await listed(agent, kubelet, SERIAL, everything, set())
        yield agent, kubelet, everything


async def test_a_free_one_goes_and_comes_back_at_another_port_under_another_number() -> None:
    async with serial_ports() as (agent, kubelet, everything):
        before = devnode("radio1")
        unplug("radio1")
        await until(lambda: "RADIO1" not in ids(kubelet, SERIAL)[0], 20, agent.text)
        plug("radio4", port="1")  # it takes the number that radio1 had
        try:
            await listed(agent, kubelet, SERIAL, everything - {"RADIO1"} | {"RADIO4"}, ids(kubelet, SERIAL)[1])
            assert devnode("radio4") == before
            plug("radio1", port="15")
            await listed(agent, kubelet, SERIAL, everything | {"RADIO4"}, set())
            assert devnode("radio1") != before
            uid = await give(agent, kubelet, "RADIO1", everything | {"RADIO4"})
            (given,) = [one for one in given_nodes(agent) if one["hostPath"] == devnode("radio1")]
            assert (given["major"], given["minor"]) == number(devnode("radio1"))
            assert given["path"] == "/dev/radio"
            await kubelet.delete_pod(uid)
        finally:
            take_out("radio4")
            put_back("radio1")
            await until(lambda: find_all("radio1"), 10)


async def test_a_held_one_that_is_pulled_out_stays_held_and_is_its_holders_again_at_another_port() -> None:
    async with serial_ports() as (agent, kubelet, everything):
        uid = await give(agent, kubelet, "RADIO2", everything)
        unplug("radio2")
        await listed(agent, kubelet, SERIAL, everything - {"RADIO2"}, {"RADIO2"})
        assert await holder(agent, "radio2") == ("gone", "legacy")
        await until(lambda: len(given_nodes(agent)) == 0, 10, lambda: str(given_nodes(agent)))
        try:
            plug("radio4", port="2")  # a stranger with its number, at its place: the pod may open it
            await listed(agent, kubelet, SERIAL, everything - {"RADIO2"}, {"RADIO2", "RADIO4"})
            assert given_nodes(agent) == [], "a stranger has the number now"
            plug("radio2", port="15")
            await listed(agent, kubelet, SERIAL, everything, {"RADIO4"})
            assert await holder(agent, "radio2") == ("present", "legacy")
            await until(lambda: len(given_nodes(agent)) == 1, 10, agent.text)
            (given,) = given_nodes(agent)
            assert (given["hostPath"], given["major"], given["minor"]) == (
                devnode("radio2"),
                *number(devnode("radio2")),
            )
            assert kubelet.pod_status(uid).phase is Phase.RUNNING
            await kubelet.delete_pod(uid)
            await listed(agent, kubelet, SERIAL, everything | {"RADIO4"}, set())
        finally:
            take_out("radio4")
            put_back("radio2")
            await until(lambda: find_all("radio2"), 10)


async def test_one_without_a_serial_is_the_same_at_its_port_and_another_elsewhere() -> None:
    async with serial_ports() as (agent, kubelet, everything):
        name = by_path("5")
        uid = await give(agent, kubelet, name, everything)
        unplug("bare")
        await listed(agent, kubelet, SERIAL, everything - {name}, {name})
        plug("bare", port="15")  # with the number that the pod may open
        try:
            await until(lambda: len(set().union(*ids(kubelet, SERIAL))) > len(everything), 20, agent.text)
            assert ids(kubelet, SERIAL) == (everything - {name}, {name, by_path("15")})
            unplug("bare")
            plug("bare")
            await until(lambda: name in ids(kubelet, SERIAL)[0], 20, agent.text)
            assert kubelet.pod_status(uid).phase is Phase.RUNNING
            await kubelet.delete_pod(uid)
        finally:
            put_back("bare")
            await until(lambda: find_all("bare"), 10)


async def test_of_two_with_one_serial_the_held_one_is_not_taken_for_the_other() -> None:
    async with serial_ports() as (agent, kubelet, everything):
        first, second = by_path("3"), by_path("4")
        uid = await give(agent, kubelet, first, everything)
        unplug("twin1")
        try:
            await listed(agent, kubelet, SERIAL, everything - {first}, {first})
            rows = {row["id"]: row["owner"] for row in (await agent.status())["devices"]}
            assert (rows[first], rows[second]) == ("legacy", "none")
        finally:
            plug("twin1")
        await listed(agent, kubelet, SERIAL, everything, set())
        assert kubelet.pod_status(uid).phase is Phase.RUNNING
        await kubelet.delete_pod(uid)


async def test_a_hub_that_is_pulled_out_takes_its_devices_with_it() -> None:
    async with serial_ports() as (agent, kubelet, everything):
        uid = await give(agent, kubelet, "RADIO3", everything)
        unplug("hub")
        try:
            await listed(agent, kubelet, SERIAL, everything - {"RADIO3"}, {"RADIO3"})
            assert await holder(agent, "radio3") == ("gone", "legacy")
        finally:
            put_back("hub", "radio3")
        await listed(agent, kubelet, SERIAL, everything, set())
        assert await holder(agent, "radio3") == ("present", "legacy")
        assert kubelet.pod_status(uid).phase is Phase.RUNNING
        await kubelet.delete_pod(uid)
