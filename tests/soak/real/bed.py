"""What a soak on real nodes stands on: the installed chart, the node's own files, and the script that makes faults.

Everything here runs beside the node, as root: the judge reads kubelet's checkpoint, the CDI directory and the
containers' journal there, and asks the agent over its socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import secrets
import shutil
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from drabridge.cli.agent_client import ask
from drabridge.errors import ClusterError, DrabridgeError
from drabridge.evidence import checkpoint
from drabridge.kube.api import ConflictError, Kind, NotFoundError
from drabridge.kube.client import KubernetesCluster
from drabridge.system.paths import KUBELET_ROOT, Paths
from tests.cluster.bed import DRIVER as TESTS_DRIVER
from tests.cluster.bed import MANAGER, NAMESPACE, NODES, PODS, apply_node, wait_for
from tests.cluster.real_bed import DAEMON_SETS, RealBed, chart
from tests.node.cluster import Cluster, NodeSpec
from tests.node.errors import NodeError
from tests.soak.real.container import DEVICES, JOURNAL, MUTEX, Json, program
from tests.soak.real.judge import KubeletRecord

Log = Callable[[str], None]

DRIVER = "soak.example.com"
RESOURCE = "soak.example.com/device"
CLASS = "drabridge-soak"
NAMES = ("full", "kmsg", "null", "random", "urandom", "zero")  # harmless, and on every Linux
LEGACY = DRA = 3
CONFIG: Json = {
    "apiVersion": "drabridge/v1alpha1",
    "kind": "AgentConfig",
    "driver": DRIVER,
    "udevEvents": "kernel",
    # A third of the defaults, to see more moves; absentSeconds, in which containers may still be dying, is one.
    "safety": {
        "minHoldSeconds": 10,
        "unconfirmedSeconds": 40,
        "absentSeconds": 10,
        "settleSeconds": 10,
        "quiesceSeconds": 10,
    },
    "resources": [
        {
            "name": RESOURCE,
            "match": [{"subsystem": "mem", "sysname": list(NAMES)}],
            "id": ["{sysname}"],
            "nodes": [{"from": "devnode", "as": f"{DEVICES}{{sysname}}"}],
            "lanes": {"legacy": LEGACY, "dra": DRA},
            "deviceClass": {"name": CLASS},
        }
    ],
}
SHARED_CONFIG: Json = {**CONFIG, "resources": [{**CONFIG["resources"][0], "lanes": {"shared": "*"}}]}
"""Every device for both APIs, whichever comes first."""

EVENTS = Kind("", "v1", "events")

NEEDED = {
    "KUBECONFIG": "a kubeconfig of an administrator",
    "DRABRIDGE_TEST_IMAGE": "the agent's image, known to the node",
    "DRABRIDGE_TEST_BUSYBOX": "an image with sh and flock, known to the node",
    "DRABRIDGE_TEST_CLUSTER": "the folder of a cluster that `python -m tests.node up` has started",
}
READY_SECONDS = 120.0
POLL_SECONDS = 0.3
CHECKPOINT_SECONDS = 0.2  # kubelet keeps a pod that ended on record until its next Allocate


def missing(environ: Mapping[str, str]) -> list[str]:
    """What a soak on a real node needs and does not have here, in words."""
    return [f"{name} ({what})" for name, what in NEEDED.items() if not environ.get(name)]


def anonymous_kib(smaps_rollup: str) -> int:
    """Anonymous memory in KiB, from the text of /proc/PID/smaps_rollup: what the node has to have for this process."""
    for line in smaps_rollup.splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1])
    raise ValueError("no line Anonymous")


class RealNode(RealBed):
    """The bed of the cluster tests with its own configuration, which also reads and changes the node's files.

    It is the only node that has an agent, or one of several.
    """

    def __init__(
        self,
        api: KubernetesCluster,
        node: Json,
        locks: str,
        log: Log,
        *,
        shared: bool = False,
        config: Json | None = None,
        of: Sequence[str] = (),
    ) -> None:
        """``of``: the names of all nodes that have an agent, where these are several."""
        self.object_name = str(node["metadata"]["name"])
        hostname = node["metadata"]["labels"]["kubernetes.io/hostname"]
        super().__init__(api, self.object_name, hostname, config or (SHARED_CONFIG if shared else CONFIG))
        self.suffix = f"-{self.object_name}" if of else ""
        """Ends the names of this node's pods and claims; a claim of a template has more after it."""
        if of:
            self.values = {"affinity": on_nodes(of)}
            self.objects = chart(self.agent_image, "", self.config, values=self.values)
        self.shared = shared
        self.patience = READY_SECONDS
        self.log = log
        self.locks_on_node = locks
        self.rejected: dict[str, float] = {}  # pod UID -> wall seconds
        self.rebooted = 0.0
        """When the node came back from its last reboot, in wall seconds."""
        self._booked: set[tuple[str, str]] = set()

    def on_node(self, path: str) -> Path:
        """A path of the node as this process can open it. Raises OSError while the node is off."""
        try:
            return self.own("open the node's files").node(self.object_name).path(path)
        except NodeError as error:
            raise FileNotFoundError(str(error)) from None

    @property
    def paths(self) -> Paths:
        """Where the node's files are now: a reboot moves them."""
        return Paths.of(DRIVER, kubelet=self.on_node(str(KUBELET_ROOT)), cdi=self.on_node("/run/cdi"))

    @property
    def locks(self) -> Path:
        """The directory of the containers' locks and journal, which is there while the node is off, too."""
        return self.own("open the node's files").node(self.object_name).disk(self.locks_on_node)

    def program(self, seconds: float, *, shared: str = "", stubborn: bool = False) -> str:
        """What a container of the load runs."""
        return program(seconds, shared=shared, stubborn=stubborn)

    # --- the agent --------------------------------------------------------------------------------------------------

    async def status(self) -> Json | None:
        """The agent's own account; None while it is away."""
        try:
            found = await asyncio.to_thread(ask, self.paths.control_socket, "/status")
        except (DrabridgeError, OSError):
            return None
        return found if isinstance(found, dict) else None

    async def ready(self) -> bool:
        """Whether the agent that has the ledger says so: a standby has no socket."""
        found = await self.status()
        return bool(found and found["ready"])

    def agent_pid(self) -> int:
        """Who listens on the agent's socket. Raises OSError while nobody does."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
            one.settimeout(5.0)
            one.connect(str(self.paths.control_socket))
            peer = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", peer)[0])

    def memory_kib(self) -> tuple[int, int] | None:
        """The agent's pid and its anonymous memory; None while it is away."""
        with contextlib.suppress(OSError, ValueError):
            pid = self.agent_pid()
            return pid, anonymous_kib(Path(f"/proc/{pid}/smaps_rollup").read_text())
        return None

    async def agent_pods(self) -> list[Json]:
        pods = await super().agent_pods()
        return [one for one in pods if not self.suffix or one["spec"].get("nodeName") == self.object_name]

    def has_name(self, obj: Json) -> bool:
        """Whether the pod or claim is one of this node's load."""
        return self.suffix in obj["metadata"]["name"]

    async def restore(self) -> None:
        """The cluster as it was, and no ledger on the node. Raises AssertionError for what does not go."""
        await super().restore()
        self.forget()

    def forget(self) -> None:
        """Remove what agents that are gone have left on the node."""
        shutil.rmtree(self.paths.state, ignore_errors=True)
        for driver in (DRIVER, TESTS_DRIVER):  # no pod is left: remove the files that agents left for other drivers
            (self.paths.plugins_registry / f".drabridge-{driver}.hardware").unlink(missing_ok=True)

    async def roll_out(self) -> None:
        """Begin to replace the agent, as an upgrade does."""
        (daemon_set,) = (one for one in self.objects if one["kind"] == "DaemonSet")
        metadata = daemon_set["spec"]["template"]["metadata"]
        metadata["annotations"] = {**metadata.get("annotations", {}), "rolled-out": f"{time.time():.0f}"}
        await self.api.apply(DAEMON_SETS, daemon_set, manager=MANAGER, namespace=NAMESPACE)

    # --- the node and its parts -------------------------------------------------------------------------------------

    async def end_pod(self, name: str, *, forced: bool = False) -> bool:
        """Whether the API server took it. ``forced``: the object goes at once, whatever its containers do."""
        with contextlib.suppress(ClusterError):
            if not forced:
                await self.api.delete(PODS, name, namespace=NAMESPACE)
                return True
            await self.force_delete(name)
            try:
                await self.api.get(PODS, name, namespace=NAMESPACE)
            except NotFoundError:
                return True
        return False

    async def move_lanes(self, legacy: int) -> None:
        """Change lanes by the Node's annotation, as an administrator does remotely."""
        wish = {RESOURCE: {"legacy": legacy, "dra": len(NAMES) - legacy}}
        await apply_node(self, {f"{DRIVER}/lanes": json.dumps(wish)})

    async def watch_checkpoint(self) -> None:
        """Collect, until cancelled, which pods kubelet's checkpoint ever had as holders of which device."""
        seen = 0
        while True:
            with contextlib.suppress(OSError):
                folder = self.paths.device_plugins
                changed = (folder / checkpoint.FILE_NAME).stat().st_mtime_ns
                if changed != seen and (found := checkpoint.read(folder)) is not None:
                    seen = changed
                    for (resource, device), pods in found.items():
                        self._booked |= {(device, pod.uid) for pod in pods if resource == RESOURCE}
            await asyncio.sleep(CHECKPOINT_SECONDS)

    def dra_manager_state(self) -> str:
        """Kubelet's record of prepared claims; empty while there is none."""
        with contextlib.suppress(OSError):
            return (self.paths.kubelet / "dra_manager_state").read_text(errors="replace")
        return ""

    def kubelet_record(self) -> KubeletRecord:
        return KubeletRecord(frozenset(self._booked), dict(self.rejected))

    # --- what is written on the node --------------------------------------------------------------------------------

    def journal(self) -> str:
        with contextlib.suppress(OSError):
            return (self.locks / JOURNAL).read_text(errors="replace")
        return ""

    def note(self, verb: str, pod: str, uid: str) -> None:
        """A line of ours in the containers' journal, in its place among theirs, in whole seconds as theirs."""
        with (self.locks / JOURNAL).open("a") as file:
            file.write(f"{int(time.time())} {verb} {pod} {uid} -\n")

    def locked(self) -> list[str]:
        """Devices whose lock some container has."""
        found = []
        for path in sorted(self.locks.iterdir()):
            if path.name in (JOURNAL, MUTEX):
                continue
            with path.open("r+") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    found.append(path.name)
        return found

    def files(self) -> list[str]:
        """What is there for holders: CDI files, and records of claims."""
        found = [*self.paths.cdi.glob(f"{DRIVER}-*.json"), *(self.paths.state / "claims").glob("*.json")]
        return sorted(map(str, found))


async def comes_true(condition: Callable[[], Awaitable[Any]], seconds: float) -> bool:
    """Whether the condition came true in time. An API server that does not answer means: not yet."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(DrabridgeError):
            if await condition():
                return True
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(POLL_SECONDS)


async def create(api: KubernetesCluster, kind: Kind, body: Json) -> bool:
    """Whether the object is there now: made by this call, or by one before it whose answer was lost."""
    try:
        await api.create(kind, body, namespace=NAMESPACE)
    except ConflictError:
        return True
    except ClusterError:
        return False
    return True


def on_nodes(names: Sequence[str]) -> Json:
    """Return a pod's affinity to these nodes."""
    wanted = {"key": "kubernetes.io/hostname", "operator": "In", "values": [*names]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


async def chosen_node(api: KubernetesCluster, environ: Mapping[str, str]) -> Json:
    """The Node that the environment names, or the first that takes pods."""
    chosen = environ.get("DRABRIDGE_TEST_NODE")
    return next(
        one
        for one in (await api.list(NODES)).items
        if (one["metadata"]["name"] == chosen if chosen else not one["spec"].get("unschedulable"))
    )


@contextlib.asynccontextmanager
async def real_node(
    environ: Mapping[str, str], log: Log, *, shared: bool = False, config: Json | None = None
) -> AsyncIterator[RealNode]:
    """As :func:`real_nodes`, for one node."""
    async with real_nodes(environ, log, 1, shared=shared, config=config) as (node,):
        yield node


@contextlib.asynccontextmanager
async def real_nodes(
    environ: Mapping[str, str], log: Log, count: int, *, shared: bool = False, config: Json | None = None
) -> AsyncIterator[list[RealNode]]:
    """Nodes with a ready agent each, and no workload. Raises AssertionError when that cannot be had.

    Nodes that the cluster lacks are started, and stay. ``config``: of the agents, not the soak's. The caller restores
    the nodes; here that is done only when something fails.
    """
    api = KubernetesCluster.from_kubeconfig(Path(environ["KUBECONFIG"]).expanduser())
    locks = f"/tmp/drabridge-soak-{secrets.token_hex(4)}"
    try:
        if count == 1:
            made = [RealNode(api, await chosen_node(api, environ), locks, log, shared=shared, config=config)]
        else:
            names = await asyncio.to_thread(enough, Cluster.open(Path(environ["DRABRIDGE_TEST_CLUSTER"])), count)
            objects = [await api.get(NODES, name) for name in names]
            made = [RealNode(api, one, locks, log, shared=shared, config=config, of=names) for one in objects]
        for one in made:
            one.locks.mkdir()
        await restored(made)  # leftovers of a killed run
        try:
            await made[0].install()
            for one in made:
                await wait_for(one, f"the agent of {one.object_name} to be ready", one.ready)
            yield made
        except BaseException:
            with contextlib.suppress(AssertionError, DrabridgeError):
                await restored(made)
            raise
    finally:
        api.close()


def enough(cluster: Cluster, count: int) -> list[str]:
    """Start the nodes that the cluster lacks; return the names of the first ones, as many as wanted."""
    for number in range(len(cluster.spec.nodes), count):
        cluster.add(NodeSpec(f"node-{chr(ord('a') + number)}", 0, cluster.spec.release))
    return [one.name for one in cluster.spec.nodes[:count]]


async def restored(nodes: Sequence[RealNode]) -> None:
    """The cluster as it was, and no ledger on any node. Raises AssertionError for what does not go."""
    first, *others = nodes
    for one in others:
        await apply_node(one, {})
    await first.restore()  # the namespace goes with it, and so all agents
    for one in others:
        one.forget()
