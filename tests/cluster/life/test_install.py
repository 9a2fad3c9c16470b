"""From a registry alone, as somebody does who has no clone.

Helm itself installs the chart that was pushed, the node pulls the image, and the chart's test gets a device.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.generate import registry
from deploy.helm import ROOT
from deploy.release import artefacts
from drabridge import __version__
from tests.cluster.real_bed import own_cluster
from tests.node.cluster import Cluster
from tests.support import docker_registry, image

pytestmark = pytest.mark.cluster

NAMESPACE = "from-registry"
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
TIMEOUT_SECONDS = 240
HELM = """
import json, os, sys
import helm_python
chart, namespace, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3])
client = helm_python.RegistryClient(plain_http=True)
with helm_python.Config(kubeconfig_path=os.environ["KUBECONFIG"], namespace=namespace) as helm:
    helm.set_registry_client(client)
    helm.install(chart, "drabridge", namespace=namespace, create_namespace=True, wait="watcher",
                 timeout=seconds, plain_http=True)
    try:
        notes = helm.status("drabridge")
        tested = helm.test("drabridge", timeout=seconds, logs=True)
    finally:
        helm.uninstall("drabridge", timeout=seconds, wait="watcher")
json.dump({"notes": notes, "tested": tested}, sys.stdout)
"""


@pytest.fixture
def cluster() -> Cluster:
    found = own_cluster()
    if found is None:
        pytest.skip("not a cluster of tests.node: a registry that its nodes reach cannot be started here")
    return found


@pytest.fixture
def pulled() -> Iterator[str]:
    """The image that these tests have, under another id.

    Of an id that was pulled once, kubelet from 1.35 on (KubeletEnsureSecretPulledImages) believes no copy under another
    name that was brought to the node by hand. It would try to pull that, and no later test would have an agent.
    """
    name = f"{os.environ['DRABRIDGE_TEST_IMAGE']}-pulled"
    with tempfile.TemporaryDirectory(prefix="drapulled") as folder:
        Path(folder, "Containerfile").write_text(f"FROM {os.environ['DRABRIDGE_TEST_IMAGE']}\nLABEL pulled=yes\n")
        image.command("podman", "build", "--layers=false", "--isolation=chroot", "--format", "oci", "-t", name, folder)
    yield name
    image.remove(name)


@pytest.fixture
def release(tmp_path: Path, pulled: str) -> tuple[str, Path]:
    """What ``make release REGISTRY=localhost:5000/me`` writes."""
    where, dist, source = "localhost:5000/me", tmp_path / "dist", tmp_path / "source"
    dist.mkdir()
    shutil.copytree(ROOT / "deploy/chart", source / "deploy/chart")
    artefacts.chart(source, dist, 0, (registry(), where))
    saved = dist / f"drabridge-{__version__}-image-{MACHINES[platform.machine()]}.oci.tar"
    image.command("podman", "save", "-q", "--format", "oci-archive", "-o", saved, pulled, seconds=300)
    return where, dist


def test_helm_installs_it_from_a_registry_without_values_and_a_pod_gets_a_device(
    cluster: Cluster, release: tuple[str, Path], tmp_path: Path
) -> None:
    """Whoever has Helm and an address needs nothing else: no clone, no values, no image of their own."""
    where, dist = release
    if not Path("/dev/kvm").exists():
        pytest.skip("this machine has no /dev/kvm")
    inside = ["nsenter", "--target", str(cluster.node().init()), "--net", "--"]  # there it is localhost
    with docker_registry.running(tmp_path, port=5000, before=inside):
        push = [*inside, sys.executable, "-m", "deploy.release.push", str(dist), "--registry", where, "--plain-http"]
        image.command(*push, seconds=300)
        words = [
            *inside,
            sys.executable,
            "-c",
            HELM,
            f"oci://{where}/charts/drabridge",
            NAMESPACE,
            str(TIMEOUT_SECONDS),
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=4 * TIMEOUT_SECONDS, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert "every node that has /dev/kvm offers example.com/kvm" in json.dumps(said["notes"])
    assert __version__ in said["tested"]["logs"]
