"""Play the demo: make things happen on one node, and explain each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drabridge.cli.agent_client import ask
from drabridge.cli.demo.hardware import DRIVER, RESOURCE, Hardware
from drabridge.cli.demo.narrator import Narrator
from drabridge.cli.status import render
from drabridge.errors import DrabridgeError, HostError
from drabridge.sim.cluster import ClusterTimings, SimCluster

WAIT_SECONDS = 60.0  # each step takes a second; on a busy machine it may take tens of seconds
RESTART_SECONDS = 1.0  # before an agent that ended is started again, as kubelet restarts a container
NODE = "node-a"

DEVICE_CLASS = f"""
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: disk}}
spec: {{selectors: [{{cel: {{expression: "device.driver == '{DRIVER}'"}}}}]}}
"""
CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: disk, namespace: default}
spec: {devices: {requests: [{name: one, exactly: {deviceClassName: disk}}]}}
"""


class Story:
    """Tell what happens on one node.

    The simulated cluster is in this process, the agent is a process of its own, and the sockets between them are real.
    ``stay``: keep all of it at the end until somebody interrupts it.
    """

    def __init__(self, hardware: Hardware, tell: Narrator, *, stay: bool = False) -> None:
        self._hardware = hardware
        self._tell = tell
        self._root = Path(tempfile.mkdtemp(prefix="dra", dir="/tmp"))
        self._cluster = SimCluster(self._root, nodes=(NODE,), timings=ClusterTimings.fast())
        self._kubelet = self._cluster.kubelets[NODE]
        self._node = self._root / NODE
        self._agent: asyncio.subprocess.Process | None = None
        self._log = self._root / "agent.log"
        self._listen = f"127.0.0.1:{_free_port()}" if stay else ""

    async def run(self) -> None:
        try:
            for chapter in (
                self._begin,
                self._start_agent,
                self._pod_with_limits,
                self._pod_with_claim,
                self._move_a_device,
                self._unplug,
                self._restart_kubelet,
                self._kill_agent,
                self._status,
                *([self._stay] if self._listen else []),
                self._end,
            ):
                await chapter()
        finally:
            await self._clean_up()

    # --- chapters ---------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        tell = self._tell
        tell.head("drabridge demo")
        tell.note(f"Real: the agent, every socket and message, the devices: {self._hardware.about}.")
        tell.note(
            "Simulated: the API server, the scheduler, kubelet (copies of Kubernetes 1.36.2, with its texts and its "
            "quirks; waits are shortened), and containers."
        )
        tell.step("a cluster with one node starts")
        await self._cluster.start()
        tell.note(f"API server: {self._cluster.api.url}. Kubelet: {self._kubelet.node.device_plugin_dir}/kubelet.sock.")

    async def _start_agent(self) -> None:
        tell = self._tell
        tell.step("the agent starts, with this configuration")
        (self._root / "config.yaml").write_text(self._hardware.config)
        tell.block(self._hardware.config)
        self._cluster.api.kubeconfig(self._root / "kubeconfig")
        with tell.timed("from process start to three devices at kubelet"):
            await self._spawn()
            await self._until(lambda: len(self._healthy()) == 3, "the devices never appeared")
        self._tell_last("Register")
        with tell.timed("and one in a ResourceSlice"):
            await self._until(lambda: len(self._published()) == 1, "no slice was published")
        tell.came("kubelet", f"allocatable {RESOURCE}: {len(self._healthy())}")
        tell.came("API server", f"ResourceSlice of {NODE}: {', '.join(self._published())}")

    async def _pod_with_limits(self) -> None:
        tell = self._tell
        tell.step(f"a pod asks in the old way: limits: {{{RESOURCE}: 1}}")
        with tell.timed("from its creation to running"):
            await self._cluster.apply(_pod("old-way", {"limits": {RESOURCE: 1}}))
            await self._cluster.wait_pod("old-way")
        self._tell_last("Allocate")
        self._tell_cdi("legacy")

    async def _pod_with_claim(self) -> None:
        tell = self._tell
        tell.step("a pod asks in the new way: a ResourceClaim")
        await self._cluster.apply(DEVICE_CLASS)
        with tell.timed("from its creation to running"):
            await self._cluster.apply(CLAIM)
            await self._cluster.apply(_pod("new-way", {"claims": [{"name": "disk"}]}, claim="disk"))
            await self._cluster.wait_pod("new-way")
        self._tell_last("NodePrepareResources")
        self._tell_cdi("claim")

    async def _move_a_device(self) -> None:
        tell = self._tell
        tell.step("the operator gives claims one more device, while both pods run: drabridge lanes set")
        wish = {"resource": RESOURCE, "legacy": 2, "dra": 2}
        with tell.timed("revoked from kubelet, acknowledged, published"):
            await asyncio.to_thread(ask, self._control, "/lanes", wish)
            await self._until(lambda: len(self._published()) == 2, "the device never moved")
        tell.came("kubelet", f"allocatable {RESOURCE}: {len(self._healthy())}")
        tell.came("API server", f"ResourceSlice of {NODE}: {', '.join(self._published())}")

    async def _unplug(self) -> None:
        tell = self._tell
        tell.step("a device is unplugged, and plugged in again")
        if not self._hardware.can_unplug:
            tell.note("Left out: these devices cannot be unplugged. As root the demo makes loop devices, which can.")
            return
        free = await self._free_legacy_device()
        before = len(self._healthy())
        with tell.timed("from the kernel's event to kubelet"):
            self._hardware.unplug(free)
            await self._until(lambda: len(self._healthy()) == before - 1, f"{free} stayed healthy")
        tell.came("ListAndWatch", f"{free} is Unhealthy; it stays listed, so that nothing trips over its absence")
        with tell.timed("and back"):
            self._hardware.plug_in(free)
            await self._until(lambda: len(self._healthy()) == before, f"{free} did not come back")

    async def _restart_kubelet(self) -> None:
        tell = self._tell
        tell.step("kubelet restarts: it deletes every plugin's socket, forgets who registered, wipes the node's slices")
        before, registrations = len(self._healthy()), len(self._kubelet.calls.of("Register"))
        started = time.monotonic()
        await self._kubelet.restart()
        await self._until(lambda: len(self._kubelet.calls.of("Register")) > registrations, "no registration came")
        await self._until(lambda: len(self._healthy()) == before, "the devices did not come back")
        tell.took("down and up again, registered and listed", time.monotonic() - started)
        await self._until(lambda: not self._published(), "the slices were not wiped")
        with tell.timed("slices wiped by kubelet, and back"):
            await self._until(lambda: len(self._published()) == 2, "the slices did not come back")
        tell.came("pods", f"{self._phases()}, not disturbed")

    async def _kill_agent(self) -> None:
        tell = self._tell
        tell.step("the agent is killed (-9) and started again")
        agent = self._agent
        assert agent is not None
        before = len(self._healthy())
        agent.send_signal(signal.SIGKILL)
        await agent.wait()
        await self._until(lambda: not self._healthy(), "kubelet did not notice")
        tell.came("kubelet", f"allocatable {RESOURCE}: 0; it noticed at once, and the pods run on")
        with tell.timed("from process start to registered and listed"):
            await self._spawn()
            await self._until(lambda: len(self._healthy()) == before, "the devices did not come back")
        tell.note("It has read its ledger: both pods' devices are known as held, and each lane is as it was.")

    async def _status(self) -> None:
        tell = self._tell
        tell.step("what an operator sees: drabridge status")
        document: dict[str, Any] = {}

        async def settled() -> bool:
            with contextlib.suppress(HostError):
                document.update(await asyncio.to_thread(ask, self._control, "/status"))
            return bool(document.get("ready"))

        await self._until(settled, "the agent did not become ready")
        tell.block("\n".join(render(document, width=118)))

    async def _stay(self) -> None:
        tell = self._tell
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        tell.step("it stays: try it from a second terminal, with the same virtual environment")
        kubelet = self._node / "pod-resources/kubelet.sock"
        tell.block(
            f"drabridge status --watch --socket {self._control}\n"
            f"drabridge lanes set {RESOURCE} legacy=1 dra=3 --socket {self._control}\n"
            f"curl -s http://{self._listen}/metrics\n"
            f"podresources list --socket {kubelet}\n"
            f"podresources export --listen :0 --socket {kubelet}\n"
            f"drabridge migrate report --kubeconfig {self._root / 'kubeconfig'}\n"
            f"tail -f {self._log}"
        )
        tell.note(f"The status page is http://{self._listen}/ in a browser. Kill the agent: it is started again.")
        tell.head("Ctrl-C ends it and removes everything.")
        while not ended.is_set():
            assert self._agent is not None
            waits = [asyncio.create_task(one) for one in (ended.wait(), self._agent.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in waits:
                task.cancel()
            if not ended.is_set():
                tell.note(f"The agent ended with status {self._agent.returncode}, and is started again.")
                await asyncio.sleep(RESTART_SECONDS)
                await self._spawn()

    async def _end(self) -> None:
        tell = self._tell
        tell.step("the agent stops (SIGTERM)")
        agent = self._agent
        assert agent is not None
        with tell.timed("gone"):
            agent.terminate()
            async with asyncio.timeout(WAIT_SECONDS):
                await agent.wait()
        tell.note("Its sockets are gone; the CDI files of running pods stay, because kubelet will replay their names.")
        print()
        tell.head("Next: drabridge suggest /dev/YOUR-DEVICE writes a configuration for a device of yours.")

    # --- machinery --------------------------------------------------------------------------------------------------

    @property
    def _control(self) -> Path:
        return self._node / "plugins" / DRIVER / "control.sock"

    async def _spawn(self) -> None:
        with self._log.open("ab") as log:
            self._agent = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "drabridge", "run", "--config", str(self._root / "config.yaml")),
                *("--node-name", NODE, "--kubelet-dir", str(self._node), "--cdi-dir", str(self._node / "cdi")),
                *("--listen", self._listen, "--kubeconfig", str(self._root / "kubeconfig")),
                stdout=log,
                stderr=log,
                start_new_session=True,  # a terminal's Ctrl-C is for this process, which then ends it
                env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
            )

    def _healthy(self) -> frozenset[str]:
        """Return the devices that kubelet would give out or has given out."""
        view = self._kubelet.resources.get(RESOURCE)
        return frozenset(view.healthy) if view else frozenset()

    def _published(self) -> list[str]:
        """Return the devices that the scheduler could give, or has given, to claims."""
        slices = self._cluster.api.objects.peek("resourceslices")
        devices = [device for one in slices for device in one["spec"].get("devices") or ()]
        return sorted(device["name"] for device in devices if not device.get("taints"))

    def _phases(self) -> str:
        pods = self._cluster.api.objects.peek("pods")
        return ", ".join(f"{pod['metadata']['name']} {pod['status']['phase']}" for pod in pods)

    async def _free_legacy_device(self) -> str:
        document = await asyncio.to_thread(ask, self._control, "/status")
        return next(
            str(row["name"]) for row in document["devices"] if row["lane"] == "legacy" and row["owner"] == "none"
        )

    def _tell_cdi(self, family: str) -> None:
        for file in sorted((self._node / "cdi").glob(f"*-{family}-*.json")):
            spec = json.loads(file.read_text())
            edits = spec["devices"][0]["containerEdits"]
            node = edits["deviceNodes"][0]
            self._tell.note(
                f"The container's runtime reads {file.name}: it makes {node['path']} out of "
                f"{node.get('hostPath', node['path'])} and sets {', '.join(edits['env'])}."
            )

    def _tell_last(self, method: str) -> None:
        calls = self._kubelet.calls.of(method)
        if not calls:
            return
        call = calls[-1]
        verb = self._tell.came if call.direction == "in" else self._tell.sent
        verb(f"{method} request", _short(call.request))
        if call.response is not None:
            answer = self._tell.sent if call.direction == "in" else self._tell.came
            answer(f"{method} response", _short(call.response))

    async def _until(self, condition: Callable[[], Any], otherwise: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not await _true(condition):
            if self._agent is not None and self._agent.returncode not in (None, -signal.SIGKILL):
                raise HostError(
                    f"the agent ended with status {self._agent.returncode}:\n{self._log.read_text()[-2000:]}"
                )
            if time.monotonic() > deadline:
                raise HostError(
                    f"{otherwise} within {WAIT_SECONDS:g} s; the agent said:\n{self._log.read_text()[-2000:]}"
                )
            await asyncio.sleep(0.0005)

    async def _clean_up(self) -> None:
        if self._agent is not None and self._agent.returncode is None:
            self._agent.kill()
            await self._agent.wait()
        with contextlib.suppress(DrabridgeError, OSError):
            await self._cluster.stop()
        self._hardware.clean_up()
        shutil.rmtree(self._root, ignore_errors=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


async def _true(condition: Callable[[], Any]) -> bool:
    result = condition()
    return bool(await result if asyncio.iscoroutine(result) else result)


def _pod(name: str, resources: dict[str, Any], claim: str = "") -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "any", "resources": resources}]}
    if claim:
        spec["resourceClaims"] = [{"name": claim, "resourceClaimName": claim}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def _short(message: Any) -> str:
    """Return a protobuf message on one line, as JSON, cut."""
    from google.protobuf.json_format import MessageToDict

    text = json.dumps(MessageToDict(message, preserving_proto_field_name=True))
    return text if len(text) <= 160 else f"{text[:157]}..."
