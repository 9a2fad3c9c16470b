"""``python -m tests.lab.inside.static_pod``: run a pod on a node of ``tests.node`` in the guest.

There is no API server: kubelet reads the pod from a file. The guest has control groups of version 2 alone, with
``nsdelegate``, and no network, as a machine with a GPU had that `tests.gpu` ran on.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.node import images
from tests.node.cluster import Cluster, NodeSpec, Spec, check_host, free_network, tail
from tests.node.machine import CGROUPS, Machine

FOLDER = Path("/var/tmp/static-pod")
SECONDS = 900.0
POLL_SECONDS = 5.0  # looking for kubelet takes a while in the guest
SAYS = "cd /sys/fs/cgroup; cat /proc/self/cgroup memory.max cpu.max; ip address show eth0; echo over"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "one", "namespace": "default"},
    "spec": {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "volumes": [{"name": "out", "hostPath": {"path": "/tmp"}}],
        "containers": [
            {
                "name": "main",
                "image": images.BUSYBOX,
                "imagePullPolicy": "Never",
                "command": ["sh", "-c", f"({SAYS}) >/out/said 2>&1"],
                "volumeMounts": [{"name": "out", "mountPath": "/out"}],
                "resources": {"limits": {"memory": "64Mi", "cpu": "500m"}},
            }
        ],
    },
}


def main() -> None:
    check_host()
    FOLDER.mkdir(parents=True)
    pods = FOLDER / "pods"
    pods.mkdir()
    (pods / "one.json").write_text(json.dumps(POD))
    cluster = Cluster(FOLDER, Spec(free_network()))
    anybody = {"anonymous": {"enabled": True}, "webhook": {"enabled": False}}
    cluster.spec.nodes.append(NodeSpec("node-a", 1, kubelet={"authentication": anybody, "staticPodPath": str(pods)}))
    machine = cluster.node()
    machine.boot()
    try:
        cluster.start(machine, "containerd")
        for archive in images.write(FOLDER / "images"):
            cluster.import_image(archive)
        cluster.start(machine, "kubelet")
        print(_said(machine), end="")
    finally:
        machine.off()
    print("left:", *CGROUPS.glob(f"{cluster.network.bridge}*"))


def _said(machine: Machine) -> str:
    """What the pod has said, once it has said all."""
    file, deadline = machine.disk("/tmp/said"), time.monotonic() + SECONDS
    while not (file.exists() and file.read_text().endswith("over\n")):
        if time.monotonic() > deadline or not machine.pid("kubelet"):
            sys.exit(f"no pod ran; the end of kubelet's log:\n{tail(machine.log('kubelet'))}")
        time.sleep(POLL_SECONDS)
    return file.read_text()


if __name__ == "__main__":
    main()
