"""What a scenario needs of a cluster with an agent; the configuration and the kinds that all scenarios use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from drabridge.cluster import KubernetesCluster
from drabridge.clusterapi import Kind

Json = dict[str, Any]

DRIVER = "cluster-test.example.com"
RESOURCE = "example.com/cluster-test"
CLASS = "drabridge-cluster-test"
NAMESPACE = "drabridge-test"
MANAGER = "drabridge-cluster-test"  # owns the fields that these tests apply
LANES = f"{DRIVER}/lanes"  # the Node's annotation
POLL_SECONDS = 0.2
CONFIG: Json = {
    "apiVersion": "drabridge/v1alpha1",
    "kind": "AgentConfig",
    "driver": DRIVER,
    "udevEvents": "kernel",
    "safety": {
        "minHoldSeconds": 1,
        "unconfirmedSeconds": 3,  # that kubelet showed a pod is lost when the node dies before the ledger's next commit
        "absentSeconds": 1,
        "settleSeconds": 1,
        "quiesceSeconds": 1,
    },
    "resources": [
        {
            "name": RESOURCE,
            "match": [{"subsystem": "mem", "sysname": ["zero", "null", "full", "random"]}],
            "id": ["{sysname}"],
            "nodes": [{"from": "devnode", "as": "/dev/test-{sysname}"}],
            "env": {"DEVICE": "{sysname}"},
            "lanes": {"legacy": 2, "dra": 2},
            "deviceClass": {"name": CLASS},
        }
    ],
}
DEVICES = 4

NODES = Kind("", "v1", "nodes", namespaced=False)
NAMESPACES = Kind("", "v1", "namespaces", namespaced=False)
PODS = Kind("", "v1", "pods")
JOBS = Kind("batch", "v1", "jobs")
CLAIMS = Kind("resource.k8s.io", "v1", "resourceclaims")
TEMPLATES = Kind("resource.k8s.io", "v1", "resourceclaimtemplates")
SLICES = Kind("resource.k8s.io", "v1", "resourceslices", namespaced=False)
CLASSES = Kind("resource.k8s.io", "v1", "deviceclasses", namespaced=False)


class Bed(Protocol):
    """A cluster that is there, and an agent that can be put on one node of it."""

    api: KubernetesCluster
    node: str
    image: str
    """Has ``sh`` and ``flock``."""
    patience: float
    """Seconds after which something that should happen counts as not happening."""

    async def install(self) -> None:
        """Begin; :meth:`ready` says when it is done."""

    async def ready(self) -> bool: ...

    async def kill_agent(self) -> None:
        """As by ``kill -9``; something starts it again."""

    async def upgrade(self) -> None:
        """Replace the running agent by a new one, as a rollout does; returns when the new one is ready."""

    async def restart_kubelet(self) -> None:
        """Skips the test where that is not allowed."""

    async def reboot(self, *, agent_first: bool) -> None:
        """End everything on the node at once, and begin to start it again. Skips the test where that is not allowed.

        ``agent_first``: the agent is there before kubelet admits its pods again. Where nobody decides that (the agent
        is a pod like its neighbours) it is ignored, and :attr:`decides_order` is false.
        """

    decides_order: bool
    reboot_patience: float
    """Seconds after which a rebooted node counts as lost."""

    async def devices(self, pod: str) -> list[str]:
        """The device that each start of the pod's container was given, as the container saw it, the newest last.

        A start that failed, or of which nothing is known any more, is left out.
        """

    async def restarted(self, pod: str) -> bool:
        """Whether the pod's container was started more than once."""

    async def uninstall(self) -> None: ...

    async def left_behind(self) -> list[str]:
        """What is still there of an agent that was uninstalled, beside its ledger."""

    async def conflicts(self) -> list[str]:
        """Workloads that found their device's lock taken."""

    async def story(self) -> str:
        """For people, when a scenario failed: what the agent knows and what it said."""


async def until(bed: Bed, what: str, condition: Callable[[], Awaitable[Any]], seconds: float = 0.0) -> Any:
    """The condition's first true value. Fails with ``what`` after so many seconds, or after the bed's patience."""
    patience = seconds or bed.patience
    deadline = time.monotonic() + patience
    while not (value := await condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {patience:.0f} s for {what}\n{await bed.story()}")
        await asyncio.sleep(POLL_SECONDS)
    return value
