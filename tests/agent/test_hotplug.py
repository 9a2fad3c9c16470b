"""Real devices come and go under a real agent: what kubelet, a pod with one of them and its CDI file see."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from tests.support.agent_process import AgentProcess, node, pod
from tests.support.agent_with_loop_devices import DRIVER, RESOURCE, by_name, counted, device_nodes
from tests.support.hardware import Loops, needs_loop_devices
from tests.support.udevd import Udevd
from tests.support.waiting import until

pytestmark = [pytest.mark.loopdev, pytest.mark.root, needs_loop_devices]

LOOP_SET_FD, LOOP_CLR_FD = 0x4C00, 0x4C01


def by_file(loop: Loops, directory: Path) -> str:
    """The identity is the attached file: the same device may come back as another loop device, with another number."""
    return f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
resyncSeconds: 5
resources:
- name: {RESOURCE}
  match: [{{subsystem: block, sysname: "{loop.pattern}", attr: {{loop/backing_file: "{directory}/*"}}}}]
  id: ["{{attr:loop/backing_file}}"]
  nodes: [{{from: devnode, as: /dev/disk0}}]
"""


def healthy(kubelet: SimKubelet) -> int:
    view = kubelet.resources.get(RESOURCE)
    return len(view.healthy) if view else -1


async def life_of_a_device(agent: AgentProcess, kubelet: SimKubelet, loop: Loops) -> None:
    """Plug, list, allocate, unplug while held, plug in again, let go, unplug."""
    await kubelet.wait_for_resource(RESOURCE, healthy=0)
    name = loop.add(0)
    await until(lambda: counted(kubelet) == (1, 1), 5, agent.text)
    assert (await kubelet.run_pod(pod("a", resource=RESOURCE))).phase is Phase.RUNNING
    (written,) = device_nodes(agent)
    expected = {"path": f"/dev/disks/{name}", "hostPath": f"/dev/{name}", "major": 7, "minor": loop.number(0)}
    assert expected.items() <= written.items()

    loop.remove(0)
    await until(lambda: counted(kubelet) == (0, 1), 5, agent.text)
    assert kubelet.pod_status("uid-a").phase is Phase.RUNNING
    (of_pod,) = kubelet.allocated_resources_status("uid-a")["main"]
    assert of_pod["resources"] == [{"resourceID": name, "health": "Unhealthy"}]
    row = await agent.device(name)
    assert (row["presence"], row["owner"]) == ("gone", "legacy")
    await until(lambda: not device_nodes(agent), 5)  # the number may be another device's now

    loop.add(0)
    await until(lambda: counted(kubelet) == (1, 1), 5, agent.text)
    # The name that kubelet replays resolves again, alias included.
    await until(lambda: device_nodes(agent) == [written], 5, agent.text)
    await kubelet.restart_container("uid-a", "main")
    assert kubelet.pod_status("uid-a").phase is Phase.RUNNING
    assert len(kubelet.calls.of("Allocate")) == 1

    await kubelet.delete_pod("uid-a")
    loop.remove(0)
    await until(lambda: counted(kubelet)[0] == 0, 5, agent.text)
    refused = await kubelet.run_pod(pod("b", resource=RESOURCE))
    assert refused.phase is Phase.FAILED
    assert "no healthy devices present" in refused.message


async def test_devices_come_and_go_without_udevd(no_udevd: None, loop: Loops) -> None:
    async with node(by_name(loop), DRIVER) as (agent, kubelet):
        await life_of_a_device(agent, kubelet, loop)
        assert 'msg="device events followed" source="kernel' in agent.text()


@pytest.mark.udevd
async def test_devices_come_and_go_with_udevd(udevd: Udevd, loop: Loops) -> None:
    udevd.start()
    async with node(by_name(loop), DRIVER) as (agent, kubelet):
        await life_of_a_device(agent, kubelet, loop)
        assert 'msg="device events followed" source="udev' in agent.text()


async def test_a_held_device_unplugged_while_the_agent_was_away_stays_held(no_udevd: None, loop: Loops) -> None:
    async with node(by_name(loop), DRIVER) as (agent, kubelet):
        name = loop.add(0)
        await until(lambda: healthy(kubelet) == 1)
        await kubelet.run_pod(pod("a", resource=RESOURCE))
        written = device_nodes(agent)
        await agent.stop(9)
        loop.remove(0)
        await agent.start()
        await agent.ready()
        await until(lambda: counted(kubelet) == (0, 1), 5, agent.text)  # still listed: kubelet would crash without it
        await until(lambda: device_nodes(agent) == [], 5, agent.text)
        loop.add(0)
        await until(lambda: counted(kubelet) == (1, 1), 5, agent.text)
        assert (await agent.device(name))["owner"] == "legacy"
        await until(lambda: device_nodes(agent) == written, 5, agent.text)


@contextlib.contextmanager
def attached(loop: Loops, index: int, file: Path) -> Iterator[None]:
    """A file behind a loop device, as losetup does it."""
    device = os.open(f"/dev/{loop.name(index)}", os.O_RDWR | os.O_CLOEXEC)
    backing = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(device, LOOP_SET_FD, backing)
        yield
        fcntl.ioctl(device, LOOP_CLR_FD, 0)
    finally:
        os.close(device)
        os.close(backing)


def disk_for_two_places(loop: Loops, directory: Path) -> Path:
    """Add two loop devices; returns a file that may be attached to either."""
    for index in (0, 1):
        loop.add(index)
    file = directory / "disk.img"
    file.write_bytes(b"\0" * (1 << 20))
    return file


async def pod_gets_the_device(agent: AgentProcess, kubelet: SimKubelet) -> None:
    """Run pod "a" with the one device, once it is allocatable."""
    await until(lambda: healthy(kubelet) == 1, 10, agent.text)
    assert (await kubelet.run_pod(pod("a", resource=RESOURCE))).phase is Phase.RUNNING


async def test_a_device_that_comes_back_under_another_number_keeps_name_holder_and_alias(
    no_udevd: None, loop: Loops, tmp_path: Path
) -> None:
    file = disk_for_two_places(loop, tmp_path)
    async with node(by_file(loop, tmp_path), DRIVER) as (agent, kubelet):
        with attached(loop, 0, file):
            await pod_gets_the_device(agent, kubelet)
            (before,) = device_nodes(agent)
        await until(lambda: counted(kubelet) == (0, 1), 10, agent.text)
        with attached(loop, 1, file):
            await until(lambda: counted(kubelet) == (1, 1), 10, agent.text)
            assert before["minor"] == loop.number(0)
            await until(lambda: [one["minor"] for one in device_nodes(agent)] == [loop.number(1)], 10, agent.text)
            (after,) = device_nodes(agent)
            assert before["path"] == after["path"] == "/dev/disk0"
            assert kubelet.pod_status("uid-a").phase is Phase.RUNNING
            assert set((await agent.owners()).values()) == {"legacy"}
            await asyncio.sleep(0)


@pytest.mark.parametrize("down", [False, True], ids=["running", "restarted"])
async def test_a_held_device_that_is_renamed_and_comes_back_at_another_place_is_given_to_nobody(
    no_udevd: None, loop: Loops, tmp_path: Path, down: bool
) -> None:
    disk, stranger = tmp_path / "disk.img", tmp_path / "stranger.img"
    for index, file in enumerate((disk, stranger)):
        file.write_bytes(b"\0" * (1 << 20))
        loop.add(index)
    config = by_file(loop, tmp_path)
    async with node(config, DRIVER) as (agent, kubelet):
        with attached(loop, 0, disk):
            await pod_gets_the_device(agent, kubelet)
            (held,) = (await agent.status())["devices"]
            agent.config.write_text(config.replace('"{attr:', '"disk-{attr:'))
            await until(lambda: "configuration reloaded" in agent.text(), 15, agent.text)
            if down:
                await agent.stop()
        if not down:
            await until(lambda: counted(kubelet)[0] == 0, 10, agent.text)
        with attached(loop, 0, stranger), attached(loop, 1, disk):
            if down:
                await agent.start()
                await agent.ready()
            await until(lambda: counted(kubelet) == (1, 2), 10, agent.text)
            row = await agent.device(held["name"])
            assert (row["presence"], row["owner"]) == ("present", "legacy")
            (other,) = [row for row in (await agent.status())["devices"] if row["name"] != held["name"]]
            assert f"shares its hardware with {held['name']}, which is held" in str(other)  # the pod has its number
            assert (await kubelet.run_pod(pod("b", resource=RESOURCE))).phase is Phase.FAILED
            await until(lambda: {node["minor"] for node in device_nodes(agent)} == {loop.number(1)}, 10, agent.text)
            assert kubelet.pod_status("uid-a").phase is Phase.RUNNING


async def test_an_equal_device_plugged_in_at_a_held_devices_place_is_not_taken_for_it(
    no_udevd: None, loop: Loops, tmp_path: Path
) -> None:
    file = disk_for_two_places(loop, tmp_path)
    async with node(by_file(loop, tmp_path), DRIVER) as (agent, kubelet):
        with attached(loop, 1, file):
            await pod_gets_the_device(agent, kubelet)
            await agent.stop()
        with attached(loop, 0, file):
            await agent.start()
            await agent.ready()
            await until(lambda: [node["minor"] for node in device_nodes(agent)] == [loop.number(0)], 10, agent.text)
            with attached(loop, 1, file):
                await until(lambda: _collision(agent), 10, agent.text)
                assert [node["minor"] for node in device_nodes(agent)] == [loop.number(0)]
                assert healthy(kubelet) == 1


async def _collision(agent: AgentProcess) -> bool:
    return bool((await agent.status())["collisions"])


async def test_a_disk_that_the_host_has_mounted_is_offered_to_nobody_until_it_is_free(
    loop: Loops, no_udevd: None, tmp_path: Path
) -> None:
    """A pod would write below the host's file system. Who holds a disk may mount it."""
    del no_udevd
    image, place = formatted(tmp_path / "image"), tmp_path / "place"
    place.mkdir()
    disk = Path(f"/dev/{loop.add(0)}")
    with attached(loop, 0, image), contextlib.ExitStack() as at_first:
        at_first.enter_context(mounted(disk, place))
        async with node(by_name(loop), DRIVER) as (agent, kubelet):
            await until(lambda: counted(kubelet) == (0, 1), 10, agent.text)
            assert (await agent.device(disk.name))["reason"] == f"the host uses it: {disk.name} is mounted"
            at_first.close()
            await until(lambda: counted(kubelet) == (1, 1), 10, agent.text)
            assert (await kubelet.run_pod(pod("a", resource=RESOURCE))).phase is Phase.RUNNING
            with mounted(disk, place):
                await asyncio.sleep(4)
                assert counted(kubelet) == (1, 1), "as the pod itself may do"


def formatted(image: Path) -> Path:
    """Make a file with an empty file system in it."""
    image.write_bytes(b"")
    os.truncate(image, 8 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    return image


@contextlib.contextmanager
def mounted(disk: Path, place: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "ro,noload", disk, place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)
