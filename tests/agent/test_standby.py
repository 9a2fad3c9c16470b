"""A standby beside a serving agent: it says that it waits, disturbs nobody, and takes over at the other's end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket

import pytest

from drabridge.cli import main
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from tests.support.agent_process import CONFIG, AgentProcess, address_of, fetch, lists_read, node, pod
from tests.support.servers import free_port
from tests.support.standby import asked, beside, standby_socket, streams_met
from tests.support.waiting import until


async def took_over(agent: AgentProcess, kubelet: SimKubelet, registrations: int) -> None:
    """Wait until the agent has registered, is ready, and kubelet has its list."""
    await until(lambda: len(kubelet.calls.of("Register")) >= registrations, 30, agent.text)
    await agent.ready()
    await lists_read(kubelet)


def sockets(agent: AgentProcess) -> dict[str, int]:
    """Every socket of the node by its path, with its inode."""
    found = [path for path in agent.root.rglob("*.sock") if path.is_socket() and not path.name.startswith("standby-")]
    return {str(path): path.stat().st_ino for path in found}


async def test_a_standby_is_ready_and_reports_its_role_and_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    async with node() as (first, kubelet):
        await kubelet.run_pod(pod("a"))
        before, written = sockets(first), sorted(os.listdir(first.cdi))
        assert first.process is not None
        async with beside(first, "second") as second:
            words = (
                f"standby: waiting for the ledger's lock held by pid {first.process.pid} in {first.control.parent}\n"
            )
            address = address_of(second)
            assert (await fetch(address, "/readyz"))[::2] == (200, words.encode())
            assert (await fetch(address, "/healthz"))[0] == 200
            assert b"\ndrabridge_standby 1.0\n" in (await fetch(address, "/metrics"))[2]
            assert (await fetch(address, "/"))[::2] == (200, words.encode()), "as through a port-forward to its pod"
            assert b"\ndrabridge_standby 0.0\n" in (await fetch(address_of(first), "/metrics"))[2]
            notes = (await first.status())["notes"]
            assert [note for note in notes if standby_socket(second).name in note], notes
            assert await asyncio.to_thread(main, ["status", "--socket", str(standby_socket(second))]) == 1
            said = capsys.readouterr().err
            assert "is a standby: waiting for the ledger's lock" in said
            assert str(first.control) in said
            assert (sockets(first), sorted(os.listdir(first.cdi))) == (before, written)
            assert len(kubelet.calls.of("Register")) == 1
            assert (await kubelet.run_pod(pod("b"))).phase is Phase.RUNNING
            assert await second.stop() == 0
        assert sockets(first) == before
        assert not list(first.control.parent.glob("standby-*"))
        assert not [note for note in (await first.status())["notes"] if "standby" in note]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_standby_takes_over_the_state_and_never_serves_beside_the_first_agent(number: signal.Signals) -> None:
    async with node() as (first, kubelet):
        async with beside(first, "second") as second:
            await kubelet.run_pod(pod("a"))  # after the standby had looked at the ledger
            held = {row["name"] for row in (await first.status())["devices"] if row["owner"] == "legacy"}
            with contextlib.suppress(ProcessLookupError):
                await first.stop(number)
            await took_over(second, kubelet, 2)
            rows = (await second.status())["devices"]
            assert {row["name"] for row in rows if row["owner"] == "legacy"} == held
            assert len(held) == 1
            assert not streams_met(kubelet)
            assert (await kubelet.run_pod(pod("b", 3))).phase is Phase.RUNNING
            assert not list(second.control.parent.glob("standby-*"))
            assert (await fetch(address_of(second), "/readyz"))[::2] == (200, b"ok\n")
            assert (await fetch(address_of(second), "/"))[0] == 200  # the page, now that there is something on it
            assert await second.stop() == 0
            assert not second.control.exists()


async def test_several_standbys_take_over_one_after_the_other() -> None:
    async with node() as (first, kubelet), beside(first, "second") as second, beside(first, "third") as third:
        current, waiting = first, [second, third]
        for registrations in (2, 3):
            await current.stop()
            await took_over(first, kubelet, registrations)  # either agent may answer
            (current,) = [agent for agent in waiting if "takes over" in agent.text()]
            waiting.remove(current)
        assert not streams_met(kubelet)
        assert (await kubelet.run_pod(pod("a", 4))).phase is Phase.RUNNING


async def test_devices_given_while_a_standby_waited_keep_their_names_under_its_other_configuration() -> None:
    """What the standby found for itself holds only if the other one remembered the same at its end."""
    renamed = CONFIG.replace('id: ["{sysname}"]', 'id: ["new-{sysname}"]')
    async with node() as (first, kubelet), beside(first, "second", renamed) as second:
        await kubelet.run_pod(pod("a"))
        (held,) = [row["name"] for row in (await first.status())["devices"] if row["owner"] == "legacy"]
        await first.stop()
        await took_over(second, kubelet, 2)
        rows = {row["name"]: row for row in (await second.status())["devices"] if row["presence"] == "present"}
        assert rows[held]["owner"] == "legacy"
        others = {"full", "null", "random", "zero"} - {held}
        assert rows.keys() == {held} | {f"new-{name}" for name in others}


async def test_a_configuration_that_changed_while_it_waited_is_taken_when_it_takes_over() -> None:
    async with node() as (first, kubelet), beside(first, "second") as second:
        second.config.write_text(CONFIG.replace("random]", "random, urandom]"))
        await first.stop()

        async def five() -> bool:
            with contextlib.suppress(OSError, IndexError):
                return len((await second.status())["devices"]) == 5
            return False

        await until(five, 30, second.text)
        assert kubelet.is_running


async def test_a_standby_with_a_bad_configuration_ends_with_2() -> None:
    async with node() as (first, _):
        second = AgentProcess(first.root, CONFIG)
        second.log, second.config = first.root / "second.log", first.root / "second.yaml"
        second.config.write_text(CONFIG.replace("kind: AgentConfig", "kind: Agent"))
        await second.start()
        assert second.process is not None
        assert await second.process.wait() == 2
        second.config.write_text(CONFIG)
        second.arguments = ("--listen", "192.0.2.1:9400")  # TEST-NET-1: an address of no machine
        await second.start()
        assert await second.process.wait() == 2
        assert "cannot listen on 192.0.2.1:9400" in second.text()
        assert (await first.status())["ready"]


async def test_on_the_hosts_network_a_standby_gets_the_port_when_the_first_agent_ends() -> None:
    port = free_port()
    listen = ("--listen", f"127.0.0.1:{port}")
    async with node() as (before, kubelet):
        await before.stop()
        first = AgentProcess(before.root, arguments=listen)
        await first.start()
        try:
            await took_over(first, kubelet, 2)
            async with beside(first, "second") as second:
                assert (await fetch(f"127.0.0.1:{port}", "/readyz"))[2] == b"ok\n"  # the first one's
                await first.stop()
                await took_over(second, kubelet, 3)
                await until(lambda: f"msg=listening address=127.0.0.1:{port}" in second.text(), 10, second.text)
                assert (await fetch(f"127.0.0.1:{port}", "/readyz"))[2] == b"ok\n"
                assert (await fetch(f"127.0.0.1:{port}", "/"))[0] == 200
        finally:
            with contextlib.suppress(ProcessLookupError):
                await first.stop(signal.SIGKILL)


async def test_a_port_in_use_for_a_moment_is_taken_later() -> None:
    """The port is free again while the agent has no file descriptors left."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        async with node() as (first, kubelet), beside(first, "second", "", "--listen", address) as second:
            await first.stop()
            await took_over(second, kubelet, 2)
            assert second.process is not None
            limits = resource.prlimit(second.process.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(second.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
            await until(lambda: 'msg="task failed' in second.text(), 10, second.text)
            resource.prlimit(second.process.pid, resource.RLIMIT_NOFILE, limits)
            taken.close()
            await until(lambda: f"msg=listening address={address}" in second.text(), 10, second.text)
            assert (await fetch(address, "/healthz"))[0] == 200


async def test_a_removed_lock_file_lets_no_second_agent_in() -> None:
    async with node() as (first, kubelet), beside(first, "second") as second:
        (first.control.parent / "ledger.lock").unlink()
        (first.control.parent / "ledger.jsonl").unlink()  # so that it is written anew, which takes the lock again
        await kubelet.run_pod(pod("a"))
        assert (await first.status())["ready"]
        assert json.loads((await asked(standby_socket(second), "/status"))[1])["error"]  # still one
        await first.stop()
        await took_over(second, kubelet, 2)
        assert not streams_met(kubelet)
