"""Three nodes of our own with an agent on each; every node has loop devices that no other node has."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from drabridge.errors import ClusterError
from drabridge.kube.client import KubernetesCluster
from tests.cluster import bed as b
from tests.cluster.bed import DEVICES, NAMESPACE, NODES, Json, wait_for
from tests.cluster.real_bed import DAEMON_SETS, RealBed, connected, own_cluster, restored
from tests.cluster.workloads import CONFLICTS, LOCKS
from tests.node.cluster import CONTROL_PROGRAMS, NODE_PROGRAMS, Cluster, NodeSpec

NAMES = ("node-a", "node-b", "node-c")
DISKS = "loop/backing_file"
AWAY = [
    {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2}
    for why in ("unreachable", "not-ready")
]
"""Tolerations of pods that do not stay on a node that is lost, nor go there."""
OUT_OF_SERVICE = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
"""A taint by which an administrator says that a node is off: the controller manager forgets its pods at once."""


def config(**lanes: Any) -> Json:
    """The agents' configuration, with these lanes on each node: its own loop devices, known by their files.

    The kernel shows every cluster on this machine the disks of the others, too.
    """
    folder = Path(os.environ.get("DRABRIDGE_TEST_CLUSTER") or "*").name
    resource = {
        **b.CONFIG["resources"][0],
        "match": [{"subsystem": "block", "sysname": "loop*", "attr": {DISKS: f"*/{folder}/machines/*/disks/*"}}],
        **({"lanes": lanes} if lanes else {}),
    }
    return {**b.CONFIG, "resources": [resource]}


CONFIG = config()


class OneOfThem(RealBed):
    """One node of several: what is asked of it, and done to it, is about this node's agent alone."""

    async def agent_pods(self) -> list[Json]:
        return [one for one in await super().agent_pods() if one["spec"].get("nodeName") == self.node_object]


class ThreeNodes(RealBed):
    """All nodes at once: one DaemonSet, and pods that may go to any node."""

    def __init__(self, api: KubernetesCluster, cluster: Cluster, config: Json, values: Json | None = None) -> None:
        super().__init__(api, "", "", config, values)
        self.cluster: Cluster = cluster
        self.workload_kinds = (*self.workload_kinds, DAEMON_SETS)
        self._nodes = {name: OneOfThem(api, name, name, config, values) for name in NAMES}

    def on(self, name: str) -> OneOfThem:
        """Return the bed of one node."""
        return self._nodes[name]

    def each_node(self) -> Sequence[OneOfThem]:
        return [*self._nodes.values()]

    def node_of(self, device: str) -> str:
        """Return the node that has this device."""
        return next(one.name for one in self.cluster.spec.nodes if device in one.disks)

    async def ready(self) -> bool:
        return all([await one.ready() for one in self.each_node()])

    async def has(self, pod: str) -> tuple[str, list[str]]:
        """Return a pod's node and the devices that it was given there, as its container saw them."""
        node = (await self.api.get(b.PODS, pod, namespace=NAMESPACE))["spec"]["nodeName"]
        devices = await self.devices(pod)
        assert {self.node_of(one) for one in devices} == {node}, f"{pod} on {node} has {devices}"
        return node, devices

    async def conflicts(self) -> list[str]:
        """By the files beside the locks, too: pods may be gone."""
        found = await super().conflicts()
        for name in NAMES:
            with contextlib.suppress(FileNotFoundError):
                found += [f"{name}: {line}" for line in self._conflicts_of(name).read_text().splitlines()]
        return found

    def _conflicts_of(self, name: str) -> Path:
        return self.cluster.node(name).path(LOCKS) / CONFLICTS

    async def all_is_free(self) -> None:
        """Wait until no agent knows an owner of any device, and all devices are offered as at the beginning."""
        for node in self.each_node():

            async def free(node: OneOfThem = node) -> bool:
                return not await node.owners()

            await wait_for(self, f"the devices of {node.node_object} to be free", free)
        await b.at_the_beginning(self)

    async def agent_story(self, last: int = 0) -> str:
        stories = []
        for node in self.each_node():
            with contextlib.suppress(ClusterError):
                stories.append(f"{node.node_object}: {await node.agent_story(last)}")
        return "\n".join(stories)

    async def restore(self) -> None:
        await self.mend()
        await super().restore()
        for name in NAMES:
            self._conflicts_of(name).unlink(missing_ok=True)

    # --- what happens to nodes --------------------------------------------------------------------------------------

    async def mend(self) -> None:
        """Bring back all that a scenario has taken away: nodes, cables, programs."""
        for program in CONTROL_PROGRAMS:
            await asyncio.to_thread(self.cluster.fault, "start", program)
            await asyncio.to_thread(self.cluster.fault, "thaw", program)
        for name in NAMES:
            await self.back(name)
        await asyncio.to_thread(self.cluster.wait_ready, lambda line: None)

    async def back(self, name: str) -> None:
        """Boot a node that is off, plug its cable in, start what does not run, and say that it is in service."""
        machine = self.cluster.node(name)
        if machine.init() is None:
            await asyncio.to_thread(self.cluster.boot, machine)
        await asyncio.to_thread(machine.heal)
        for program in NODE_PROGRAMS:
            await asyncio.to_thread(self.cluster.fault, "start", program, name)
            await asyncio.to_thread(self.cluster.fault, "thaw", program, name)
        await self.taint(name)

    async def taint(self, name: str, *taints: Json) -> None:
        """Say that a node is out of service; without taints, that it is in service again."""

        async def done() -> bool:
            node = await self.api.get(NODES, name)
            now = node["spec"].get("taints", [])
            wanted = [one for one in now if one["key"] != OUT_OF_SERVICE["key"]] + [*taints]
            if wanted != now:
                node["spec"]["taints"] = wanted
                await self.api.replace(NODES, node)
            return True

        await wait_for(self, f"the taints of {name}", done)

    async def lost(self, name: str) -> None:
        """Wait until the API server says that it hears nothing of a node."""

        async def unreachable() -> bool:
            taints = (await self.api.get(NODES, name))["spec"].get("taints", ())
            return any(one["key"] == AWAY[0]["key"] and one["effect"] == "NoExecute" for one in taints)

        await wait_for(self, f"{name} to be unreachable", unreachable)


def signal_pod(uid: str, number: signal.Signals) -> None:
    """Send a signal to every process of a pod's containers, from the host, which sees those of all nodes."""
    for group in Path("/proc").glob("[0-9]*/cgroup"):
        with contextlib.suppress(OSError):
            if re.search(rf"/pod{uid}(/|$)", group.read_text(), re.MULTILINE):
                os.kill(int(group.parent.name), number)


@contextlib.asynccontextmanager
async def three_nodes(config: Json = CONFIG, values: Json | None = None) -> AsyncIterator[ThreeNodes]:
    """The cluster of tests.node with three nodes: those that it lacks are started, and stay. Skips on any other."""
    async with connected() as api:
        cluster = own_cluster()
        if cluster is None:
            pytest.skip("not a cluster of tests.node: nothing here can add nodes, cut their cables or reboot them")
        await asyncio.to_thread(_prepare, cluster)
        async with restored(ThreeNodes(api, cluster, config, values)) as bed:
            yield bed


def _prepare(cluster: Cluster) -> None:
    there = {one.name for one in cluster.spec.nodes}
    for name in NAMES:
        if name not in there:
            cluster.add(NodeSpec(name, 0, cluster.spec.release))
    for name in NAMES:
        for _ in range(DEVICES - len(cluster.node_spec(name).disks)):
            cluster.add_disk(name)
