"""A real kubelet on the lab's hardware: NUMA nodes, disks that come and go, limits and claims in real containers.

Only here is what kubelet makes of a device's NUMA node seen with devices that have one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab import shelf
from tests.lab.image import WHERE
from tests.lab.inside.nodes import DISKS, DRIVER, HEAD, NVME
from tests.lab.real_node import NAME, RealNode, real_node
from tests.node.images import BUSYBOX

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not shutil.which("go"), reason="builds kubelet: install Go"),
    pytest.mark.skipif(not shutil.which("kubectl"), reason="apt-get install kubernetes-client"),
]
DEVICES = {"nvme2", "nvme3"}
FAR, NEAR = "NV-0003", "NV-0002"  # the second NUMA node's; the first root has no node: its firmware says nothing
FOR_LIMITS, FOR_CLAIMS = (
    f"{HEAD}{DISKS}  lanes: {lanes}\n" for lanes in ("{legacy: '*', dra: 0}", "{legacy: 0, dra: '*'}")
)
READS = "until head -c 512 /dev/disk0 | wc -c >/dev/termination-log; do sleep 1; done; sleep {seconds}"
SECOND_NODE = "has(device.attributes['resource.kubernetes.io'].numaNode) && " + (
    "device.attributes['resource.kubernetes.io'].numaNode == 1"
)  # without has() a device that lacks it is an error of the selector, and the pod waits for ever
CLAIM = f"""\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: disk}}
spec:
  selectors: [{{cel: {{expression: "device.driver == '{DRIVER}'"}}}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: far}}
spec:
  devices:
    requests:
    - name: disk
      exactly:
        deviceClassName: disk
        selectors: [{{cel: {{expression: "{SECOND_NODE}"}}}}]
---
"""


def pod(name: str, *, claim: str = "", seconds: int = 100000) -> str:
    """A pod that reads its disk, by limits or with a claim. It has the node's network: there is no other."""
    resources = "claims: [{name: disk}]" if claim else f"limits: {{{NVME}: 1}}"
    of_pod = f"\n  resourceClaims: [{{name: disk, resourceClaimName: {claim}}}]" if claim else ""
    return f"""\
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  hostNetwork: true
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  nodeName: {NAME if not claim else '""'}{of_pod}
  containers:
  - name: main
    image: {BUSYBOX}
    imagePullPolicy: Never
    command: [sh, -c, '{READS.format(seconds=seconds)}']
    resources: {{{resources}}}
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[RealNode]:
    """A node with two disks and the agent, which begins when it is Ready."""
    devices = [device for device in shelf.AT_BOOT if device.name in DEVICES]
    with real_node(devices, {"topologyManagerPolicy": "single-numa-node"}) as node:
        configure(node, FOR_LIMITS)
        kubeconfig = node.cluster.kubeconfig
        options = ("--config", "/root/config.yaml", "--kubeconfig", str(kubeconfig), "--node-name", NAME)
        node.start("agent", "env", f"PYTHONPATH={WHERE}", "python3", "-m", "drabridge", "run", *options)
        node.until(lambda: allocatable(node) == "2", "two disks on the node")
        yield node


def configure(node: RealNode, config: str) -> None:
    """Write the agent's configuration; it reads it at once."""
    node.guest.run("cat >/root/config.new && mv /root/config.new /root/config.yaml", stdin=config, check=True)


def allocatable(node: RealNode) -> str:
    return str(node.get("node", NAME)["status"]["allocatable"].get(NVME, "0"))


def phase(node: RealNode, name: str) -> str:
    return str(node.get("pod", name)["status"].get("phase"))


def owners(node: RealNode) -> dict[str, str]:
    """Who has each disk, by the agent's own command."""
    rows = json.loads(node.guest.run("python3 -m drabridge status -o json", check=True).out)["devices"]
    return {row["name"]: row["owner"] for row in rows}


def slices(node: RealNode) -> dict[str, dict[str, Any]]:
    return {
        device["name"]: device["attributes"]
        for one in node.get("resourceslices")["items"]
        for device in one["spec"].get("devices") or ()
    }


def test_a_device_without_a_numa_node_is_in_no_hint_beside_one_that_has_it(lab: RealNode) -> None:
    """The simulated kubelet says the same in inside/test_numa.py."""
    lab.apply(pod("a"))
    lab.until(lambda: phase(lab, "a") == "Running", "the first pod")
    assert owners(lab) == {FAR.lower(): "legacy", NEAR.lower(): "none"}
    lab.apply(pod("b"))
    lab.until(lambda: phase(lab, "b") == "Failed", "kubelet to refuse the second pod")
    assert lab.get("pod", "b")["status"]["reason"] == "TopologyAffinityError"
    lab.kubectl("delete", "pod", "a", "b", "--wait=false")
    lab.until(lambda: set(owners(lab).values()) == {"none"}, "the disk to be let go")


def test_kubelet_follows_a_disk_that_is_unplugged_and_comes_back(lab: RealNode) -> None:
    lab.guest.unplug("nvme2")
    lab.until(lambda: allocatable(lab) == "1", "the node to have one disk less")
    lab.guest.plug("nvme2")
    lab.until(lambda: allocatable(lab) == "2", "the node to have both again")


def test_a_claim_chooses_by_the_numa_node(lab: RealNode) -> None:
    configure(lab, FOR_CLAIMS)
    lab.until(lambda: slices(lab).keys() == {FAR.lower(), NEAR.lower()}, "both disks in slices")
    assert slices(lab)[FAR.lower()]["resource.kubernetes.io/numaNode"] == {"int": 1}
    assert "resource.kubernetes.io/numaNode" not in slices(lab)[NEAR.lower()]
    lab.apply(CLAIM + pod("c", claim="far", seconds=20))
    lab.until(lambda: owners(lab)[FAR.lower()] == "dra-prepared", "the claim to be prepared")
    (result,) = lab.get("resourceclaim", "far")["status"]["allocation"]["devices"]["results"]
    assert result["device"] == FAR.lower()
    lab.until(lambda: phase(lab, "c") == "Succeeded", "the pod with the claim")
    (container,) = lab.get("pod", "c")["status"]["containerStatuses"]
    assert container["state"]["terminated"]["message"].strip() == "512"
