"""A migration of three simulated nodes with a real agent each, and back, while agents and the command are killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from drabridge.sim.cluster import ClusterTimings, SimCluster
from tests.cluster.sim_bed import Locks
from tests.support.agent_process import DRIVER, IDS, QUICK, RESOURCE, AgentProcess
from tests.support.rollouts import Controllers, failed
from tests.support.waiting import HANG_SECONDS, short_directory, until

Json = dict[str, Any]
NODES = ("node-a", "node-b", "node-c")
CLASS = "gpus"
CONFIG = QUICK.replace("safety: {", "safety: {quiesceSeconds: 1, ")  # a scheduler here does not wait with what it chose


def workload(kind: str, name: str, replicas: int, devices: int, **more: Any) -> Json:
    labels = {"app": name}
    container = {"name": "main", "image": "x", "resources": {"limits": {RESOURCE: str(devices)}}}
    # The grace period: a pod that ends while no agent runs keeps its device for so long after the agent is back.
    pod = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template, **more}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "team-a"}, "spec": spec}


WORKLOADS = [
    workload("Deployment", "web", 4, 1),
    workload("Deployment", "batch", 1, 2, strategy={"type": "Recreate"}),
    workload("StatefulSet", "store", 2, 2, serviceName="store"),
]
CLAIM_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": CLASS},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}


class Cluster:
    """Three nodes, an agent on each, and what makes pods."""

    def __init__(self, cluster: SimCluster, agents: list[AgentProcess], locks: list[Locks], root: Path) -> None:
        self.sim = cluster
        self.agents = agents
        self.locks = locks
        self._kubeconfig = cluster.api.kubeconfig(root / "kubeconfig")

    async def migrate(self, *words: str | Path, killed_after: float | None = None) -> str:
        """Run a command to its end, or kill it; return what it said."""
        with tempfile.TemporaryFile() as said:
            command = ("-m", "drabridge", "migrate", *map(str, words), "--kubeconfig", str(self._kubeconfig))
            process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=said, stderr=said)
            killed = False
            try:
                await asyncio.wait_for(process.wait(), killed_after or 3 * HANG_SECONDS)
            except TimeoutError:
                killed = True
                process.kill()
                await process.wait()
            said.seek(0)
            text = said.read().decode()
        assert process.returncode == 0 or (killed and killed_after), f"{text}\n{self._pods()}"
        return text

    async def until_used(self, side: str) -> None:
        """Wait until every pod runs on one side, and no more pods are there than wanted."""
        wanted = {one["metadata"]["name"]: (side, one["spec"]["replicas"]) for one in WORKLOADS}
        await until(lambda: self._used() == wanted, 10, lambda: (wanted, self._used()))

    def _pods(self) -> dict[str, Json]:
        return {pod["metadata"]["name"]: pod["status"] for pod in self.sim.api.objects.peek("pods", "team-a")}

    def _used(self) -> dict[str, tuple[str, int]]:
        counts: dict[str, Counter[str]] = {}
        for pod in self.sim.api.objects.peek("pods", "team-a"):
            if failed(pod):
                continue
            side = "claims" if pod["spec"].get("resourceClaims") else "limits"
            running = pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
            counts.setdefault(pod["metadata"]["labels"]["app"], Counter())[side if running else "on its way"] += 1
        return {
            name: next(iter(one.items())) if len(one) == 1 else ("both", one.total()) for name, one in counts.items()
        }

    def in_slices(self) -> int:
        return sum(len(one["spec"].get("devices") or ()) for one in self.sim.api.objects.peek("resourceslices"))


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    with short_directory() as root:
        locks = {}
        for name in NODES:
            (root / f"locks-{name}").mkdir()
            locks[name] = Locks(root / f"locks-{name}", root / name / "cdi")
        async with SimCluster(root, nodes=NODES, timings=ClusterTimings.fast(), runtime=locks.__getitem__) as sim:
            agents = []
            for name in NODES:
                token = sim.api.token(name, drivers=frozenset({DRIVER}))
                kubeconfig = sim.api.kubeconfig(root / f"{name}.kubeconfig", token=token)
                words = ("--kubeconfig", str(kubeconfig), "--node-name", name)
                agents.append(AgentProcess(root / name, CONFIG, DRIVER, words))
            controllers = asyncio.create_task(Controllers(sim.api.objects).run())
            try:
                await sim.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}})
                await sim.apply(CLAIM_CLASS)
                for agent in agents:
                    await agent.start()
                for agent in agents:
                    await agent.ready()
                for one in WORKLOADS:
                    await sim.apply(one)
                yield Cluster(sim, agents, list(locks.values()), root)
            finally:
                controllers.cancel()
                for agent in agents:
                    if agent.process is not None:
                        await agent.stop(signal.SIGKILL)
                with contextlib.suppress(asyncio.CancelledError):
                    await controllers


async def kill_one(agents: list[AgentProcess], rng: random.Random) -> None:
    """Kill an agent in a while, and start it again."""
    await asyncio.sleep(rng.uniform(0.2, 2))
    agent = rng.choice(agents)
    await agent.stop(signal.SIGKILL)
    await agent.start()
    await agent.ready()


async def twice(cluster: Cluster, rng: random.Random, *words: str | Path) -> None:
    """Run a command, which is killed, and run it again to its end; an agent is killed each time."""
    for seconds in (rng.uniform(0.6, 1.5), None):
        await asyncio.gather(cluster.migrate(*words, killed_after=seconds), kill_one(cluster.agents, rng))


@pytest.mark.deep
async def test_there_and_back_with_agents_and_the_command_killed(cluster: Cluster, tmp_path: Path) -> None:
    rng = random.Random(16)
    await cluster.until_used("limits")
    desk = tmp_path / "desk"
    folder = desk / "deploy"
    folder.mkdir(parents=True)
    for one in WORKLOADS:
        (folder / f"{one['metadata']['name']}.yaml").write_text(yaml.safe_dump(one, sort_keys=False))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    plan = desk / "plan.yaml"
    words = ("--class", f"{RESOURCE}={CLASS}", "--manifests", folder, "--write", plan)
    assert "missing" not in await cluster.migrate("plan", *words)
    steps = [step["name"] for step in yaml.safe_load(plan.read_text())["steps"]]
    assert len(steps) == len(WORKLOADS) + 1

    for step in steps:
        await twice(cluster, rng, "apply", plan, "--until", step)
    await cluster.until_used("claims")
    await until(lambda: cluster.in_slices() == len(NODES) * len(IDS))
    moved = desk.rename(tmp_path / "moved")  # the plan, its state and the manifests
    plan, folder = moved / "plan.yaml", moved / "deploy"
    for step in reversed(["", *steps[:-1]]):
        await twice(cluster, rng, "rollback", plan, *(("--to", step) if step else ("--all",)))
    await cluster.until_used("limits")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [words for one in cluster.locks for words in one.conflicts] == []
    assert all(DRIVER not in str(node["metadata"].get("annotations")) for node in cluster.sim.api.objects.peek("nodes"))
