"""A real cluster behind a kubeconfig: the chart's own manifests, applied to one node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import urllib3

from drabridge.cluster import KubernetesCluster
from drabridge.clusterapi import Kind, NotFoundError
from tests.cluster.bed import (
    CONFIG,
    DRIVER,
    MANAGER,
    NAMESPACE,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE,
    SLICES,
    Bed,
    Json,
    until,
)
from tests.cluster.workloads import HAS, TAKEN
from tests.deploy.helm import manifests

WANTED = ("KUBECONFIG", "DRABRIDGE_TEST_IMAGE", "DRABRIDGE_TEST_BUSYBOX")
DAEMON_SETS = Kind("apps", "v1", "daemonsets")
AGENT = "drabridge-test"
CLUSTER_SCOPED = {
    *("Namespace", "ClusterRole", "ClusterRoleBinding", "DeviceClass"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
}


def kind_of(obj: Json) -> Kind:
    """From ``apiVersion`` and ``kind``; the plurals of the chart's kinds are regular."""
    group, _, version = obj["apiVersion"].rpartition("/")
    plural = re.sub("y$", "ie", obj["kind"].lower()) + ("es" if obj["kind"].endswith("ss") else "s")
    return Kind(group, version, plural, namespaced=obj["kind"] not in CLUSTER_SCOPED)


def chart(image: str, node: str, annotations: dict[str, str] | None = None) -> list[Json]:
    """The chart as these tests install it: on one node, with their devices."""
    repository, _, tag = image.rpartition(":")
    values = {
        "config": CONFIG,
        "image": {"repository": repository, "tag": tag},
        "nodeSelector": {"kubernetes.io/hostname": node},
        "podAnnotations": annotations or {},
    }
    return manifests(values, name=AGENT, namespace=NAMESPACE)


async def _as_told(variable: str, what: str) -> None:
    """Run the shell command of an environment variable. Skips the test where there is none: it does harm."""
    command = os.environ.get(variable)
    if not command:
        pytest.skip(f"{variable} does not say how to {what}")
    process = await asyncio.create_subprocess_shell(command)
    assert await process.wait() == 0, f"{variable}: {command} failed"


class RealBed(Bed):
    def __init__(self, api: KubernetesCluster, node: str, hostname: str) -> None:
        self.api = api
        self.node_object = node
        self.node = hostname
        self.image = os.environ["DRABRIDGE_TEST_BUSYBOX"]
        self.patience = 180.0
        self.decides_order = False  # kubelet starts the DaemonSet's pod as it does all others
        self.reboot_patience = 1200.0  # a server's firmware alone may take ten minutes
        self._agent_image = os.environ["DRABRIDGE_TEST_IMAGE"]
        self._objects = chart(self._agent_image, self.node)

    async def _apply(self, objects: list[Json]) -> None:
        for obj in objects:
            await self.api.apply(kind_of(obj), obj, manager=MANAGER, namespace=obj["metadata"].get("namespace", ""))

    async def install(self) -> None:
        labels = {"pod-security.kubernetes.io/enforce": "privileged"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
        await self._apply([namespace, *self._objects])

    async def ready(self) -> bool:
        with contextlib.suppress(NotFoundError):
            found = await self.api.get(DAEMON_SETS, AGENT, namespace=NAMESPACE)
            status = found.get("status", {})
            current = status.get("observedGeneration") == found["metadata"]["generation"]
            return bool(current and status.get("updatedNumberScheduled") == status.get("numberReady") == 1)
        return False

    async def _agent_pods(self) -> list[Json]:
        selector = f"app.kubernetes.io/instance={AGENT}"
        return list((await self.api.list(PODS, namespace=NAMESPACE, label_selector=selector)).items)

    async def kill_agent(self) -> None:
        """By force: kubelet kills the container without waiting, and the DaemonSet makes another pod."""
        (old,) = await self._agent_pods()
        name, uid = old["metadata"]["name"], old["metadata"]["uid"]
        process = await asyncio.create_subprocess_exec(
            *("kubectl", "-n", NAMESPACE, "delete", "pod", name, "--force", "--grace-period=0")
        )
        if await process.wait() != 0:
            await self.api.delete(PODS, name, namespace=NAMESPACE)

        async def another() -> bool:
            return any(one["metadata"]["uid"] != uid for one in await self._agent_pods())

        await until(self, "the DaemonSet to replace the killed pod", another)

    async def upgrade(self) -> None:
        (old,) = await self._agent_pods()
        await self._apply(chart(self._agent_image, self.node, {"upgraded": old["metadata"]["uid"]}))

        async def replaced() -> bool:
            pods = await self._agent_pods()
            return await self.ready() and all(one["metadata"]["uid"] != old["metadata"]["uid"] for one in pods)

        await until(self, "the rollout", replaced)

    async def restart_kubelet(self) -> None:
        await _as_told("DRABRIDGE_TEST_KUBELET_RESTART", "restart kubelet")

    async def reboot(self, *, agent_first: bool) -> None:
        await _as_told("DRABRIDGE_TEST_NODE_REBOOT", "reboot the node")

    async def devices(self, pod: str) -> list[str]:
        """From the log of the container and of its start before this one; kubelet keeps no more."""
        logs = [await asyncio.to_thread(self._log, pod, previous=previous) for previous in (True, False)]
        return [line.removeprefix(HAS) for text in logs for line in text.splitlines() if line.startswith(HAS)]

    async def restarted(self, pod: str) -> bool:
        status = (await self.api.get(PODS, pod, namespace=NAMESPACE))["status"]
        return any(one["restartCount"] for one in status.get("containerStatuses", ()))

    async def story(self) -> str:
        names = [one["metadata"]["name"] for one in await self._agent_pods()]
        return "\n".join([(await asyncio.to_thread(self._log, name, previous=False))[-5000:] for name in names])

    def _log(self, pod: str, *, previous: bool) -> str:
        """Empty for a start that never was, and while the node is away (kubelet is the one that is asked)."""
        from kubernetes import client, config

        with config.new_client_from_config(os.environ["KUBECONFIG"]) as connection:
            core = client.CoreV1Api(connection)
            try:
                return str(core.read_namespaced_pod_log(pod, NAMESPACE, previous=previous, _request_timeout=10))
            except (client.ApiException, urllib3.exceptions.HTTPError):
                return ""

    async def uninstall(self) -> None:
        for obj in reversed(self._objects):
            namespace = obj["metadata"].get("namespace", "")
            await self.api.delete(kind_of(obj), obj["metadata"]["name"], namespace=namespace)

        async def gone() -> bool:
            return not await self._agent_pods()

        await until(self, "the agent's pod to be gone", gone)

    async def restore(self) -> None:
        """The Node without our annotation, and no namespace: the next test makes a new one."""
        bare = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node_object}}
        await self.api.apply(
            NODES, bare, manager=MANAGER
        )  # an apply without them gives up the fields of an earlier one
        await self.api.delete(NAMESPACES, NAMESPACE)

        async def gone() -> bool:
            try:
                await self.api.get(NAMESPACES, NAMESPACE)
            except NotFoundError:
                return True
            return False

        await until(self, f"the namespace {NAMESPACE} to be gone", gone)

    async def left_behind(self) -> list[str]:
        slices = await self.api.list(SLICES, field_selector=f"spec.driver={DRIVER}")
        found = [f"ResourceSlice {item['metadata']['name']}" for item in slices.items]
        node = await self.api.get(NODES, self.node_object)
        amount = node["status"]["allocatable"].get(RESOURCE, "0")
        found += [f"allocatable {amount}"] if amount != "0" else []
        for obj in self._objects:
            with contextlib.suppress(NotFoundError):
                await self.api.get(
                    kind_of(obj), obj["metadata"]["name"], namespace=obj["metadata"].get("namespace", "")
                )
                found.append(f"{obj['kind']} {obj['metadata']['name']}")
        return found

    async def conflicts(self) -> list[str]:
        pods = await self.api.list(PODS, namespace=NAMESPACE)
        return [
            f"{one['metadata']['name']}: its device was taken"
            for one in pods.items
            for status in one["status"].get("containerStatuses", ())
            for state in (status.get("state", {}), status.get("lastState", {}))
            if state.get("terminated", {}).get("exitCode") == TAKEN
        ]


@contextlib.asynccontextmanager
async def real() -> AsyncIterator[RealBed]:
    """Skips without a cluster. Whatever happens, the namespace and the chart's objects are deleted at the end."""
    if missing := [name for name in WANTED if not os.environ.get(name)]:
        pytest.skip(f"no cluster: {', '.join(missing)} not set")
    api = KubernetesCluster.from_kubeconfig(Path(os.environ["KUBECONFIG"]).expanduser())
    try:
        nodes = (await api.list(NODES)).items
        chosen = os.environ.get("DRABRIDGE_TEST_NODE")
        node = next(
            one
            for one in nodes
            if (one["metadata"]["name"] == chosen if chosen else not one["spec"].get("unschedulable"))
        )
        bed = RealBed(api, node["metadata"]["name"], node["metadata"]["labels"]["kubernetes.io/hostname"])
        try:
            yield bed
        finally:
            await bed.uninstall()
            await bed.restore()
    finally:
        api.close()
