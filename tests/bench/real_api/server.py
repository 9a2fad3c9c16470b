"""A real kube-apiserver with its etcd, who may ask it, and what a phase of the benchmark makes it do.

No kubelet, scheduler or controller runs: the benchmark does in their place what reaches the API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import urllib3
from msgspec.structs import replace

from deploy.helm import manifests
from drabridge.kube.access import Access
from drabridge.kube.client import KubernetesCluster
from tests.bench.peers.api_server import api_server
from tests.bench.processes import children, cpu_seconds
from tests.bench.real_api import readings
from tests.bench.real_api.readings import Reading
from tests.bench.real_api.tables import Phase

Json = dict[str, Any]
NAMESPACE = "drabridge"
GO = "go-driver"  # service account and role of upstream's helper
POD_BYTES = 4000  # what a pod with its status and managed fields has; most of it does not matter to the agent
REST_SECONDS = 4.0  # after a phase's work, for what is answered late
WAIT_SECONDS = 240.0
RULES = [
    # As test/e2e/testing-manifests/dra/dra-test-driver-proxy.yaml of kubernetes/kubernetes, less what it does not use.
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceslices"],
        "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
    },
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["patch", "update"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/driver"], "verbs": ["associated-node:patch"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
]
KINDS = {
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


class Server:
    """One real API server, asked by an administrator."""

    def __init__(self, kubeconfig: Path) -> None:
        self._admin = KubernetesCluster.from_kubeconfig(kubeconfig).access()
        self._config = json.loads(kubeconfig.read_text())
        self._folder = kubeconfig.parent
        user, cluster = self._config["users"][0]["user"], self._config["clusters"][0]["cluster"]
        self._pool = urllib3.PoolManager(
            maxsize=16,
            ca_certs=cluster["certificate-authority"],
            cert_file=user["client-certificate"],
            key_file=user["client-key"],
        )
        self._threads = ThreadPoolExecutor(16, "admin")
        by_name = {name: pid for pid, name in children(os.getpid()).items()}
        self._pid, self._etcd_pid = by_name["kube-apiserver"], by_name["etcd"]
        self._rest = Reading()
        self._rest_seconds = 1.0
        self._looks = self._look_bytes = 0  # requests of `slices`, and their answers

    async def ask(self, method: str, path: str, body: Json | None = None) -> bytes:
        """Return the answer's body. Raises RuntimeError for a refusal."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, method, path, body)

    def _ask(self, method: str, path: str, body: Json | None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        answer = self._pool.request(method, self._admin.server + path, body=data, headers=headers, timeout=60.0)
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.data[:500]!r}")
        return answer.data

    async def json(self, method: str, path: str, body: Json | None = None) -> Json:
        found: Json = json.loads(await self.ask(method, path, body))
        return found

    def close(self) -> None:
        self._threads.shutdown()
        self._pool.clear()

    # --- what is there before the agents

    async def install(self) -> None:
        """Create the chart's account, role and policies, and an account for upstream's helper."""
        await self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        match = [{"subsystem": "mem"}]
        lanes = {"legacy": 0, "dra": "*"}
        resource = {"name": "example.com/gpu", "match": match, "lanes": lanes}
        config = {"apiVersion": "drabridge/v1alpha1", "kind": "AgentConfig", "driver": "dra.example.com"}
        chart = await asyncio.to_thread(manifests, {"config": {**config, "resources": [resource]}}, namespace=NAMESPACE)
        subject = {"kind": "ServiceAccount", "name": GO, "namespace": NAMESPACE}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": GO}
        go: list[Json] = [
            {"kind": "ServiceAccount", "metadata": {"name": GO}},
            {"kind": "ClusterRole", "metadata": {"name": GO}, "rules": RULES},
            {"kind": "ClusterRoleBinding", "metadata": {"name": GO}, "roleRef": role, "subjects": [subject]},
            {"kind": "ServiceAccount", "metadata": {"name": "default"}},
        ]
        for obj in (*chart, *go):
            if obj["kind"] in KINDS:
                await self.ask("POST", KINDS[obj["kind"]], obj)

    async def add_nodes(self, names: Iterable[str], pods: int) -> None:
        """Create Node objects, each with ``pods`` running pods that have nothing to do with devices."""
        await asyncio.gather(*(self._add_node(name, pods) for name in names))

    async def _add_node(self, name: str, pods: int) -> None:
        await self.ask("POST", "/api/v1/nodes", {"metadata": {"name": name}})
        for index in range(pods):
            await self._add_pod(name, f"{name}-{index}", "default", {"padding": "x" * POD_BYTES})

    async def _add_pod(self, node: str, name: str, account: str, annotations: Json) -> str:
        spec = {"nodeName": node, "serviceAccountName": account, "containers": [{"name": "main", "image": "x"}]}
        metadata = {"name": name, "annotations": annotations}
        pod = await self.json("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": metadata, "spec": spec})
        return str(pod["metadata"]["uid"])

    async def access(self, node: str, account: str) -> Access:
        """Return an agent's own access: a token that is bound to a pod of its node, over TLS."""
        uid = await self._add_pod(node, f"{account}-{node}", account, {})
        bound = {"kind": "Pod", "apiVersion": "v1", "name": f"{account}-{node}", "uid": uid}
        body = {"spec": {"boundObjectRef": bound, "expirationSeconds": 7200}}
        made = await self.json("POST", f"{KINDS['ServiceAccount']}/{account}/token", body)
        return replace(self._admin, certificate="", key="", authorization=f"Bearer {made['status']['token']}")

    async def kubeconfig(self, node: str, account: str) -> Path:
        """Write an agent's own access to a file."""
        token = (await self.access(node, account)).authorization.removeprefix("Bearer ")
        path = self._folder / f"{account}-{node}.kubeconfig"
        path.write_text(json.dumps({**self._config, "users": [{"name": "u", "user": {"token": token}}]}))
        return path

    # --- what kubelets do, and what can be seen

    async def wipe(self, driver: str, nodes: Sequence[str]) -> None:
        """Delete each node's slices, as a starting kubelet does: pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go."""
        await asyncio.gather(
            *(
                self.ask("DELETE", f"{SLICES}?fieldSelector=spec.nodeName%3D{node}%2Cspec.driver%3D{driver}")
                for node in nodes
            )
        )

    async def slices(self) -> set[str]:
        """Return the UIDs of all slices. A phase does not count this request."""
        answer = await self.ask("GET", f"{SLICES}?resourceVersion=0")
        self._looks, self._look_bytes = self._looks + 1, self._look_bytes + len(answer)
        return {item["metadata"]["uid"] for item in json.loads(answer)["items"]}

    # --- what it takes

    async def learn_rest(self, seconds: float) -> None:
        """Measure what the server does without agents; it has much to do just after its start."""
        await asyncio.sleep(10)
        before = self._now()
        await asyncio.sleep(seconds)
        self._rest, self._rest_seconds = self._now().since(before), seconds

    def _now(self) -> Reading:
        """Read processor times only."""
        return Reading(cpu_seconds=cpu_seconds(self._pid), etcd_cpu_seconds=cpu_seconds(self._etcd_pid))

    async def _metrics(self) -> Reading:
        await self.ask("GET", "/debug/pprof/heap?gc=1")
        found = readings.parsed((await self.ask("GET", "/metrics")).decode())
        found.requests["LIST resourceslices"] -= self._looks
        return dataclasses.replace(found, bytes_out=found.bytes_out - self._look_bytes)

    async def phase(
        self, name: str, per: int, work: Callable[[], Awaitable[None]], *, rest: float = REST_SECONDS
    ) -> Phase:
        """Do ``work`` and say what it took, per node or claim."""
        print(f"{name} ...", file=sys.stderr, flush=True)
        metrics, before, began = await self._metrics(), self._now(), time.monotonic()
        await work()
        worked = time.monotonic() - began
        await asyncio.sleep(rest)
        seconds, now = time.monotonic() - began, self._now()
        cpu = now.since(before)
        taken = (await self._metrics()).since(metrics)
        factor = seconds / self._rest_seconds
        return Phase(
            name,
            round(worked, 1),
            {what: count / per for what, count in sorted(taken.requests.items())},
            taken.open_watches / per,
            taken.bytes_in / per,
            taken.bytes_out / per,
            max(0.0, cpu.cpu_seconds - self._rest.cpu_seconds * factor) / per,
            max(0.0, cpu.etcd_cpu_seconds - self._rest.etcd_cpu_seconds * factor) / per,
            taken.live_bytes / per,
        )


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    """Start a server with what the chart installs; it ends with the block."""
    with tempfile.TemporaryDirectory(prefix="api") as directory, api_server(Path(directory)) as kubeconfig:
        server = Server(kubeconfig)
        try:
            await server.install()
            yield server
        finally:
            server.close()


async def until(look: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until ``look`` says so. Raises TimeoutError."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not await look():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {WAIT_SECONDS:g} s: {what}")
        await asyncio.sleep(0.5)
