"""Full and read-only disks: the agent grants nothing that it cannot record, and loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from drabridge.containers.cdi_spec import CdiDevice, ContainerEdits
from drabridge.containers.cdi_store import CdiStore, Family
from drabridge.errors import HostError
from drabridge.inventory.devices import DeviceNode
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from drabridge.sim.kubelet.timings import Timings
from tests.support.agent_checks import alive, holding, owners, said_in_one_line, unharmed
from tests.support.agent_process import RESOURCE, AgentProcess, lists_read, pod
from tests.support.waiting import HANG_SECONDS, short_directory, until


def _may_mount() -> str:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return "mounting needs root"
    with short_directory() as place:
        done = subprocess.run(["mount", "-t", "tmpfs", "none", str(place)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"mounting is not allowed here: {done.stderr.strip()}"
        subprocess.run(["umount", str(place)], check=True)
    return ""


REASON = _may_mount()
pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(REASON), reason=REASON)]


@contextlib.contextmanager
def mounted(place: Path, *arguments: str) -> Iterator[None]:
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", *arguments, str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextlib.contextmanager
def read_only(place: Path) -> Iterator[None]:
    """Whatever is opened by its path below ``place`` from now on is read-only."""
    with mounted(place, "--bind", str(place)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(place)], check=True)
        yield


def fill(place: Path) -> Path:
    """A file that takes every byte that is left."""
    path = place / "fill"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)
    return path


def test_removing_a_missing_file_succeeds_on_a_read_only_disk(tmp_path: Path) -> None:
    store = CdiStore(tmp_path / "cdi", "v.example.com")
    edits = ContainerEdits((DeviceNode("/dev/null", "/dev/null"),))
    store.write(store.claim_spec("there", [CdiDevice("x", edits)]))
    with read_only(store.directory):
        assert not store.remove(Family.CLAIM, "not-there")
        with pytest.raises(HostError, match="Read-only file system"):
            store.remove(Family.CLAIM, "there")


async def test_the_disk_of_the_ledger_is_full() -> None:
    with short_directory() as root:
        kubelet = SimKubelet(root, timings=Timings.fast())
        agent = AgentProcess(root)
        state = root / "plugins" / agent.driver
        with mounted(state, "-t", "tmpfs", "-o", "size=256k,mode=0700", "none"):
            await kubelet.start()
            await agent.start()
            try:
                await agent.ready()
                await lists_read(kubelet)
                assert (await kubelet.run_pod(pod("holder"))).phase is Phase.RUNNING
                held = await owners(agent)
                full = fill(state)
                # The journal's last block may have room for a grant; what is granted is on disk.
                status = await kubelet.run_pod(pod("either"))
                held = await owners(agent)
                assert len(held) == 1 + (status.phase is Phase.RUNNING)
                # Killed, it comes back with all of that; a new file has no room, so nothing more is granted.
                await agent.stop(signal.SIGKILL)
                await agent.start()
                await agent.up()
                await until(lambda: _owns(agent, held), 10, agent.text)
                # Only what pods have is offered: a scheduler sends no pod, and kubelet refuses one that comes.
                await kubelet.wait_for_resource(RESOURCE, healthy=len(held))
                assert (await kubelet.run_pod(pod("refused"))).phase is Phase.FAILED
                code, body = await agent.ask("/readyz")
                assert code == 503
                assert b"No space left on device" in body
                assert b"drabridge_ledger_healthy 0.0" in (await agent.ask("/metrics"))[1]
                await until(lambda: said_in_one_line(agent, "No space left on device"), 5)
                assert await owners(agent) == held
                full.unlink()
                # The agent tries again by itself.
                await kubelet.wait_for_resource(RESOURCE, healthy=4)
                await unharmed(agent, kubelet, held)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    await agent.stop(signal.SIGKILL)
                await kubelet.stop()


async def _owns(agent: AgentProcess, held: dict[str, str]) -> bool:
    return held.items() <= (await owners(agent)).items()


async def test_the_cdi_directory_becomes_read_only() -> None:
    async with holding() as (agent, kubelet, held):
        with read_only(agent.cdi):
            status = await kubelet.run_pod(pod("refused"))
            assert status.phase is Phase.FAILED
            assert "Read-only file system" in status.message
            await kubelet.wait_for_resource(RESOURCE, healthy=2)  # one failed; no other pod is to follow it
            assert b"Read-only file system" in (await agent.ask("/readyz"))[1]
            await until(lambda: said_in_one_line(agent, "Read-only file system"), 5)
            assert alive(agent)
            assert held.items() <= (await owners(agent)).items()
        await kubelet.wait_for_resource(RESOURCE, healthy=4)
        assert (await kubelet.run_pod(pod("next"))).phase is Phase.RUNNING
        assert alive(agent)
        assert held.items() <= (await owners(agent)).items()


async def test_the_state_directory_becomes_read_only() -> None:
    """The open journal can still be written; what needs a new file fails, and is said."""
    async with holding() as (agent, kubelet, held):
        with read_only(agent.control.parent):
            status = await kubelet.run_pod(pod("third"))
            assert status.phase in (Phase.RUNNING, Phase.FAILED)
            now = await owners(agent)
            assert held.items() <= now.items()
            assert (status.phase is Phase.RUNNING) == (len(now) == 3)
        await unharmed(agent, kubelet, now)


async def test_a_start_on_a_read_only_state_directory_is_one_line() -> None:
    with short_directory() as root:
        agent = AgentProcess(root)
        state = root / "plugins" / agent.driver
        state.mkdir(parents=True)
        with read_only(state):
            await agent.start()
            assert agent.process is not None
            assert await asyncio.wait_for(agent.process.wait(), HANG_SECONDS) == 1
            assert "Read-only file system" in agent.text()
            assert "Traceback" not in agent.text()
