"""Agent, kubelet and udevd are killed, sockets and directories deleted, in any order: the agent always recovers.

Everything is real but the kubelet: the agent's process, systemd-udevd, loop devices, sockets, files.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
from collections.abc import Awaitable, Callable

import pytest

from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from drabridge.sim.kubelet.runtime import MemoryRuntime
from tests.support.agent_process import AgentProcess, node, pod
from tests.support.agent_with_loop_devices import DRIVER, RESOURCE, by_name, counted, device_nodes
from tests.support.hardware import Loops, needs_loop_devices
from tests.support.udevd import Udevd
from tests.support.waiting import until

pytestmark = [pytest.mark.loopdev, pytest.mark.udevd, pytest.mark.root, needs_loop_devices]

SEEDS = 2  # orders with, and as many without the loss of the directory; others by raising this number
DEVICES = 4


class World:
    """One node. Each fault leaves its damage behind; :meth:`mend` starts what is down, as systemd would."""

    def __init__(self, agent: AgentProcess, kubelet: SimKubelet, udevd: Udevd, loop: Loops) -> None:
        self.agent, self.kubelet, self.udevd, self.loop = agent, kubelet, udevd, loop
        self.udevd_runs = self.agent_runs = True
        self.checkpoint_lost = False  # then kubelet takes this for a new node and rejects its pods
        self.faults: dict[str, Callable[[], Awaitable[None]]] = {
            "kill the agent": self.kill_agent,
            "kill kubelet": self.kill_kubelet,
            "kill udevd": self.kill_udevd,
            "delete the agent's socket": self.delete_our_socket,
            "delete every socket": self.delete_sockets,
            "delete the directory": self.delete_directory,
        }

    async def kill_agent(self) -> None:
        await self.agent.stop(signal.SIGKILL)
        self.agent_runs = False

    async def kill_kubelet(self) -> None:
        await self.kubelet.stop()  # as after a kill: the socket files stay without a listener

    async def kill_udevd(self) -> None:
        self.udevd.kill()
        self.udevd_runs = False

    async def delete_our_socket(self) -> None:
        for path in self.kubelet.node.device_plugin_dir.glob("drabridge-*"):
            path.unlink()

    async def delete_sockets(self) -> None:
        for path in self.kubelet.node.device_plugin_dir.glob("*"):
            if path.is_socket():
                path.unlink()

    async def delete_directory(self) -> None:
        shutil.rmtree(self.kubelet.node.device_plugin_dir, ignore_errors=True)
        self.checkpoint_lost = True

    async def mend(self) -> None:
        if not self.udevd_runs:
            self.udevd.start()
            self.udevd_runs = True
        if not self.agent_runs:
            await self.agent.start()
            self.agent_runs = True
        if not (self.kubelet.node.device_plugin_dir / "kubelet.sock").exists():
            await self.kubelet.stop()  # a kubelet without its socket stays without: only its restart brings it back
        if not self.kubelet.is_running:
            await self.kubelet.start()


async def all_is_well(world: World, devices: int, held: set[str]) -> None:
    """Registered once, everything counted, the pod as it was, a new pod served; nothing left lying around."""
    agent, kubelet = world.agent, world.kubelet
    await agent.ready(20)
    await until(lambda: counted(kubelet) == (devices, devices), 20, agent.text)
    assert kubelet.resources[RESOURCE].streams == 1
    sockets = [path.name for path in kubelet.node.device_plugin_dir.iterdir() if path.is_socket()]
    assert len(sockets) == 2, sockets  # kubelet's, and one of ours
    assert kubelet.crashed is None
    assert "Traceback" not in agent.text()
    if not world.checkpoint_lost:
        assert kubelet.pod_status("uid-a").phase is Phase.RUNNING
        await until(lambda: owned(agent, held), 10, agent.text)
        assert {node["hostPath"] for node in device_nodes(agent)} >= {f"/dev/{name}" for name in held}
    assert (await kubelet.run_pod(pod("b", resource=RESOURCE))).phase is Phase.RUNNING
    runtime = kubelet.node.runtime
    assert isinstance(runtime, MemoryRuntime)
    (new,) = runtime.running["uid-b", "main"].device_ids
    if not world.checkpoint_lost:
        assert new[1] not in held
    await until(lambda: owned(agent, {new[1]}), 10, agent.text)


async def owned(agent: AgentProcess, names: set[str]) -> bool:
    return names <= {row["name"] for row in (await agent.status())["devices"] if row["owner"] == "legacy"}


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("directory", ["stays", "goes"])
async def test_any_order_of_disasters_ends_registered_and_correct(
    udevd: Udevd, loop: Loops, directory: str, seed: int
) -> None:
    pick = random.Random(seed)
    udevd.start()
    for index in range(DEVICES):
        loop.add(index)
    async with node(by_name(loop), DRIVER) as (agent, kubelet):
        await until(lambda: counted(kubelet) == (DEVICES, DEVICES), 10, agent.text)
        assert (await kubelet.run_pod(pod("a", 2, resource=RESOURCE))).phase is Phase.RUNNING
        held = {row["name"] for row in (await agent.status())["devices"] if row["owner"] == "legacy"}
        assert len(held) == 2
        world = World(agent, kubelet, udevd, loop)
        if directory == "stays":
            del world.faults["delete the directory"]
        order = pick.sample(sorted(world.faults), len(world.faults))
        plugged_after = pick.randrange(len(order))
        for step, name in enumerate(order):
            await world.faults[name]()
            if step == plugged_after:
                loop.add(DEVICES)  # a part that is down at that moment must learn of it later
            await asyncio.sleep(pick.random() * 0.3)
            if pick.random() < 0.4:
                await world.mend()
        await world.mend()
        await all_is_well(world, DEVICES + 1, held)
