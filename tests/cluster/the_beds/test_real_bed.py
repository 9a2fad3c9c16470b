"""The real bed where no scenario on the simulated cluster shows it; a small server stands in for a cluster."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import yaml

from drabridge.kube.api import NotFoundError
from drabridge.kube.client import KubernetesCluster
from tests.cluster import workloads as w
from tests.cluster.bed import JOBS, LANES, NAMESPACE, NAMESPACES, NODES, Json, ScenarioError, wait_for
from tests.cluster.real_bed import WANTED, RealBed, chart, kind_of
from tests.cluster.sim_bed import simulated
from tests.cluster.steps import claim_pod, legacy_pod, move, running
from tests.support.servers import QuietHandler, served


def test_the_chart_that_a_real_cluster_gets_is_on_one_node_and_complete() -> None:
    objects = chart("registry.example.com:5000/drabridge:test", "worker-1")
    (daemon_set,) = [obj for obj in objects if obj["kind"] == "DaemonSet"]
    spec = daemon_set["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"kubernetes.io/hostname": "worker-1"}
    assert spec["containers"][0]["image"] == "registry.example.com:5000/drabridge:test"
    assert {kind_of(obj).path(obj["metadata"].get("namespace", "")) for obj in objects} == {
        "/api/v1/namespaces/drabridge-test/configmaps",
        "/api/v1/namespaces/drabridge-test/serviceaccounts",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
        "/apis/apps/v1/namespaces/drabridge-test/daemonsets",
        "/apis/networking.k8s.io/v1/namespaces/drabridge-test/networkpolicies",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "/apis/resource.k8s.io/v1/deviceclasses",
    }


def test_the_chart_without_a_node_is_on_all() -> None:
    (daemon_set,) = [obj for obj in chart("registry.example.com/drabridge:test", "") if obj["kind"] == "DaemonSet"]
    assert "nodeSelector" not in daemon_set["spec"]["template"]["spec"]
    assert w.spec_of("")["nodeSelector"] == {}


async def test_a_real_cluster_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real bed's own clean-up, on the simulated API server. Workloads first: kubelet ends them with the agent."""
    for name in WANTED:
        monkeypatch.setenv(name, "registry.example.com/x:1")
    async with simulated() as bed:
        await bed.install()
        await wait_for(bed, "the agent to be ready", bed.ready)
        await move(bed, legacy=1, dra=3)
        await legacy_pod(bed, "l1")
        await claim_pod(bed, "c1")
        await running(bed, "l1", "c1")
        assert LANES in (await bed.api.get(NODES, bed.node))["metadata"]["annotations"]
        other = RealBed(bed.api, bed.node, bed.node)
        metadata = {"name": "of-the-agent", "namespace": NAMESPACE}
        other.objects = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}]
        other.workload_kinds = (JOBS,)
        begin = len(bed.cluster.api.requests)
        await other.restore()
        assert LANES not in (await bed.api.get(NODES, bed.node))["metadata"].get("annotations", {})
        with pytest.raises(NotFoundError):
            await bed.api.get(NAMESPACES, NAMESPACE)
        plurals = ("pods", "configmaps", "namespaces")
        gone = [one.resource for one in bed.cluster.api.requests[begin:] if one.verb == "delete"]
        assert [one for one in gone if one in plurals] == ["pods", "pods", "configmaps", "namespaces"]


@pytest.mark.parametrize(
    ("pods", "ready"),
    [
        ([("new", "True", False)], True),
        ([("new", "False", False)], False),
        ([("old", "True", True)], False),  # what the DaemonSet's status still counts
        ([("old", "True", True), ("new", "True", False)], True),
        ([("new", "True", False), ("standby", "True", False)], False),
        ([("deaf", "True", False)], False),  # ready, as a standby is, and not registered
        ([], False),
    ],
)
async def test_an_agent_is_ready_when_the_pod_that_is_there_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pods: list[tuple[str, str, bool]], ready: bool
) -> None:
    items = [
        {
            "metadata": {"name": name, "uid": name, **({"deletionTimestamp": "now"} if deleted else {})},
            "status": {"conditions": [{"type": "Ready", "status": condition}]},
        }
        for name, condition, deleted in pods
    ]
    folder = "/api/v1/namespaces/drabridge-test/pods"
    metrics = {
        f"{folder}/{name}%3A9400/proxy/metrics": f'# TYPE\ndrabridge_registered{{api="legacy"}} {value}\n'
        for name, value in (("new", "1.0"), ("old", "1.0"), ("standby", "1.0"), ("deaf", "0.0"))
    }
    for name in WANTED:
        monkeypatch.setenv(name, "registry.example.com/x:1")
    with serving({folder: json.dumps({"items": items}), **metrics}) as address:
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig(address)))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        bed = RealBed(KubernetesCluster.from_kubeconfig(tmp_path / "kubeconfig"), "n", "n")
        assert await bed.ready() is ready


def test_an_image_without_flock_is_not_taken_for_a_double_hold(tmp_path: Path) -> None:
    container = w.legacy_pod("p", "image", "n")["spec"]["containers"][0]
    program = container["command"][2].replace("/locks/", f"{tmp_path}/").replace("/dev/test-", "/dev/zer")
    variables = {"PATH": "/nowhere"}
    assert subprocess.run(["/bin/sh", "-c", program], env=variables, check=False).returncode == w.NO_LOCK
    with (tmp_path / "o").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        variables["PATH"] = os.environ["PATH"]
        assert subprocess.run(["/bin/sh", "-c", program], env=variables, check=False).returncode == w.TAKEN
    assert (tmp_path / w.CONFLICTS).read_text().endswith(": device o was taken\n")


async def test_a_failed_scenario_shows_all_that_is_known() -> None:
    async with simulated() as bed:
        await bed.install()
        await wait_for(bed, "the agent to be ready", bed.ready)
        await claim_pod(bed, "c1")
        await claim_pod(bed, "c2")
        await claim_pod(bed, "c3")  # one more than there are devices for claims
        await running(bed, "c1", "c2")

        async def never() -> bool:
            return False

        with pytest.raises(ScenarioError) as raised:
            await wait_for(bed, "what never comes", never, 0.1)
        text = str(raised.value)
        assert text.startswith("waited 0 s for what never comes\n")
        for words in ('"reason": "Unschedulable"', "Pod c3 FailedScheduling", '"driver": "cluster-test', '"resources"'):
            assert words in text, text


async def test_a_real_bed_reads_from_logs_which_device_a_container_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As kubelet answers by way of the API server: 400 for a start that never was, 500 while the node is away."""
    log = "/api/v1/namespaces/drabridge-test/pods"
    pages: dict[str, str | int] = {
        f"{log}/twice": pod_json(1),
        f"{log}/once": pod_json(0),
        f"{log}/away": pod_json(0),
        f"{log}/twice/log?container=main&previous=true": f"{w.HAS}zero\n",
        f"{log}/twice/log?container=main&previous=false": f"noise\n{w.HAS}full\n",
        f"{log}/once/log?container=main&previous=false": f"{w.HAS}null\n",
        f"{log}/once/log?container=main&previous=true": 400,
        f"{log}/away/log?container=main&previous=false": 500,
        f"{log}/away/log?container=main&previous=true": 500,
    }
    for name in WANTED:
        monkeypatch.setenv(name, "registry.example.com/x:1")
    with serving(pages) as address:
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig(address)))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        bed = RealBed(KubernetesCluster.from_kubeconfig(tmp_path / "kubeconfig"), "n", "n")
        assert await bed.devices("twice") == ["zero", "full"]
        assert await bed.devices("once") == ["null"]
        assert await bed.devices("away") == []
        assert await bed.restarted("twice")
        assert not await bed.restarted("once")


def pod_json(restarts: int) -> str:
    return json.dumps(
        {"spec": {"containers": [{"name": "main"}]}, "status": {"containerStatuses": [{"restartCount": restarts}]}}
    )


def kubeconfig(address: str) -> Json:
    return {
        "clusters": [{"name": "a", "cluster": {"server": address}}],
        "users": [{"name": "a", "user": {}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "current-context": "a",
    }


def serving(pages: dict[str, str | int]) -> AbstractContextManager[str]:
    """An HTTP server with these pages; a number is a status without one."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path) or pages.get(self.path.partition("?")[0], 404)
            self.send_response(page if isinstance(page, int) else 200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(page.encode() if isinstance(page, str) else b"")

    return served(Handler)


@pytest.mark.parametrize("variable", ["DRABRIDGE_TEST_KUBELET_RESTART", "DRABRIDGE_TEST_NODE_REBOOT"])
async def test_harmful_commands_run_only_where_they_are_allowed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    for name in WANTED:
        monkeypatch.setenv(name, "registry.example.com/x:1")
    monkeypatch.delenv("DRABRIDGE_TEST_CLUSTER", raising=False)
    bed = RealBed(KubernetesCluster.from_kubeconfig(tmp_path / "none"), "n", "n")

    async def harm() -> None:
        await (bed.reboot(agent_first=False) if variable.endswith("REBOOT") else bed.restart_kubelet())

    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(pytest.skip.Exception, match=f"{variable}|not a cluster of tests.node"):
        await harm()
    with pytest.raises(pytest.skip.Exception, match=r"not a cluster of tests.node: nothing here can kill kubelet"):
        await bed.fault("kill", "kubelet")
    monkeypatch.setenv(variable, f"touch {tmp_path}/done")
    await harm()
    assert (tmp_path / "done").exists()
    monkeypatch.setenv(variable, "false")
    with pytest.raises(AssertionError, match="failed"):
        await harm()
