"""The story: what happens to one node, told while it happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
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
from drabridge.sim.kubelet import SimKubelet
from drabridge.sim.pods import Container, PodSpec

WAIT_SECONDS = 20.0


class Story:
    """One node: a simulated kubelet in this process, the agent as a process of its own, between them real sockets."""

    def __init__(self, hardware: Hardware, tell: Narrator) -> None:
        self._hardware = hardware
        self._tell = tell
        self._root = Path(tempfile.mkdtemp(prefix="drabridge-", dir="/tmp"))
        self._kubelet = SimKubelet(self._root)
        self._agent: asyncio.subprocess.Process | None = None
        self._log = self._root / "agent.log"

    async def run(self) -> None:
        try:
            for chapter in (
                self._begin,
                self._start_agent,
                self._first_pod,
                self._unplug,
                self._restart_kubelet,
                self._kill_agent,
                self._too_many,
                self._status,
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
        tell.note("Simulated: kubelet (a copy of 1.36.2's behaviour, with its texts and its quirks), and containers.")
        tell.step("a kubelet starts")
        await self._kubelet.start()
        tell.note(f"It waits for device plugins on {self._kubelet.node.device_plugin_dir}/kubelet.sock.")

    async def _start_agent(self) -> None:
        tell = self._tell
        tell.step("the agent starts, with this configuration")
        config = self._root / "config.yaml"
        config.write_text(self._hardware.config)
        tell.block(self._hardware.config)
        started = time.monotonic()
        await self._spawn()
        await self._until(lambda: self._healthy() == self._hardware.count, "the devices never appeared")
        tell.took("from process start to registered and listed", time.monotonic() - started)
        self._tell_last("Register")
        self._tell_last("ListAndWatch")
        tell.came("node status", f"allocatable {RESOURCE}: {self._healthy()}")

    async def _first_pod(self) -> None:
        tell = self._tell
        tell.step(f"a pod asks for one: limits: {{{RESOURCE}: 1}}")
        with tell.timed("from admission to running"):
            status = await self._kubelet.run_pod(_pod("first", 1))
        self._tell_last("Allocate")
        tell.came("pod first", f"{status.phase}")
        for file in sorted((self._root / "cdi").glob("*.json")):
            spec = json.loads(file.read_text())
            edits = spec["devices"][0]["containerEdits"]
            node = edits["deviceNodes"][0]
            tell.note(
                f"The container's runtime reads {file.name}: it makes {node['path']} out of "
                f"{node.get('hostPath', node['path'])} and sets {', '.join(edits['env'])}."
            )

    async def _unplug(self) -> None:
        tell = self._tell
        tell.step("a device is unplugged, and plugged in again")
        if not self._hardware.can_unplug:
            tell.note("Left out: these devices cannot be unplugged. As root the demo makes loop devices, which can.")
            return
        # The pod holds the far end of the list; the first device is free.
        with tell.timed("from the kernel's event to kubelet"):
            name = self._hardware.unplug(0)
            await self._until(lambda: self._healthy() == self._hardware.count - 1, f"{name} stayed healthy")
        tell.came("ListAndWatch", f"{name} is Unhealthy; it stays listed, so that nothing trips over its absence")
        with tell.timed("and back"):
            self._hardware.plug_again(0)
            await self._until(lambda: self._healthy() == self._hardware.count, f"{name} did not come back")
        tell.came("node status", f"allocatable {RESOURCE}: {self._healthy()}")

    async def _restart_kubelet(self) -> None:
        tell = self._tell
        tell.step("kubelet restarts: it deletes every plugin's socket and forgets who registered")
        before = len(self._kubelet.calls.of("Register"))
        with tell.timed("down and up again, registered and listed"):
            await self._kubelet.restart()
            await self._until(lambda: len(self._kubelet.calls.of("Register")) > before, "no registration came")
            await self._until(lambda: self._healthy() == self._hardware.count, "the devices did not come back")
        tell.came("pod first", f"{self._kubelet.pod_status('uid-first').phase}, not disturbed")

    async def _kill_agent(self) -> None:
        tell = self._tell
        tell.step("the agent is killed (-9) and started again")
        agent = self._agent
        assert agent is not None
        agent.send_signal(signal.SIGKILL)
        await agent.wait()
        await self._until(lambda: self._healthy() == 0, "kubelet did not notice")
        tell.came("node status", "allocatable 0: kubelet noticed at once; the pod runs on")
        with tell.timed("from process start to registered and listed"):
            await self._spawn()
            await self._until(lambda: self._healthy() == self._hardware.count, "the devices did not come back")
        tell.note("It read its ledger: the first pod's device is still known as held.")

    async def _too_many(self) -> None:
        tell = self._tell
        tell.step(f"a pod asks for {self._hardware.count}, one more than are free")
        status = await self._kubelet.run_pod(_pod("greedy", self._hardware.count))
        tell.came("pod greedy", f"{status.phase}, {status.reason}: {status.message}")

    async def _status(self) -> None:
        tell = self._tell
        tell.step("what an operator sees: drabridge status")
        document = await asyncio.to_thread(ask, self._control, "/status")
        tell.block("\n".join(render(document, width=110)))

    async def _end(self) -> None:
        tell = self._tell
        tell.step("the agent stops (SIGTERM)")
        agent = self._agent
        assert agent is not None
        with tell.timed("gone"):
            agent.terminate()
            await asyncio.wait_for(agent.wait(), WAIT_SECONDS)
        tell.note("Its sockets are gone; the CDI file of the running pod stays, because kubelet will replay its name.")
        print()
        tell.head("Next: drabridge suggest /dev/YOUR-DEVICE writes a configuration for a device of yours.")

    # --- machinery --------------------------------------------------------------------------------------------------

    @property
    def _control(self) -> Path:
        return self._root / "plugins" / DRIVER / "control.sock"

    async def _spawn(self) -> None:
        with self._log.open("ab") as log:
            self._agent = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "drabridge", "run", "--config", str(self._root / "config.yaml")),
                *("--node-name", "node-a", "--kubelet-dir", str(self._root), "--cdi-dir", str(self._root / "cdi")),
                *("--listen", ""),
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
            )

    def _healthy(self) -> int:
        view = self._kubelet.resources.get(RESOURCE)
        return len(view.healthy) if view else 0

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
        while not condition():
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
            await self._kubelet.stop()
        self._hardware.clean_up()
        shutil.rmtree(self._root, ignore_errors=True)


def _pod(name: str, count: int) -> PodSpec:
    return PodSpec("default", name, uid=f"uid-{name}", containers=(Container("main", {RESOURCE: count}),))


def _short(message: Any) -> str:
    """A protobuf message on one line, as JSON, cut."""
    from google.protobuf.json_format import MessageToDict

    text = json.dumps(MessageToDict(message, preserving_proto_field_name=True))
    return text if len(text) <= 160 else f"{text[:157]}..."
