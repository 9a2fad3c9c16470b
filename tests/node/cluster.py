"""A Kubernetes cluster of real programs on this machine: one control plane, any number of nodes.

Everything that it is lies in one folder; :meth:`Cluster.open` finds it there again, in any process.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.node import build, images
from tests.node.errors import NodeError
from tests.node.machine import Machine, Network, ip
from tests.node.releases import DEFAULT, Release, release

if TYPE_CHECKING:
    from tests.node.certificates import Authority

Json = dict[str, Any]

FOLDER = Path("/var/tmp/drabridge-cluster")
KEPT = ("/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/var/lib/etcd", "/var/log", "/etc/cdi", "/tmp")
OF_MACHINES = (*KEPT, "/run", "/var/run", "/dev", "/proc", "/sys")
"""Places where each machine has files of its own (boot.sh), and so cannot see the cluster's."""
CONTROL = "control-plane"
CONTROL_PROGRAMS = ("etcd", "apiserver", "kcm", "scheduler")
NODE_PROGRAMS = ("containerd", "kubelet")
VERBS = ("start", "stop", "restart", "kill", "freeze", "thaw")
SERVICE = "10.0.0.1"  # the API server's, for pods
SERVICES = "10.0.0.0/24"
API_SECONDS = 180.0  # 8 s on an idle machine
NODE_SECONDS = 180.0
POLL_SECONDS = 0.2
NETWORKS = 50
PACKAGES = {  # what must be there -> Debian's package
    "runc": "runc",
    "nsenter": "util-linux",
    "ip": "iproute2",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "/bin/busybox": "busybox-static",
    "losetup": "mount",
}
CONTAINERD = """\
version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{pause}"
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true  # where CAP_SYS_RESOURCE is missing
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/usr/lib/cni", "{tools}"]
conf_dir = "{folder}/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false
"""
SOCKET = "/run/containerd/containerd.sock"


@dataclass
class NodeSpec:
    """What a node is: its release, labels, and what differs from the usual in kubelet's configuration."""

    name: str
    index: int
    release: str = DEFAULT
    labels: dict[str, str] = field(default_factory=dict)
    kubelet: Json = field(default_factory=dict)
    """More of KubeletConfiguration, for example ``{"topologyManagerPolicy": "single-numa-node"}``."""
    gates: dict[str, bool] = field(default_factory=dict)
    disks: list[str] = field(default_factory=list)
    """Loop devices that only this node has, as ``loop8``."""


@dataclass
class Spec:
    """What a cluster is: written to ``cluster.json``."""

    number: int
    release: str = DEFAULT
    gates: dict[str, bool] = field(default_factory=dict)
    """Of the control plane."""
    runtime_config: str = ""
    """More API versions, as kube-apiserver's --runtime-config has them."""
    nodes: list[NodeSpec] = field(default_factory=list)


class Cluster:
    """Start, disturb and end a cluster. Everything here needs root."""

    def __init__(self, folder: Path, spec: Spec) -> None:
        self.folder = folder
        self.spec = spec
        self.network = Network(spec.number)
        self.control = Machine(CONTROL, 0, folder / "machines" / CONTROL, self.network)

    # --- a cluster as a whole ---------------------------------------------------------------------------------------

    @classmethod
    def open(cls, folder: Path = FOLDER) -> Cluster:
        """Return the cluster of the folder. Raises NodeError if there is none."""
        try:
            said = json.loads((folder / "cluster.json").read_text())
        except FileNotFoundError:
            raise NodeError(f"There is no cluster in {folder}: start one by `python -m tests.node up`.") from None
        nodes = [NodeSpec(**one) for one in said.pop("nodes")]
        return cls(folder, Spec(nodes=nodes, **said))

    @classmethod
    def up(
        cls,
        folder: Path = FOLDER,
        *,
        of: str = DEFAULT,
        nodes: Sequence[NodeSpec] = (),
        gates: Mapping[str, bool] | None = None,
        runtime_config: str = "",
        say: Callable[[str], None] = build.tell,
    ) -> Cluster:
        """Build what is missing and start a new cluster in the folder; return when all nodes are Ready.

        What a cluster there has left that ended without ``clean`` is removed first. Raises NodeError, with nothing
        left running, where that is not possible.
        """
        check_host()
        wanted = {name: release(name) for name in (of, *(one.release for one in nodes))}
        if any(folder.absolute().is_relative_to(place) for place in OF_MACHINES):
            raise NodeError(f"{folder}: a node has files of its own there. Choose a folder as {FOLDER}.")
        for needed in wanted.values():
            build.built(needed, say)
        if (folder / "cluster.json").exists():
            if cls.open(folder).runs():
                raise NodeError(f"A cluster runs already in {folder}: end it by `python -m tests.node clean`.")
            cls.open(folder).clean()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        cluster = cls(folder, Spec(free_network(), of, dict(gates or {}), runtime_config))
        cluster.save()
        try:
            cluster._begin(say)
            for one in nodes:
                cluster.add(one, wait=False)
            cluster.wait_ready(say)
        except BaseException:
            cluster.down()  # the logs stay
            raise
        return cluster

    def save(self) -> None:
        """Write what the cluster is, at once or not at all."""
        half = self.folder / "cluster.json.half"
        half.write_text(json.dumps(asdict(self.spec), indent=1))
        half.rename(self.folder / "cluster.json")

    def _begin(self, say: Callable[[str], None]) -> None:
        authority = self._authority()
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
        hosts = (*names, self.control.address, SERVICE, "127.0.0.1")
        authority.issue("apiserver", "kube-apiserver", hosts=hosts)
        authority.key_pair("sa")
        for name, user, group in (
            ("admin", "admin", "system:masters"),
            ("scheduler", "system:kube-scheduler", ""),
            ("kcm", "system:kube-controller-manager", ""),
        ):
            authority.issue(name, user, group)
            authority.kubeconfig(name, self.server)
        images.write(self.folder / "images")
        self.boot_control()
        say(f"control plane of Kubernetes {release(self.spec.release).version} answers at {self.server}")

    def boot_control(self) -> None:
        """Start the control plane's machine and programs; return when the API server is ready."""
        self.control.boot()
        self.control.run(["ip", "address", "add", f"{SERVICE}/32", "dev", "lo"])
        for one in self.nodes():
            self._connect(one)
        for program in ("etcd", "apiserver"):
            self.start(self.control, program)
        self._wait_api()
        for program in ("kcm", "scheduler"):  # the first gives up if nobody answers for a while
            self.start(self.control, program)

    def _authority(self) -> Authority:
        from tests.node.certificates import Authority  # needs a package that a node without an API server does not

        return Authority(self.folder / "pki")

    def _wait_api(self) -> None:
        self._wait("the API server", API_SECONDS, lambda: self.get("/readyz") is not None, self.control, "apiserver")

    def runs(self) -> bool:
        """Whether any machine of the cluster is on."""
        return any(one.init() for one in self.machines())

    def down(self) -> None:
        """End every process. Files stay, so that logs can be read."""
        for one in reversed(self.machines()):
            one.off()
        self._remove_network()

    def clean(self) -> None:
        """End every process and remove all that the cluster has left on this machine."""
        self.down()
        for node in self.spec.nodes:
            for disk in node.disks:
                subprocess.run(["losetup", "--detach", f"/dev/{disk}"], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _remove_network(self) -> None:
        subprocess.run(["ip", "link", "delete", self.network.bridge], check=False, capture_output=True)

    # --- what there is ----------------------------------------------------------------------------------------------

    @property
    def server(self) -> str:
        return f"https://{self.control.address}:443"

    @property
    def kubeconfig(self) -> Path:
        """An administrator's."""
        return self.folder / "pki/admin.kubeconfig"

    def machines(self) -> list[Machine]:
        """The control plane's, then the nodes'."""
        return [self.control, *self.nodes()]

    def nodes(self) -> list[Machine]:
        return [self._machine(one) for one in self.spec.nodes]

    def node(self, name: str = "") -> Machine:
        """Return the node of that name, or the first. Raises NodeError."""
        return self._machine(self.node_spec(name))

    def node_spec(self, name: str = "") -> NodeSpec:
        for one in self.spec.nodes:
            if name in ("", one.name):
                return one
        known = ", ".join(one.name for one in self.spec.nodes) or "none"
        raise NodeError(f"There is no node {name!r}. Nodes: {known}.")

    def _machine(self, spec: NodeSpec) -> Machine:
        return Machine(spec.name, spec.index, self.folder / "machines" / spec.name, self.network)

    def machine_of(self, program: str, node: str = "") -> Machine:
        """Where a program runs. Raises NodeError for one that there is not."""
        if program in CONTROL_PROGRAMS:
            return self.control
        if program in NODE_PROGRAMS:
            return self.node(node)
        raise NodeError(f"There is no program {program!r}. Programs: {', '.join(CONTROL_PROGRAMS + NODE_PROGRAMS)}.")

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        pki = self.folder / "pki"
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        return context

    def get(self, path: str) -> str | None:
        """What the API server says; None while it does not."""
        return self._ask("GET", path)

    def delete(self, path: str) -> None:
        """Delete an object, if it is there and the API server answers."""
        self._ask("DELETE", path)

    def _ask(self, method: str, path: str) -> str | None:
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._tls))
        request = urllib.request.Request(self.server + path, method=method)
        try:
            with urllib.request.build_opener(*handlers).open(request, timeout=5) as answer:
                return str(answer.read().decode())
        except (OSError, urllib.error.HTTPError):
            return None

    def ready(self, name: str) -> bool:
        """Whether the node is Ready."""
        said = self.get(f"/api/v1/nodes/{name}")
        conditions = json.loads(said)["status"].get("conditions", ()) if said else ()
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    # --- nodes ------------------------------------------------------------------------------------------------------

    def add(self, spec: NodeSpec, *, wait: bool = True, say: Callable[[str], None] = build.tell) -> Machine:
        """Start a further node. Its index is chosen here."""
        if any(one.name == spec.name for one in self.spec.nodes):
            raise NodeError(f"There is a node {spec.name} already.")
        build.built(release(spec.release), say)
        spec.index = max((one.index for one in self.spec.nodes), default=0) + 1
        self.spec.nodes.append(spec)
        self.save()
        self.admit(spec.name)
        machine = self._machine(spec)
        self.boot(machine)
        if wait:
            self.wait_ready(say)
        return machine

    def admit(self, name: str) -> None:
        """Write the certificate and kubeconfig of a node of this name."""
        authority = self._authority()
        authority.issue(name, f"system:node:{name}", "system:nodes")
        authority.kubeconfig(name, self.server)

    def remove(self, name: str) -> None:
        """End a node, and forget it: its Node object, its disks, its folder."""
        machine, spec = self.node(name), self.node_spec(name)
        machine.off()
        self.delete(f"/api/v1/nodes/{name}")
        for disk in spec.disks:
            subprocess.run(["losetup", "--detach", f"/dev/{disk}"], check=False, capture_output=True)
        shutil.rmtree(machine.folder, ignore_errors=True)
        self.spec.nodes.remove(spec)
        self.save()

    def boot(self, machine: Machine) -> None:
        """Start a node's machine, its network and its programs."""
        machine.boot()
        machine.route(f"{SERVICE}/32", self.control.address)
        self._connect(machine)
        self._hide_disks()
        self.start(machine, "containerd")
        for path in sorted((self.folder / "images").glob("*.tar")):
            self._import(machine, path)
        self.start(machine, "kubelet")

    def _connect(self, machine: Machine) -> None:
        """Routes between this node's pods and everybody else."""
        pods = self.network.pods(machine.index)
        via = machine.address
        for other in self.machines():
            if other.index != machine.index and other.init():
                other.route(pods, via)
                if other.index:
                    machine.route(self.network.pods(other.index), other.address)
        ip("route", "replace", pods, "via", via)  # for tests, which run on the host

    def reboot(self, name: str = "") -> None:
        """Cut a node's power and boot it again: no process survives, /run is empty, the boot id is another."""
        machine = self.node(name)
        machine.off()
        self.boot(machine)

    def wait_ready(self, say: Callable[[str], None] = build.tell) -> None:
        """Return when every node is Ready. Raises NodeError with the end of kubelet's log."""
        for spec in self.spec.nodes:
            ready = lambda name=spec.name: self.ready(name)  # noqa: E731
            self._wait(f"node {spec.name} to be Ready", NODE_SECONDS, ready, self._machine(spec), "kubelet")
            say(f"node {spec.name} of Kubernetes {release(spec.release).version} is Ready")

    def import_image(self, archive: Path) -> None:
        """Bring an image (an OCI or Docker archive) to all nodes, and to those that are added later."""
        if not archive.is_file():
            raise NodeError(f"{archive}: no such file.")
        kept = self.folder / "images" / archive.name
        if kept.resolve() != archive.resolve():
            shutil.copy(archive, kept)
        for machine in self.nodes():
            self._import(machine, kept)

    def _import(self, machine: Machine, archive: Path) -> None:
        ctr = [*self._programs(machine, "ctr"), "--address", SOCKET, "--namespace", "k8s.io"]
        machine.run([*ctr, "images", "import", str(archive)], seconds=300.0)

    # --- disks ------------------------------------------------------------------------------------------------------

    def add_disk(self, name: str = "", *, bytes_: int = 1 << 20) -> str:
        """Give a node a disk that no other node has; return its kernel name, as ``loop8``."""
        spec = self.node_spec(name)
        path = self.folder / "machines" / spec.name / "disks" / f"{len(spec.disks)}.img"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.truncate(path, bytes_)
        words = ["losetup", "--find", "--show", str(path)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NodeError(f"No loop device: {done.stderr.strip()}")
        disk = Path(done.stdout.strip()).name
        spec.disks.append(disk)
        self.save()
        self._hide_disks()
        return disk

    def _hide_disks(self) -> None:
        """Take each node's disks out of the other nodes' /sys, which the kernel shows to all alike."""
        for spec in self.spec.nodes:
            machine = self._machine(spec)
            for other in self.spec.nodes:
                if other.name == spec.name or not machine.init():
                    continue
                for disk in other.disks:
                    place = f"/sys/devices/virtual/block/{disk}"
                    hide = f"[ ! -e {place}/uevent ] || mount -t tmpfs -o ro,size=0 hidden {place}"
                    machine.run(["sh", "-c", hide])

    # --- programs ---------------------------------------------------------------------------------------------------

    def start(self, machine: Machine, program: str) -> None:
        """Start a program with the settings that the cluster or node has now."""
        words = self._words(machine, program)
        machine.start(program, [*self._programs(machine, words[0]), *words[1:]])
        if program == "containerd":
            ctr = [*self._programs(machine, "ctr"), "--address", SOCKET, "version"]
            self._wait("containerd", API_SECONDS, lambda: _works(machine, ctr), machine, program)

    def restart(self, program: str, node: str = "") -> None:
        machine = self.machine_of(program, node)
        machine.stop(program)
        self.start(machine, program)

    def fault(self, verb: str, program: str, node: str = "") -> None:
        """``start``, ``stop``, ``kill``, ``restart``, ``freeze`` or ``thaw`` a program. Raises NodeError."""
        machine = self.machine_of(program, node)
        if verb in ("kill", "freeze", "thaw") and not machine.pid(program):
            raise NodeError(f"{program} does not run on {machine.name}.")
        match verb:
            case "start":
                self.start(machine, program)
            case "stop":
                machine.stop(program)
            case "kill":
                machine.stop(program, by=signal.SIGKILL)
            case "restart":
                self.restart(program, node)
            case "freeze":
                machine.freeze(program)
            case "thaw":
                machine.thaw(program)
            case _:
                raise NodeError(f"{verb!r}: write {', '.join(VERBS)}.")

    def _restart_control(self) -> None:
        """Restart the API server, and when it is ready those that ask it."""
        self.restart("apiserver")
        self._wait_api()
        for program in ("kcm", "scheduler"):
            self.restart(program)

    def configure(self, *, gates: Mapping[str, bool], kubelet: Json, node: str = "") -> tuple[dict[str, bool], Json]:
        """Give the cluster these gates and a node more of kubelet's configuration; return those of before.

        Programs with other settings than before are restarted, the API server first, whom all others ask.
        """
        spec = self.node_spec(node)
        before = (dict(self.spec.gates), dict(spec.kubelet))
        self.spec.gates, spec.gates, spec.kubelet = dict(gates), dict(gates), dict(kubelet)
        self.save()
        if dict(gates) != before[0]:
            self._restart_control()
        self.restart("kubelet", node)
        return before

    def upgrade(self, name: str, to: str) -> None:
        """Restart a node's kubelet as that of another release; pods stay."""
        spec = self.node_spec(name)
        build.built(release(to))
        spec.release = to
        self.save()
        self.restart("kubelet", spec.name)

    def upgrade_control(self, to: str) -> None:
        """Restart the control plane as that of another release, the API server first."""
        build.built(release(to))
        self.spec.release = to
        self.save()
        self._restart_control()

    def _release(self, machine: Machine) -> Release:
        return release(self.spec.release if machine.index == 0 else self.node_spec(machine.name).release)

    def _programs(self, machine: Machine, program: str) -> list[str]:
        """The words that run a program of the machine's release."""
        folders = build.built(self._release(machine))
        found = next((str(one / program) for one in folders if (one / program).exists()), program)
        path = ":".join([*map(str, folders), os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")])
        return ["env", f"PATH={path}", found]

    def _words(self, machine: Machine, program: str) -> list[str]:
        if program == "kubelet":
            return self.kubelet_words(self.node_spec(machine.name), machine)
        if program == "containerd":
            return self.containerd_words(machine)
        return self._control_words(program)

    def _control_words(self, program: str) -> list[str]:
        pki = self.folder / "pki"
        gates = _gates(self.spec.gates)
        match program:
            case "etcd":
                urls = [f"--{name}-client-urls=http://127.0.0.1:2379" for name in ("listen", "advertise")]
                peers = "--listen-peer-urls=http://127.0.0.1:2380"
                return ["etcd", "--data-dir=/var/lib/etcd/data", *urls, peers, "--unsafe-no-fsync"]
            case "apiserver":
                more = [f"--runtime-config={self.spec.runtime_config}"] if self.spec.runtime_config else []
                return [
                    *("kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--secure-port=443"),
                    *(f"--advertise-address={self.control.address}", "--endpoint-reconciler-type=none"),
                    *(f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key"),
                    *(f"--client-ca-file={pki}/ca.crt", f"--service-cluster-ip-range={SERVICES}"),
                    *(f"--service-account-key-file={pki}/sa.pub", f"--service-account-signing-key-file={pki}/sa.key"),
                    *("--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=Node,RBAC"),
                    *(f"--kubelet-client-certificate={pki}/admin.crt", f"--kubelet-client-key={pki}/admin.key"),
                    *("--kubelet-preferred-address-types=InternalIP", "--enable-admission-plugins=NodeRestriction"),
                    *(*more, *gates),
                ]
            case "kcm":
                return [
                    *("kube-controller-manager", f"--kubeconfig={pki}/kcm.kubeconfig", "--leader-elect=false"),
                    *(f"--service-account-private-key-file={pki}/sa.key", f"--root-ca-file={pki}/ca.crt"),
                    *("--use-service-account-credentials", *gates),
                ]
            case "scheduler":
                config = f"--kubeconfig={pki}/scheduler.kubeconfig"
                return ["kube-scheduler", config, "--leader-elect=false", "--v=3", *gates]
        raise NodeError(f"There is no program {program!r}.")

    def containerd_words(self, machine: Machine) -> list[str]:
        """Write containerd's configuration below the machine's folder; return its command line."""
        cni = machine.folder / "cni"
        cni.mkdir(exist_ok=True)
        ipam = {"type": "host-local", "subnet": self.network.pods(machine.index), "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "ipMasq": False, "ipam": ipam}
        plugins = [bridge, {"type": "loopback"}]
        (cni / "10-pods.conflist").write_text(json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}))
        config = machine.folder / "containerd.toml"
        config.write_text(
            CONTAINERD.format(pause=images.PAUSE, folder=machine.folder, runc=shutil.which("runc"), tools=build.tools())
        )
        return ["containerd", "--config", str(config)]

    def kubelet_words(self, spec: NodeSpec, machine: Machine) -> list[str]:
        """Write kubelet's configuration below the machine's folder; return its command line.

        A node that was not admitted has no API server.
        """
        pki = self.folder / "pki"
        kubeconfig = pki / f"{spec.name}.kubeconfig"
        config: Json = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": True},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "enforceNodeAllocatable": ["pods"],
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "failSwapOn": False,
            "resolvConf": "",  # the host's may lead to /run, as Ubuntu's does, and there is no network anyway
            "readOnlyPort": 0,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "featureGates": {**spec.gates},
            **spec.kubelet,
        }
        path = machine.folder / "kubelet.json"
        path.write_text(json.dumps(config, indent=1))
        labels = ",".join(f"{key}={value}" for key, value in spec.labels.items())
        return [
            *(
                "kubelet",
                f"--config={path}",
                f"--hostname-override={spec.name}",
                f"--node-ip={machine.address}",
                "--v=4",
            ),
            *([f"--kubeconfig={kubeconfig}"] if kubeconfig.exists() else []),
            *([f"--node-labels={labels}"] if labels else []),
        ]

    def _wait(self, what: str, seconds: float, condition: Callable[[], bool], machine: Machine, program: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            ended = not machine.pid(program)
            if ended or time.monotonic() > deadline:
                why = f"{program} ended" if ended else f"waited {seconds:.0f} s"
                raise NodeError(f"{why} for {what}; the end of {machine.log(program)}:\n{tail(machine.log(program))}")
            time.sleep(POLL_SECONDS)


def tail(path: Path, lines: int = 30) -> str:
    """The last lines of a file; empty where there is none."""
    with contextlib.suppress(FileNotFoundError):
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    return ""


def check_host() -> None:
    """Raise NodeError where nodes cannot run: all that is missing, in one sentence each."""
    if os.geteuid() != 0:
        raise NodeError("Nodes need root: namespaces, mounts, control groups and a bridge. Try `sudo make cluster`.")
    missing = [
        package
        for thing, package in PACKAGES.items()
        if not (build.tool(thing).exists() if thing.startswith("/") else shutil.which(thing))
    ]
    if missing:
        raise NodeError(f"Debian's packages are missing: apt-get install {' '.join(sorted(missing))}")
    if not any(Path("/sys/fs/cgroup").glob("*")):
        raise NodeError("There are no control groups below /sys/fs/cgroup: nodes need them, version 1 or 2.")


def free_network() -> int:
    """Make the bridge of a network that nobody uses; return its number."""
    for number in range(NETWORKS):
        network = Network(number)
        taken = subprocess.run(["ip", "route", "show", f"10.{200 + number}.0.0/16"], capture_output=True, text=True)
        taken_below = subprocess.run(
            ["ip", "route", "show", "root", f"10.{200 + number}.0.0/16"], capture_output=True, text=True
        )
        if taken.stdout or taken_below.stdout:
            continue
        made = subprocess.run(["ip", "link", "add", network.bridge, "type", "bridge"], capture_output=True)
        if made.returncode == 0:
            ip("address", "add", f"{network.host}/24", "dev", network.bridge)
            ip("link", "set", network.bridge, "up")
            return number
    raise NodeError(f"No network is free: 10.200.0.0/16 to 10.{199 + NETWORKS}.0.0/16 are all in use (`ip route`).")


def _gates(gates: Mapping[str, bool]) -> list[str]:
    said = ",".join(f"{name}={str(on).lower()}" for name, on in gates.items())
    return [f"--feature-gates={said}"] if said else []


def _works(machine: Machine, words: Sequence[str]) -> bool:
    try:
        machine.run(words)
    except (NodeError, subprocess.TimeoutExpired):
        return False
    return True
