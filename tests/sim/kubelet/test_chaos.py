"""Random pods, deletions, restarts, reboots and crashes: nothing leaks, nothing is held twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path

import pytest

from drabridge.sim.kubelet.kubelet import KubeletDownError, SimKubelet
from drabridge.sim.kubelet.runtime import LockingRuntime
from tests.sim.kubelet.dra_pods import claim_pod, gpu, grant
from tests.sim.kubelet.gpu_pods import pod
from tests.support.kubelet_peers import GPU, Driver, FakeApi, Plugin, device, running, short_dir
from tests.support.waiting import PATIENCE

import grpc.aio  # isort: skip

WEIGHTS = {
    "run": 8.0,
    "claim": 6.0,
    "finish": 5.0,
    "delete": 3.0,
    "restart container": 2.0,
    "restart": 1.0,
    "crash": 0.4,
    "reboot": 0.3,
    "end stream": 0.7,
}


class Chaos:
    """One world; ``step`` does one random thing and does not wait for its end."""

    def __init__(self, root: Path, kubelet: SimKubelet, api: FakeApi, seed: int) -> None:
        self.kubelet = kubelet
        self.plugin = Plugin(root, "p.sock", [device(f"d{i}") for i in range(6)])
        self.driver = Driver(root)
        self.driver.devices = {f"c{i}": [gpu(f"gpu-{i}")] for i in range(500)}
        self._api = api
        self._random = random.Random(seed)
        self._jobs: set[asyncio.Task[None]] = set()
        self._number = 0

    async def keep_registered(self) -> None:
        """A plugin that follows the kubelet: a fresh server and a registration whenever no stream is alive."""
        while True:
            view = self.kubelet.resources.get(GPU)
            if self.kubelet.is_running and (view is None or view.streams == 0):
                with suppress(grpc.aio.AioRpcError):
                    await self.plugin.stop()
                    await self.plugin.serve()
                    await self.plugin.register()
            await asyncio.sleep(0.02)

    async def step(self) -> None:
        self._number += 1
        kubelet, pick = self.kubelet, self._random
        live = [uid for uid, record in kubelet.node.pods.items() if record.active]
        uid = pick.choice(live) if live else ""
        match pick.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]:
            case "run":
                self._begin(kubelet.run_pod(pod(f"p{self._number}", pick.randint(0, 2), init=pick.randint(0, 1))))
            case "claim":
                spec = claim_pod(f"q{self._number}", f"c{self._number % 500}")
                grant(self._api, [spec])
                self._begin(kubelet.run_pod(spec))
            case "finish" if uid:
                self._begin(kubelet.finish_pod(uid))
            case "delete" if uid:
                self._begin(kubelet.delete_pod(uid, linger_seconds=pick.random() / 10))
            case "restart container" if uid and kubelet.node.pods[uid].running:
                self._begin(kubelet.restart_container(uid, min(kubelet.node.pods[uid].running)))
            case "restart":
                await kubelet.restart(downtime_seconds=pick.random() / 20)
            case "reboot":
                await kubelet.reboot()
            case "crash":
                kubelet._panic("chaos")
                await kubelet.start()
            case "end stream":
                await self.plugin.end_streams()
        await asyncio.sleep(pick.random() / 50)

    async def drain(self) -> None:
        """Delete every pod and wait until all is quiet."""
        for _ in range(200 * PATIENCE):
            for uid in list(self.kubelet.node.pods):
                self._begin(self.kubelet.delete_pod(uid))
            await asyncio.sleep(0.05)
            if not self.kubelet.node.pods and not self._jobs:
                return
        raise TimeoutError(f"left: {self.kubelet.pods}, {self._jobs}")

    def _begin(self, work: Awaitable[object]) -> None:
        async def guarded() -> None:
            with suppress(KubeletDownError, KeyError):  # the pod or the kubelet went first
                await work

        task = asyncio.create_task(guarded())
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_leaks_and_nothing_is_held_twice(seed: int) -> None:
    async with short_dir() as root:
        (root / "locks").mkdir()
        runtime, api = LockingRuntime(root / "locks"), FakeApi()
        async with running(root, api=api, runtime=runtime, seed=seed) as kubelet:
            chaos = Chaos(root, kubelet, api, seed)
            await chaos.driver.serve()
            follower = asyncio.create_task(chaos.keep_registered())
            try:
                for _ in range(250):
                    await chaos.step()
                    assert kubelet.crashed is None, kubelet.crashed
                await chaos.drain()
                await kubelet.restart()
                await kubelet.process.sources_ready.wait()
                await kubelet.wait_for(lambda: not kubelet.process.dra.cache, what="every claim to be unprepared")
                assert runtime.running == {}
                assert runtime.conflicts == []
                kubelet.process.manager.collect()
                assert kubelet.process.manager.state.held == {}
                assert not [line for line in kubelet.node.log if " ended: " in line], "background tasks live"
            finally:
                follower.cancel()
                await asyncio.gather(follower, return_exceptions=True)
                await chaos.plugin.stop()
                await chaos.driver.stop()
