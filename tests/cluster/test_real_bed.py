"""What the real bed does that no scenario shows on the simulated one; against a small server in its cluster's place."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import yaml

from drabridge.cluster import KubernetesCluster
from drabridge.clusterapi import NotFoundError
from tests.cluster import workloads as w
from tests.cluster.bed import LANES, NAMESPACE, NAMESPACES, NODES, Json
from tests.cluster.real_bed import WANTED, RealBed, chart, kind_of
from tests.cluster.sim_bed import simulated
from tests.cluster.test_cluster import move
from tests.servers import QuietHandler, served


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
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "/apis/resource.k8s.io/v1/deviceclasses",
    }


async def test_a_real_cluster_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real bed's own clean-up, on the simulated API server: the annotation and the namespace go."""
    for name in WANTED:
        monkeypatch.setenv(name, "registry.example.com/x:1")
    async with simulated() as bed:
        await bed.install()
        await move(bed, legacy=1, dra=3)
        assert LANES in (await bed.api.get(NODES, bed.node))["metadata"]["annotations"]
        await RealBed(bed.api, bed.node, bed.node).restore()
        assert LANES not in (await bed.api.get(NODES, bed.node))["metadata"].get("annotations", {})
        with pytest.raises(NotFoundError):
            await bed.api.get(NAMESPACES, NAMESPACE)


async def test_a_real_bed_reads_from_logs_which_device_a_container_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As kubelet answers by way of the API server: 400 for a start that never was, 500 while the node is away."""
    log = "/api/v1/namespaces/drabridge-test/pods"
    pages: dict[str, str | int] = {
        f"{log}/twice": '{"status": {"containerStatuses": [{"restartCount": 1}]}}',
        f"{log}/once": '{"status": {"containerStatuses": [{"restartCount": 0}]}}',
        f"{log}/twice/log?previous=true": f"{w.HAS}zero\n",
        f"{log}/twice/log?previous=false": f"noise\n{w.HAS}full\n",
        f"{log}/once/log?previous=false": f"{w.HAS}null\n",
        f"{log}/once/log?previous=true": 400,
        f"{log}/away/log?previous=false": 500,
        f"{log}/away/log?previous=true": 500,
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
    assert await bed.devices("twice") == [], "nobody listens"


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
            page = pages[self.path]
            self.send_response(page if isinstance(page, int) else 200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(page.encode() if isinstance(page, str) else b"")

    return served(Handler)


@pytest.mark.parametrize("variable", ["DRABRIDGE_TEST_KUBELET_RESTART", "DRABRIDGE_TEST_NODE_REBOOT"])
async def test_what_does_harm_happens_only_where_it_is_allowed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    for name in WANTED:
        monkeypatch.setenv(name, "registry.example.com/x:1")
    bed = RealBed(KubernetesCluster.from_kubeconfig(tmp_path / "none"), "n", "n")

    async def harm() -> None:
        await (bed.reboot(agent_first=False) if variable.endswith("REBOOT") else bed.restart_kubelet())

    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(pytest.skip.Exception, match=variable):
        await harm()
    monkeypatch.setenv(variable, f"touch {tmp_path}/done")
    await harm()
    assert (tmp_path / "done").exists()
    monkeypatch.setenv(variable, "false")
    with pytest.raises(AssertionError, match="failed"):
        await harm()
