"""``drabridge migrate switch`` on a release whose API server has MutatingAdmissionPolicy as v1beta1, if it is on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drabridge.kube.api import Kind
from drabridge.kube.client import KubernetesCluster as Api
from drabridge.kube.features import FEATURES, POLICIES
from drabridge.migrate.switch import marks
from drabridge.migrate.switch.switcher import policy_kinds
from tests.cluster.bed import CLASSES, MANAGER, NAMESPACES, PODS, Json
from tests.node.cluster import Cluster
from tests.support.waiting import HANG_SECONDS

pytestmark = pytest.mark.cluster

RELEASE = "1.34"
GPU, CLASS, TEAM = "example.com/gpu", "drabridge-beta-gpu", "drabridge-beta"
SERVICE_ACCOUNTS = Kind("", "v1", "serviceaccounts")
BETA = "admissionregistration.k8s.io/v1beta1=true"
POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "tried", "namespace": TEAM},
    "spec": {"containers": [{"name": "c", "image": "x", "resources": {"limits": {GPU: "1"}}}]},
}


@contextlib.contextmanager
def control_plane(folder: Path, on: bool) -> Iterator[Path]:
    """A control plane without nodes: pods are only tried. Yields its kubeconfig."""
    if not os.environ.get("DRABRIDGE_TEST_CLUSTER"):
        pytest.skip("starts real nodes: make cluster")
    gates = {POLICIES: True} if on else {}
    made = Cluster.up(folder, of=RELEASE, gates=gates, runtime_config=BETA if on else "")
    try:
        yield made.kubeconfig
    finally:
        Cluster.open(folder).clean()


def switch(kubeconfig: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "drabridge", "migrate", "switch", "--kubeconfig", str(kubeconfig), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


async def prepare(api: Api) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": TEAM}}
    device_class = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": CLASS}, "spec": {}}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}}
    await api.apply(NAMESPACES, namespace, manager=MANAGER)
    await api.apply(SERVICE_ACCOUNTS, account, manager=MANAGER, namespace=TEAM)
    await api.apply(CLASSES, device_class, manager=MANAGER)


async def claims_of_new_pod(api: Api) -> list[Json]:
    tried = await api.create(PODS, POD, namespace=TEAM, dry_run=True)
    found: list[Json] = tried["spec"].get("resourceClaims") or []
    return found


async def policies_there(api: Api) -> set[str]:
    kind = policy_kinds("v1beta1")["MutatingAdmissionPolicy"]
    return {one["metadata"]["name"] for one in (await api.list(kind)).items}


def test_where_it_is_on_new_pods_get_claims_and_back() -> None:
    with control_plane(Path("/var/tmp") / f"drabridge-beta-{os.getpid()}", on=True) as kubeconfig:
        api = Api.from_kubeconfig(kubeconfig)
        try:
            asyncio.run(prepare(api))
            code, said = switch(kubeconfig, TEAM, "--to", "claims", "--class", f"{GPU}={CLASS}")
            assert code == 0, said
            assert asyncio.run(policies_there(api)) == {marks.POLICY}
            (claim,) = asyncio.run(claims_of_new_pod(api))
            assert claim["resourceClaimTemplateName"] == "example-gpu-1"
            code, said = switch(kubeconfig, TEAM, "--to", "limits")
            assert code == 0, said
            assert asyncio.run(policies_there(api)) == set()
            assert asyncio.run(claims_of_new_pod(api)) == []
        finally:
            api.close()


def test_where_it_is_off_the_sentence_says_what_to_switch_on() -> None:
    with control_plane(Path("/var/tmp") / f"drabridge-beta-{os.getpid()}", on=False) as kubeconfig:
        code, said = switch(kubeconfig)
    assert code != 0
    assert FEATURES[POLICIES].sentence in said
    assert BETA in said
