"""A real kubelet and containerd in the guest, joined to a control plane on this machine.

What the node needs (programs, certificates, configuration, images) is on a disk that the guest mounts at the path which
the cluster's folder has here, so every path in a configuration is right on both sides.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.lab.guest import OUTSIDE, Guest, GuestError
from tests.lab.image import make_disk
from tests.lab.shelf import Device
from tests.node import build
from tests.node.cluster import SOCKET, Cluster, NodeSpec
from tests.node.machine import Machine
from tests.node.releases import release

NAME = "lab"
PROGRAMS = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr")
READY_SECONDS = 600.0
POLL_SECONDS = 0.5
NETWORK = f"""\
for card in /sys/class/net/*; do
  if [ "$(cat $card/address)" = {OUTSIDE} ]; then card=${{card##*/}}; break; fi
done
ip address add 10.0.2.15/24 dev "$card"
ip link set "$card" up
ip route add default via 10.0.2.2
touch /etc/hosts
"""


class RealNode:
    """``guest``: where it runs; ``cluster``: what it has joined."""

    def __init__(self, guest: Guest, cluster: Cluster) -> None:
        self.guest = guest
        self.cluster = cluster

    def kubectl(self, *words: str, stdin: str = "") -> str:
        """Ask the cluster; returns what kubectl wrote. Raises CalledProcessError."""
        command = ["kubectl", "--kubeconfig", str(self.cluster.kubeconfig), *words]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True, timeout=60).stdout

    def apply(self, manifest: str) -> None:
        self.kubectl("apply", "-f", "-", stdin=manifest)

    def get(self, *words: str) -> dict[str, Any]:
        """One object."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *words, "-o", "json"))
        return found

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 300.0) -> Any:
        """Wait until it is true; return its value. Raises GuestError with the end of the node's logs."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            if time.monotonic() > deadline:
                logs = self.guest.run("tail -n 20 /var/log/containerd.log /var/log/kubelet.log /var/log/agent.log").out
                raise GuestError(f"waited {seconds:g} s for {what}\n{logs}")
            time.sleep(POLL_SECONDS)
        return found

    def start(self, name: str, *words: str) -> None:
        """Start a program in the guest that goes on; its log is /var/log/NAME.log."""
        line = " ".join(f"'{word}'" for word in words)
        self.guest.run(f"setsid {line} >/var/log/{name}.log 2>&1 </dev/null &", check=True)


@contextlib.contextmanager
def real_node(devices: list[Device], kubelet: dict[str, Any]) -> Iterator[RealNode]:
    """Boot a guest with these devices, Ready in a cluster of its own. ``kubelet``: more of KubeletConfiguration."""
    with contextlib.ExitStack() as stack:
        above = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lab-node", dir="/var/tmp")))
        cluster = Cluster.up(folder := above / "cluster")
        stack.callback(cluster.clean)
        cluster.admit(NAME)
        machine = Machine(NAME, 1, folder / "machines" / NAME, cluster.network)
        machine.folder.mkdir(parents=True)
        containerd = cluster.containerd_words(machine)
        words = cluster.kubelet_words(NodeSpec(NAME, machine.index, kubelet=kubelet), machine)
        disk = above / "node.img"
        _write_disk(cluster, disk)
        guest = stack.enter_context(Guest(devices=devices, spare=(), more=disk, outside=True))
        node = RealNode(guest, cluster)
        guest.run(f"mkdir -p {folder} && mount -o ro /dev/disk/by-id/virtio-lab-more {folder}", check=True)
        guest.run("modprobe overlay; mount --make-rshared /", check=True)
        guest.run(f"{NETWORK}ip address add {machine.address}/32 dev lo", check=True)
        path = ("env", f"PATH={folder}/programs:/usr/sbin:/usr/bin:/sbin:/bin")
        node.start("containerd", *path, *containerd)
        ctr = f"{folder}/programs/ctr --address {SOCKET} --namespace k8s.io"
        node.until(lambda: guest.run(f"{ctr} version").rc == 0, "containerd")
        guest.run(
            f"set -e; for one in {folder}/images/*.tar; do {ctr} images import $one; done", seconds=300, check=True
        )
        node.start("kubelet", *path, *words)
        node.until(lambda: cluster.ready(NAME), "the node to be Ready", READY_SECONDS)
        yield node


def _write_disk(cluster: Cluster, disk: Path) -> None:
    """What the node reads of the cluster's folder, and its programs."""
    with tempfile.TemporaryDirectory(prefix="lab-node", dir=disk.parent) as name:
        to = Path(name)
        for part in ("pki", "images", f"machines/{NAME}"):
            shutil.copytree(cluster.folder / part, to / part)
        (to / "programs").mkdir()
        for program in PROGRAMS:
            path = build.program(program, release(cluster.spec.release))
            assert path is not None, program
            shutil.copy(path, to / "programs" / program)
        make_disk(disk, "640M", to)
