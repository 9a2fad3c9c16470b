"""Times of claims with Kubernetes' own test driver, which is written in Go: the same pods as in a soak, without faults.

The program is ``test/e2e/dra/test-driver`` of kubernetes/kubernetes. It gives out devices that do not exist, so nobody
takes locks here, and nothing is judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from drabridge.kube.client import KubernetesCluster
from tests.cluster.bed import SLICES, Json, wait_for
from tests.soak.real.bed import CLASS, DRA, RealNode, chosen_node
from tests.soak.real.load import CLAIM, Load

DRIVER = "test-driver.cdi.k8s.io"
CLASS_OBJECT: Json = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": CLASS},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
}


class GoNode(RealNode):
    """The node with the test driver in place of the agent."""

    def __init__(self, api: KubernetesCluster, node: Json, locks: str) -> None:
        super().__init__(api, node, locks, lambda line: None)
        self.objects = [CLASS_OBJECT]

    def program(self, seconds: float, *, shared: str = "", stubborn: bool = False) -> str:
        trap = "" if stubborn else "exit 0"
        return f"trap '{trap}' TERM; sleep {seconds:.0f} & wait"

    async def published(self) -> bool:
        slices = await self.api.list(SLICES, field_selector=f"spec.driver={DRIVER}")
        return sum(len(one["spec"].get("devices") or ()) for one in slices.items) == DRA


@contextlib.asynccontextmanager
async def _serving(node: GoNode, program: Path) -> AsyncIterator[None]:
    """The driver's process, with as many devices as a half of the soak's."""
    plugins = node.paths.kubelet / "plugins"
    (plugins / DRIVER).mkdir(parents=True, exist_ok=True)
    beside = node.own("run the driver there").node(node.object_name).beside()
    words = ("--kubeconfig", str(node.kubeconfig), "--node-name", node.object_name, "--num-devices", str(DRA))
    process = await asyncio.create_subprocess_exec(
        *(*beside, str(program), "kubelet-plugin", *words),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await wait_for(node, "the test driver's slices", node.published)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        for one in (await node.api.list(SLICES, field_selector=f"spec.driver={DRIVER}")).items:
            await node.api.delete(SLICES, one["metadata"]["name"])
        shutil.rmtree(plugins / DRIVER, ignore_errors=True)


async def measure(
    program: Path, seconds: float, seed: int, environ: Mapping[str, str], say: Callable[[str], None], demand: float
) -> None:
    """Pods with claims for ``seconds``, then their times; restore the node."""
    api = KubernetesCluster.from_kubeconfig(Path(environ["KUBECONFIG"]).expanduser())
    try:
        node = GoNode(api, await chosen_node(api, environ), "/tmp")
        await node.install()
        try:
            async with _serving(node, program):
                load = Load(node, random.Random(f"load {seed}"), demand, lanes=(CLAIM,))
                await load.prepare()
                say(f"{DRIVER}: seed {seed}, {DRA} devices of {node.object_name}, for {seconds:.0f} s")
                async with asyncio.TaskGroup() as group:
                    working = group.create_task(load.run())
                    timing = group.create_task(load.watch_starts())
                    await asyncio.sleep(seconds)
                    load.finish()
                    await working
                    timing.cancel()
                for line in load.starts.lines():
                    say(line)
        finally:
            await node.restore()
    finally:
        api.close()
