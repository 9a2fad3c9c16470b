"""A real agent as a process of its own, on this machine's real devices, beside a simulated kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from drabridge.sim.kubelet.calls import Call
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Container, PodSpec
from drabridge.sim.kubelet.timings import Timings
from tests.support import forks
from tests.support.waiting import HANG_SECONDS, PATIENCE, short_directory, until

# Memory devices (/dev/null and its kin) are udev devices of every Linux machine, for root and others alike.
RESOURCE = "example.com/mem"
DRIVER = "mem.example.com"
CONFIG = f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
resources:
- name: {RESOURCE}
  match: [{{subsystem: mem, sysname: [zero, "null", full, random]}}]
  id: ["{{sysname}}"]
  nodes: [{{from: devnode, as: "/dev/our-{{sysname}}"}}]
  env: {{WHICH: "{{sysname}}"}}
"""
IDS = ("full", "null", "random", "zero")  # of its devices
QUICK = CONFIG.replace(
    "resources:\n",
    "safety: {minHoldSeconds: 0.4, unconfirmedSeconds: 2, absentSeconds: 0.4, settleSeconds: 1}\nresources:\n",
)
"""The same, with safety times that a test can wait for."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

COMMAND = ("-m", "tests.support.umockdev_agent" if "umockdev" in os.environ.get("LD_PRELOAD", "") else "drabridge")


def python_path() -> str:
    """Where an agent's Python finds this checkout, and all that this process finds by PYTHONPATH."""
    return os.pathsep.join(filter(None, (str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH"))))


class AgentProcess:
    """``drabridge run`` with everything below one short directory."""

    def __init__(
        self,
        root: Path,
        config: str = CONFIG,
        driver: str = DRIVER,
        arguments: tuple[str, ...] = (),
        command: tuple[str, ...] = COMMAND,
    ) -> None:
        self.root = root
        self.driver = driver
        self.config = root / "config.yaml"
        self.config.write_text(config)
        self.log = root / "agent.log"
        self.arguments = arguments
        self.command = command  # what Python runs; another one is how a check is checked
        self.process: asyncio.subprocess.Process | forks.Forked | None = None

    @property
    def control(self) -> Path:
        return self.root / "plugins" / self.driver / "control.sock"

    @property
    def cdi(self) -> Path:
        return self.root / "cdi"

    async def start(self) -> None:
        words = (
            *(*self.command, "run", "--config", str(self.config), "--node-name", "node-a"),
            *("--kubelet-dir", str(self.root), "--cdi-dir", str(self.cdi), "--listen", "127.0.0.1:0"),
            *self.arguments,
        )
        self.process = await forks.start(words, self.log, {**os.environ, "PYTHONPATH": python_path()})

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal; returns the exit status."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 10 * PATIENCE)

    async def ask(self, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body of a page on the control socket."""
        reader, writer = await asyncio.open_unix_connection(str(self.control))
        verb = "GET" if body is None else "POST"
        writer.write(
            f"{verb} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body or b'')}\r\n\r\n".encode() + (body or b"")
        )
        try:
            answer = await asyncio.wait_for(reader.read(), 10 * PATIENCE)
        finally:
            writer.close()
        head, _, rest = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), rest

    async def status(self) -> dict[str, Any]:
        code, body = await self.ask("/status")
        assert code == 200, body
        found: dict[str, Any] = json.loads(body)
        return found

    async def owners(self) -> dict[str, str]:
        """Device -> owner."""
        return {row["name"]: row["owner"] for row in (await self.status())["devices"]}

    async def device(self, name: str) -> dict[str, Any]:
        """What status says of it; {} while the agent has not looked for devices yet."""
        rows: list[dict[str, Any]] = (await self.status())["devices"]
        return next((row for row in rows if row["name"] == name), {})

    async def ready(self, seconds: float = 30.0) -> None:
        await until(lambda: self._answers("/readyz"), seconds, self.text)

    async def up(self, seconds: float = 30.0) -> None:
        """Until it answers on its control socket (a socket file may be an earlier agent's)."""
        await until(lambda: self._answers("/healthz"), seconds, self.text)

    async def _answers(self, path: str) -> bool:
        with contextlib.suppress(OSError, TimeoutError, IndexError):
            return (await self.ask(path))[0] == 200
        return False

    def text(self) -> str:
        return self.log.read_text(errors="replace")


async def drain_command(*words: str, output: str = "json") -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``drabridge drain``; the words say which agent or cluster."""
    return await forks.said("-m", "drabridge", "drain", "-o", output, *words)


@contextlib.asynccontextmanager
async def node(
    config: str = CONFIG, driver: str = DRIVER, *, ready: bool = True, **kubelet: Any
) -> AsyncIterator[tuple[AgentProcess, SimKubelet]]:
    """A started kubelet and a started agent; both are ended, and nothing of them stays.

    ``ready`` waits until the agent is, and kubelet has its lists: an agent whose configuration has a claims lane never
    is without an API server.
    """
    with short_directory() as root:
        simulated = SimKubelet(root, timings=kubelet.pop("timings", Timings.fast()), **kubelet)
        agent = AgentProcess(root, config, driver)
        await simulated.start()
        await agent.start()
        try:
            if ready:
                await agent.ready()
                await lists_read(simulated)
            yield agent, simulated
        finally:
            with contextlib.suppress(ProcessLookupError):
                await agent.stop(signal.SIGKILL)
            await simulated.stop()


async def lists_read(kubelet: SimKubelet) -> None:
    """Until kubelet has read a list of every registered resource: until then it refuses their pods."""
    for resource in kubelet.resources:
        await kubelet.wait_for_resource(resource)


async def restart_kubelet(kubelet: SimKubelet) -> None:
    """A new kubelet; however late the agent is, its pods arrive after the lists, and are all admitted on return."""
    kubelet.faults.pods_arrive.clear()
    try:
        await kubelet.restart()
        await until(lambda: kubelet.resources, 20)
        await lists_read(kubelet)
    finally:
        kubelet.faults.pods_arrive.set()
    await kubelet.process.sources_ready.wait()


def cdi_devices(directory: Path) -> list[dict[str, Any]]:
    """The devices of all CDI files, each with its ``kind``; a file may be removed while they are read."""
    found = []
    for path in directory.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):
            document = json.loads(path.read_text())
            found += [{"kind": document["kind"], **device} for device in document["devices"]]
    return found


def pod(name: str, count: int = 1, resource: str = RESOURCE, **more: Any) -> PodSpec:
    """A pod with one container that asks for ``count`` devices."""
    return PodSpec("default", name, uid=f"uid-{name}", containers=(Container("main", {resource: count}),), **more)


async def metric(agent: AgentProcess, name: str, **labels: str) -> float:
    """The sum of the samples with these labels; 0 where there are none."""
    code, body = await agent.ask("/metrics")
    assert code == 200
    return sum(
        sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
        if sample.name == f"drabridge_{name}" and labels.items() <= sample.labels.items()
    )


async def held_by(agent: AgentProcess, pod: str, count: int) -> bool:
    """Whether a pod holds so many devices."""
    rows = (await agent.status())["devices"]
    return sum(pod in {one.get("pod") for one in row["holders"]} for row in rows) == count


async def drabridge(agent: AgentProcess, *words: str) -> tuple[int, str]:
    """Run a command about this agent; returns its exit status and all that it says."""
    code, out, err = await forks.said("-m", "drabridge", *words, "--socket", str(agent.control))
    return code, out + err


def reload(agent: AgentProcess, text: str) -> None:
    """Change the file, and do not wait until the agent looks at it."""
    agent.config.write_text(text)
    assert agent.process is not None
    agent.process.send_signal(signal.SIGHUP)


async def reconfigure(agent: AgentProcess, config: str, restart: bool) -> None:
    """The agent has the other configuration, by a reload or by a restart."""
    if restart:
        await agent.stop()
        agent.config.write_text(config)
        await agent.start()
        await agent.ready()
    else:
        agent.config.write_text(config)
        await until(lambda: "configuration reloaded" in agent.text(), 15, agent.text)


async def holder_shown(agent: AgentProcess) -> bool:
    """Whether kubelet shows a running holder of any device."""
    rows = (await agent.status())["devices"]
    return any(row["evidence"].startswith("running") for row in rows)


async def noted(agent: AgentProcess, text: str) -> bool:
    """Whether a note of the status has this text."""
    return any(text in note for note in (await agent.status())["notes"])


async def release(agent: AgentProcess, name: str) -> tuple[int, str]:
    """Release a device as the operator does; returns the HTTP status, and why it was refused."""
    code, body = await agent.ask("/release", json.dumps({"device": name}).encode())
    return code, str(json.loads(body).get("error", ""))


def registration_calls(kubelet: SimKubelet, method: str) -> list[Call]:
    """Kubelet's calls to the agent's registration socket."""
    return [call for call in kubelet.calls.of(method) if call.peer.startswith(DRIVER)]


def told_registered(kubelet: SimKubelet) -> bool:
    """Whether the last thing that the agent was told is that it is registered."""
    calls = registration_calls(kubelet, "NotifyRegistrationStatus")
    request: Any = calls[-1].request if calls else None
    return bool(calls) and not calls[-1].error and calls[-1].seconds is not None and request.plugin_registered


async def fetch(address: str, path: str = "/", host: str = "localhost:9400") -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a page on the agent's TCP port."""
    name, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), HANG_SECONDS)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    return int(lines[0].split()[1]), dict(line.split(": ", 1) for line in lines[1:]), body


def address_of(agent: AgentProcess) -> str:
    """HOST:PORT of the agent's pages, from its log."""
    found = re.search(r"msg=listening address=(\S+)", agent.text())
    assert found, agent.text()
    return found[1]
