"""A real cluster behind a kubeconfig: the chart's own manifests, applied to one node."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import secrets
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import urllib3
from msgspec.structs import replace

from deploy.helm import CHART, hooks, manifests
from drabridge.kube.access import Access
from drabridge.kube.api import Kind, NotFoundError
from drabridge.kube.client import KubernetesCluster
from tests.cluster import workloads as w
from tests.cluster.bed import (
    AGENT,
    CONFIG,
    DRIVER,
    JOBS,
    MANAGER,
    NAMESPACE,
    NAMESPACES,
    NODES,
    PODS,
    POLL_SECONDS,
    SLICES,
    Bed,
    Json,
    Settings,
    apply_node,
    clear,
    wait_for,
)
from tests.cluster.workloads import HAS, READY, TAKEN
from tests.node.cluster import CONTROL_PROGRAMS, Cluster

WANTED = ("KUBECONFIG", "DRABRIDGE_TEST_IMAGE", "DRABRIDGE_TEST_BUSYBOX")
DAEMON_SETS = Kind("apps", "v1", "daemonsets")
DEPLOYMENTS = Kind("apps", "v1", "deployments")
STATEFUL_SETS = Kind("apps", "v1", "statefulsets")
COORDINATOR = "app.kubernetes.io/component=coordinator"
KUBELET = Path("/var/lib/kubelet")
BOOT_ID = "/run/boot_id"
HTTP_PORT = 9400  # the chart's
CLUSTER_SCOPED = {
    *("Namespace", "ClusterRole", "ClusterRoleBinding", "DeviceClass"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
}
LABELS = {
    "pod-security.kubernetes.io/enforce": "privileged",  # hostPath volumes
    "resource.kubernetes.io/admin-access": "true",
}
GONE_SECONDS = 60.0
"""Pods that ended well are gone after their grace (5 s) and the runtime's work. Others are forced after this time."""

LOG_SECONDS = 10.0


def kind_of(obj: Json) -> Kind:
    """From ``apiVersion`` and ``kind``; the plurals of the chart's kinds are regular."""
    group, _, version = obj["apiVersion"].rpartition("/")
    plural = re.sub("y$", "ie", obj["kind"].lower()) + ("es" if obj["kind"].endswith("ss") else "s")
    return Kind(group, version, plural, namespaced=obj["kind"] not in CLUSTER_SCOPED)


def chart(
    image: str,
    node: str,
    config: Json = CONFIG,
    annotations: dict[str, str] | None = None,
    values: Json | None = None,
    folder: Path = CHART,
) -> list[Json]:
    """The chart as these tests install it, with their devices: on one node, or with ``node`` "" on all.

    Hooks are Helm's to run, and left out.
    """
    settings = {**chart_values(image, node, config, annotations), **(values or {})}
    objects = manifests(settings, name=AGENT, namespace=NAMESPACE, chart=folder)
    return _with_boot_id_of_the_node(objects) if own_cluster() else objects


def _with_boot_id_of_the_node(objects: list[Json]) -> list[Json]:
    """Our own nodes boot without the host: the agent reads their boot id where ``tests/node/boot.sh`` puts it."""
    for one in objects:
        if one["kind"] == "DaemonSet":
            spec = one["spec"]["template"]["spec"]
            spec["volumes"].append({"name": "boot-id", "hostPath": {"path": BOOT_ID, "type": "File"}})
            (container,) = spec["containers"]
            container["args"].append(f"--boot-id-file={BOOT_ID}")
            container["volumeMounts"].append({"name": "boot-id", "mountPath": BOOT_ID, "readOnly": True})
    return objects


def ask(path: str) -> str | None:
    """What the API server of KUBECONFIG answers an administrator's GET; None where that is an error."""
    from kubernetes import config

    with config.new_client_from_config(os.environ["KUBECONFIG"]) as connection:
        settings = connection.configuration.auth_settings().values()
        headers = {one["key"]: one["value"] for one in settings if one["in"] == "header"}
        address = connection.configuration.host + path
        try:
            answer = connection.rest_client.pool_manager.request("GET", address, headers=headers, timeout=30.0)
        except urllib3.exceptions.HTTPError:
            return None
    return answer.data.decode() if answer.status == 200 else None


def own_cluster() -> Cluster | None:
    """The cluster that ``tests.node`` has made for these tests; None on any other."""
    folder = os.environ.get("DRABRIDGE_TEST_CLUSTER")
    return Cluster.open(Path(folder)) if folder else None


def chart_values(image: str, node: str, config: Json = CONFIG, annotations: dict[str, str] | None = None) -> Json:
    """The values of :func:`chart`."""
    repository, _, tag = image.rpartition(":")
    return {
        "config": config,
        "image": {"repository": repository, "tag": tag},
        "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
        "podAnnotations": annotations or {},
        "networkPolicy": {"scrapers": [{"ipBlock": {"cidr": "0.0.0.0/0"}}, {"ipBlock": {"cidr": "::/0"}}]},
    }


async def _as_told(variable: str, what: str) -> None:
    """Run the shell command of an environment variable. Skips the test where there is none: it does harm."""
    command = os.environ.get(variable)
    if not command:
        pytest.skip(f"{variable} does not say how to {what}")
    process = await asyncio.create_subprocess_shell(command)
    assert await process.wait() == 0, f"{variable}: {command} failed"


class RealBed(Bed):
    def __init__(
        self, api: KubernetesCluster, node: str, hostname: str, config: Json = CONFIG, values: Json | None = None
    ) -> None:
        """``values``: more of the chart's."""
        self.api = api
        self.kubeconfig = Path(os.environ["KUBECONFIG"]).expanduser()
        self.config = config
        self.node_object = node
        self.node = hostname
        self.image = os.environ["DRABRIDGE_TEST_BUSYBOX"]
        self.patience = 180.0
        self.workload_kinds: tuple[Kind, ...] = (JOBS, DEPLOYMENTS, STATEFUL_SETS)
        self.runs_programs = True
        self.cluster = own_cluster()
        self.decides_order = False  # kubelet starts the DaemonSet's pod as it does all others
        # A server's firmware alone may take ten minutes.
        self.reboot_patience = self.patience if self.cluster else 1200.0
        self.agent_image = os.environ["DRABRIDGE_TEST_IMAGE"]
        self.values = values or {}

    @functools.cached_property
    def objects(self) -> list[Json]:
        """What the agent's installation is."""
        return chart(self.agent_image, self.node, self.config, values=self.values)

    async def _apply(self, objects: list[Json]) -> None:
        for obj in objects:
            await self.api.apply(kind_of(obj), obj, manager=MANAGER, namespace=obj["metadata"].get("namespace", ""))

    async def install(self) -> None:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": LABELS}}
        await self._apply([namespace, *self.objects])

    async def ready(self) -> bool:
        """By what the pod that is there now says; the DaemonSet's status, and the Node's, may be of one before."""
        pods = [one for one in await self.agent_pods() if not one["metadata"].get("deletionTimestamp")]
        return len(pods) == 1 and is_ready(pods[0]) and await self._registered(pods[0])

    async def _registered(self, pod: Json) -> bool:
        """Whether it says so, as a standby does not that is ready as well; or does not let itself be asked."""
        text = await asyncio.to_thread(self._metrics, pod["metadata"]["name"])
        lines = [line for line in text.splitlines() if line.startswith("drabridge_registered{")]
        return not text or (bool(lines) and all(line.endswith(" 1.0") for line in lines))

    async def owners(self) -> dict[str, str]:
        """Device -> what the agent that serves says owns it, of those that are not free."""
        (pod,) = await self.agent_pods()
        text = await asyncio.to_thread(self._metrics, pod["metadata"]["name"])
        lines = re.findall(r"^drabridge_device_lane\{(.*)\} 1", text, re.MULTILINE)
        found = [dict(re.findall(r'(\w+)="([^"]*)"', line)) for line in lines]
        return {one["device"]: one["owner"] for one in found if one["owner"] != "none"}

    async def not_ready(self) -> str:
        """Asked without the API server, whose proxy says less of an answer that is no success."""
        (pod,) = await self.agent_pods()
        host = pod["status"].get("podIP")
        return await asyncio.to_thread(_page, f"http://{host}:{HTTP_PORT}/readyz") if host else ""

    async def agent_pods(self) -> list[Json]:
        selector = f"app.kubernetes.io/instance={AGENT}"
        return list((await self.api.list(PODS, namespace=NAMESPACE, label_selector=selector)).items)

    async def workload_pods(self) -> list[Json]:
        selector = f"app.kubernetes.io/instance!={AGENT},{COORDINATOR.replace('=', '!=')}"
        return list((await self.api.list(PODS, namespace=NAMESPACE, label_selector=selector)).items)

    async def as_agent(self) -> KubernetesCluster:
        """Connect with a token of the agent's pod, and so with its rights. Close it after use."""
        (pod,) = await self.agent_pods()
        return await asyncio.to_thread(self._as_agent, pod)

    def _as_agent(self, pod: Json) -> KubernetesCluster:
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        body = {"spec": {"boundObjectRef": bound, "expirationSeconds": 600}}
        account = pod["spec"]["serviceAccountName"]
        made = self._core(lambda core: core.create_namespaced_service_account_token(account, NAMESPACE, body))

        def load() -> Access:
            return replace(self.api.access(), certificate="", key="", authorization=f"Bearer {made.status.token}")

        return KubernetesCluster(load)

    async def kill_agent(self) -> None:
        """By force: kubelet kills the container without waiting, and the DaemonSet makes another pod."""
        old = [one["metadata"]["uid"] for one in await self.agent_pods()]
        for pod in await self.agent_pods():
            await self.force_delete(pod["metadata"]["name"])
        await wait_for(self, "the DaemonSet to replace the killed pod", lambda: self._others(old))

    async def _others(self, old: list[str]) -> bool:
        now = {one["metadata"]["uid"] for one in await self.agent_pods()}
        return bool(now) and not now.intersection(old)

    async def force_delete(self, pod: str) -> None:
        """As ``kubectl delete --force --grace-period=0``: the API server forgets it, whatever the node does."""
        await asyncio.to_thread(self._force_delete, pod)

    async def upgrade(self) -> None:
        await self.replace(
            lambda mark: chart(self.agent_image, self.node, self.config, {"upgraded": mark}, self.values)
        )

    async def replace(self, objects: Callable[[str], list[Json]]) -> None:
        """Apply another chart's objects over the present ones. ``objects``: of a text that no earlier rollout had."""
        old = [one["metadata"]["uid"] for one in await self.agent_pods()]
        await self._apply(objects(old[0]))

        async def replaced() -> bool:
            return await self._others(old) and await self.ready()

        await wait_for(self, "the rollout", replaced)

    async def restart_kubelet(self) -> None:
        if os.environ.get("DRABRIDGE_TEST_KUBELET_RESTART"):
            await _as_told("DRABRIDGE_TEST_KUBELET_RESTART", "restart kubelet")
        else:
            await self.fault("restart", "kubelet")

    def own(self, what: str) -> Cluster:
        """The cluster, if it is one of our own. Skips the test where it is not."""
        if self.cluster is None:
            pytest.skip(f"not a cluster of tests.node: nothing here can {what}")
        return self.cluster

    @property
    def kubelet_directory(self) -> Path | None:
        return self.cluster.node(self.node_object).path(str(KUBELET)) if self.cluster else None

    async def fault(self, verb: str, part: str) -> None:
        cluster = self.own(f"{verb} {part}")
        await asyncio.to_thread(cluster.fault, verb, part, "" if part in CONTROL_PROGRAMS else self.node_object)

    async def configure(self, settings: Settings) -> Settings:
        cluster = self.own("give its programs other settings")
        gates, kubelet = {**settings.gates}, {**settings.kubelet}
        before = await asyncio.to_thread(cluster.configure, gates=gates, kubelet=kubelet, node=self.node_object)
        return Settings(*before)

    async def reboot(self, *, agent_first: bool) -> None:
        if self.cluster is None or os.environ.get("DRABRIDGE_TEST_NODE_REBOOT"):
            await _as_told("DRABRIDGE_TEST_NODE_REBOOT", "reboot the node")
        else:
            await asyncio.to_thread(self.cluster.reboot, self.node_object)

    async def devices(self, pod: str) -> list[str]:
        """From the logs of the containers and of their starts before this one; kubelet keeps no more."""
        containers = await self._containers(pod)
        logs = [await asyncio.to_thread(self._log, pod, previous=True, container=one) for one in containers] + [
            await self.said(pod, one) for one in containers
        ]
        return [line.removeprefix(HAS) for text in logs for line in text.splitlines() if line.startswith(HAS)]

    async def _containers(self, pod: str) -> list[str]:
        spec = (await self.api.get(PODS, pod, namespace=NAMESPACE))["spec"]
        return [one["name"] for one in (*spec.get("initContainers", ()), *spec["containers"])]

    async def said(self, pod: str, container: str = "") -> str:
        """A container that runs has not said everything yet: what it says reaches its log in moments."""
        deadline = time.monotonic() + LOG_SECONDS
        while True:
            text = await asyncio.to_thread(self._log, pod, previous=False, container=container)
            status = (await self.api.get(PODS, pod, namespace=NAMESPACE)).get("status", {})
            if READY in text or status.get("phase") != "Running" or time.monotonic() > deadline:
                return text
            await asyncio.sleep(POLL_SECONDS)

    async def restarted(self, pod: str) -> bool:
        status = (await self.api.get(PODS, pod, namespace=NAMESPACE))["status"]
        return any(one["restartCount"] for one in status.get("containerStatuses", ()))

    async def agent_story(self, last: int = 0) -> str:
        names = [one["metadata"]["name"] for one in await self.agent_pods()]
        logs = [
            await asyncio.to_thread(self._log, name, previous=previous) for name in names for previous in (True, False)
        ]
        return "\n".join(one[-last:] for one in logs)

    def _core(self, ask: Callable[[Any], Any]) -> Any:
        """What the API answers to a question that drabridge's own client does not ask; "" when it does not."""
        from kubernetes import client, config

        with config.new_client_from_config(os.environ["KUBECONFIG"]) as connection:
            try:
                return ask(client.CoreV1Api(connection))
            except (client.ApiException, urllib3.exceptions.HTTPError):
                return ""

    def _log(self, pod: str, *, previous: bool, container: str = "") -> str:
        """Empty for a start that never was, and while the node is away (kubelet is the one that is asked)."""
        return str(
            self._core(
                lambda core: core.read_namespaced_pod_log(
                    pod,
                    NAMESPACE,
                    previous=previous,
                    _request_timeout=10,
                    **({"container": container} if container else {}),
                )
            )
        )

    def _metrics(self, pod: str) -> str:
        return str(
            self._core(
                lambda core: core.connect_get_namespaced_pod_proxy_with_path(
                    f"{pod}:{HTTP_PORT}", NAMESPACE, "metrics", _request_timeout=10
                )
            )
        )

    def _force_delete(self, pod: str) -> None:
        self._core(lambda core: core.delete_namespaced_pod(pod, NAMESPACE, grace_period_seconds=0, _request_timeout=10))

    async def uninstall(self) -> None:
        for obj in sorted(self.objects, key=lambda one: bool(one["kind"] != "DaemonSet")):
            namespace = obj["metadata"].get("namespace", "")
            await self.api.delete(kind_of(obj), obj["metadata"]["name"], namespace=namespace)

        async def gone() -> bool:
            return not await self.agent_pods()

        await wait_for(self, "the agent's pod to be gone", gone)

    async def restore(self) -> None:
        """The cluster as it was: no workloads, then no agent, no annotation, no namespace.

        In this order: kubelet ends no pod with a claim whose driver is away. Where the agent is away already it is
        installed again; a pod that does not end all the same is forced, so that the next scenario is not its victim.
        """
        await self._without_workloads()
        await self.uninstall()
        for node in self.each_node():
            await apply_node(node, {})
        await self.api.delete(NAMESPACES, NAMESPACE)

        async def gone() -> bool:
            try:
                await self.api.get(NAMESPACES, NAMESPACE)
            except NotFoundError:
                return True
            return False

        await wait_for(self, f"the namespace {NAMESPACE} to be gone", gone)

    async def _without_workloads(self) -> None:
        if await self.workload_pods() and not await self.agent_pods():
            await self.install()
        try:
            await clear(self, seconds=GONE_SECONDS)
        except AssertionError:
            for pod in await self.workload_pods():
                await self.force_delete(pod["metadata"]["name"])
            await clear(self, seconds=GONE_SECONDS)

    async def left_behind(self) -> list[str]:
        slices = await self.api.list(SLICES, field_selector=f"spec.driver={DRIVER}")
        found = [f"ResourceSlice {item['metadata']['name']}" for item in slices.items]
        node = await self.api.get(NODES, self.node_object)
        for resource in (one["name"] for one in self.config["resources"]):
            amount = node["status"]["allocatable"].get(resource, "0")
            found += [f"allocatable {amount}"] if amount != "0" else []
        for obj in self.objects:
            with contextlib.suppress(NotFoundError):
                await self.api.get(
                    kind_of(obj), obj["metadata"]["name"], namespace=obj["metadata"].get("namespace", "")
                )
                found.append(f"{obj['kind']} {obj['metadata']['name']}")
        return found

    async def files_left(self) -> list[str]:
        """By a pod that looks at the node's directories."""
        program = f"cd /plugins/{DRIVER} 2>/dev/null && find . ! -type d; cd /cdi && ls -d {DRIVER}* 2>/dev/null"
        spec = w.pod_spec(self.image, self.node, {})
        directories = {"plugins": "/var/lib/kubelet/plugins", "cdi": "/var/run/cdi"}
        spec["volumes"] = [{"name": name, "hostPath": {"path": path}} for name, path in directories.items()]
        (container,) = spec["containers"]
        container["command"] = ["sh", "-c", f"{program}; true"]
        container["volumeMounts"] = [{"name": n, "mountPath": f"/{n}", "readOnly": True} for n in directories]
        name = f"look-{secrets.token_hex(3)}"
        await self.api.create(PODS, w.pod(name, spec), namespace=NAMESPACE)

        async def done() -> bool:
            found = await self.api.get(PODS, name, namespace=NAMESPACE)
            return bool(found["status"].get("phase") == "Succeeded")

        await wait_for(self, "a look at the node's files", done)
        said = await asyncio.to_thread(self._log, name, previous=False)
        await self.api.delete(PODS, name, namespace=NAMESPACE)
        return said.split()

    async def page(self, path: str = "/", host: str = "localhost") -> tuple[int, str]:
        (pod,) = await self.agent_pods()
        return page_of(await asyncio.to_thread(self._forwarded, pod["metadata"]["name"], path, host))

    def _forwarded(self, pod: str, path: str, host: str) -> bytes:
        """The answer to a request that goes the way of ``kubectl port-forward``: API server, kubelet, pod's network."""
        from kubernetes.stream import portforward

        def ask(core: Any) -> bytes:
            connect = core.connect_get_namespaced_pod_portforward
            forward = portforward(connect, pod, NAMESPACE, ports=str(HTTP_PORT))
            try:
                with contextlib.closing(forward.socket(HTTP_PORT)) as connection:
                    connection.setblocking(True)
                    connection.settimeout(LOG_SECONDS)
                    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                    return b"".join(iter(lambda: connection.recv(65536), b""))
            finally:
                for thread in threading.enumerate():  # the client library forwards in one, and closes no TLS socket
                    if thread.name.startswith("Kubernetes port forward proxy"):
                        thread.join(LOG_SECONDS)
                forward.websocket.shutdown()

        return self._core(ask) or b""

    async def drabridge(self, *words: str) -> tuple[int, str]:
        (pod,) = await self.agent_pods()
        return await asyncio.to_thread(self._exec, pod["metadata"]["name"], ["drabridge", *words])

    def _exec(self, pod: str, command: list[str]) -> tuple[int, str]:
        from kubernetes import client, config, stream

        with config.new_client_from_config(os.environ["KUBECONFIG"]) as connection:
            session = stream.stream(
                client.CoreV1Api(connection).connect_get_namespaced_pod_exec,
                *(pod, NAMESPACE),
                command=command,
                stdout=True,
                stderr=True,
                stdin=False,
                tty=False,
                _preload_content=False,
            )
            try:
                session.run_forever(timeout=self.patience)
                return session.returncode, session.read_stdout()
            finally:
                session.sock.shutdown()  # close() leaves the socket of one that the server has ended

    async def uninstall_check(self) -> tuple[bool, str]:
        """Helm's part: make what the hook has, the Job last, wait for the Job, and delete it all."""
        values = chart_values(self.agent_image, self.node, self.config)
        objects = hooks(values, name=AGENT, namespace=NAMESPACE)
        objects.sort(key=lambda one: int(one["metadata"]["annotations"]["helm.sh/hook-weight"]))
        job = objects[-1]["metadata"]["name"]
        await self._apply(objects)

        async def ended() -> Any:
            status = (await self.api.get(JOBS, job, namespace=NAMESPACE)).get("status", {})
            found = [one["type"] for one in status.get("conditions", ()) if one["status"] == "True"]
            return {"Complete", "Failed"}.intersection(found)  # it says beforehand that it will be one of them

        try:
            types = await wait_for(self, "the Job of the uninstall", ended)
            pods = await self._pods_of(job)
            said = await asyncio.to_thread(self._log, pods[0]["metadata"]["name"], previous=False)
        finally:
            for obj in reversed(objects):
                namespace = obj["metadata"].get("namespace", "")
                await self.api.delete(kind_of(obj), obj["metadata"]["name"], namespace=namespace)

        async def gone() -> bool:
            pods = await self._pods_of(job)
            for pod in pods:  # batch/v1 orphans them unless one says otherwise, as Helm does
                await self.api.delete(PODS, pod["metadata"]["name"], namespace=NAMESPACE)
            return not pods

        await wait_for(self, "the Job's pod to be gone", gone)
        return "Complete" in types, said

    async def _pods_of(self, job: str) -> list[Json]:
        selector = f"batch.kubernetes.io/job-name={job}"
        return list((await self.api.list(PODS, namespace=NAMESPACE, label_selector=selector)).items)

    async def conflicts(self) -> list[str]:
        pods = await self.api.list(PODS, namespace=NAMESPACE)
        return [
            f"{one['metadata']['name']}: its device was taken"
            for one in pods.items
            for status in one["status"].get("containerStatuses", ())
            for state in (status.get("state", {}), status.get("lastState", {}))
            if state.get("terminated", {}).get("exitCode") == TAKEN
        ]


def page_of(answer: bytes) -> tuple[int, str]:
    """Status and body of an HTTP answer; 0 and "" where there was none."""
    if not answer:
        return 0, ""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


def _page(address: str) -> str:
    """The body of an answer that is no success; the pod's network has to be within reach, as it is on the node."""
    try:
        with urllib.request.urlopen(address, timeout=10):
            return ""
    except urllib.error.HTTPError as error:
        return error.read().decode()
    except OSError:
        return ""


def is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


@contextlib.asynccontextmanager
async def real(config: Json = CONFIG, values: Json | None = None, node_name: str = "") -> AsyncIterator[RealBed]:
    """Skips without a cluster. Whatever happens, the namespace and the chart's objects are deleted at the end.

    ``values``: more of the chart's. ``node_name``: which node; else that of DRABRIDGE_TEST_NODE, or the first.
    """
    async with connected() as api:
        nodes = (await api.list(NODES)).items
        chosen = node_name or os.environ.get("DRABRIDGE_TEST_NODE")
        node = next(
            one
            for one in nodes
            if (one["metadata"]["name"] == chosen if chosen else not one["spec"].get("unschedulable"))
        )
        hostname = node["metadata"]["labels"]["kubernetes.io/hostname"]
        async with restored(RealBed(api, node["metadata"]["name"], hostname, config, values)) as bed:
            yield bed


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[KubernetesCluster]:
    """The API server of KUBECONFIG. Skips where that, or an image, is not named."""
    if missing := [name for name in WANTED if not os.environ.get(name)]:
        pytest.skip(f"no cluster: {', '.join(missing)} not set")
    api = KubernetesCluster.from_kubeconfig(Path(os.environ["KUBECONFIG"]).expanduser())
    try:
        yield api
    finally:
        api.close()


B = TypeVar("B", bound=RealBed)


@contextlib.asynccontextmanager
async def restored(bed: B) -> AsyncIterator[B]:
    """The bed; before and after the block the cluster is as it was."""
    await bed.restore()  # what a run that was killed has left
    try:
        yield bed
    finally:
        await bed.restore()
