"""A real agent beside a simulated kubelet: what kubelet, a container runtime and a person see."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
import time
from pathlib import Path

from drabridge.sim.kubelet.pods import Phase
from drabridge.sim.kubelet.runtime import MemoryRuntime
from tests.support.agent_process import CONFIG, RESOURCE, AgentProcess, node, pod
from tests.support.waiting import HANG_SECONDS, PATIENCE, short_directory, until


async def test_registers_lists_and_answers_with_cdi() -> None:
    async with node() as (agent, kubelet):
        await kubelet.wait_for_resource(RESOURCE, healthy=4)
        assert kubelet.node_status()["capacity"][RESOURCE] == 4
        status = await kubelet.run_pod(pod("a", 2))
        assert status.phase is Phase.RUNNING
        files = sorted(agent.cdi.glob("*.json"))
        assert len(files) == 2
        names = set()
        for file in files:
            spec = json.loads(file.read_text())
            edits = spec["devices"][0]["containerEdits"]
            assert edits["deviceNodes"][0]["path"] == f"/dev/our-{edits['env'][0].removeprefix('WHICH=')}"
            names.add(f"{spec['kind']}={spec['devices'][0]['name']}")
        assert isinstance(kubelet.node.runtime, MemoryRuntime)
        given = kubelet.node.runtime.running["uid-a", "main"]
        assert set(given.cdi_devices) == {f"{name}.joined" for name in names}
        assert sorted(given.envs["WHICH"].split(",")) == sorted(name.rpartition("-")[2] for name in names)


async def test_an_agent_that_is_killed_keeps_what_pods_hold() -> None:
    async with node() as (agent, kubelet):
        await kubelet.run_pod(pod("a", 2))
        held = {row["name"] for row in (await agent.status())["devices"] if row["owner"] == "legacy"}
        await agent.stop(signal.SIGKILL)
        await agent.start()
        await agent.ready()
        await kubelet.wait_for_resource(RESOURCE, healthy=4)
        assert {row["name"] for row in (await agent.status())["devices"] if row["owner"] == "legacy"} == held
        status = await kubelet.run_pod(pod("b", 2))
        assert status.phase is Phase.RUNNING
        assert (await kubelet.run_pod(pod("c", 1))).phase is Phase.FAILED


async def test_the_agent_registers_again_after_the_plugin_directory_was_removed() -> None:
    async with node() as (agent, kubelet):
        await kubelet.stop()
        await until(lambda: _removed(kubelet.node.device_plugin_dir), why="the agent never stopped binding sockets")
        await asyncio.sleep(0.2)
        await kubelet.start()
        await kubelet.wait_for_resource(RESOURCE, healthy=4)
        await agent.ready()


def _removed(directory: Path) -> bool:
    """Remove a directory, and say whether it is gone: in the meantime the agent may have bound a socket there anew."""
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


async def test_readiness_says_that_kubelet_is_not_there_yet() -> None:
    with short_directory() as root:
        agent = AgentProcess(root)
        await agent.start()
        try:
            await agent.up()
            await until(lambda: _says(agent, "/readyz", 503, RESOURCE), 10)
            assert (await agent.ask("/healthz"))[0] == 200
        finally:
            assert await agent.stop() == 0
        assert not list((root / "plugins" / agent.driver).glob("*.sock"))


async def _says(agent: AgentProcess, path: str, code: int, word: str) -> bool:
    status, body = await agent.ask(path)
    return status == code and word.encode() in body


async def test_a_bad_configuration_is_refused_with_every_error_and_the_old_one_stays() -> None:
    async with node() as (agent, kubelet):
        good = agent.config.read_text()
        agent.config.write_text(
            good.replace("subsystem: mem", "subsystm: mem").replace("name: example", "name: Exa mple")
        )
        await until(lambda: agent.text().count("is refused") >= 2, 10, agent.text)
        assert "subsystem" in agent.text()
        assert (await kubelet.run_pod(pod("a"))).phase is Phase.RUNNING
        assert any("refused" in note for note in (await agent.status())["notes"])
        assert b"drabridge_config_last_reload_successful 0.0" in (await agent.ask("/metrics"))[1]
        agent.config.write_text(good + "- name: example.com/tty\n  match: [{subsystem: tty, sysname: tty0}]\n")
        await kubelet.wait_for_resource("example.com/tty", healthy=1)
        assert kubelet.pod_status("uid-a").phase is Phase.RUNNING
        registered = agent.text().count(f'"registered with kubelet" resource={RESOURCE}')
        assert registered == 1  # what did not change was not restarted
        agent.config.write_text(good)
        await until(lambda: kubelet.node_status()["allocatable"].get("example.com/tty") == 0, 10)


async def test_hup_reads_the_file_again_even_if_it_looks_untouched() -> None:
    async with node() as (agent, kubelet):
        before = agent.config.stat()
        with agent.config.open("r+") as file:
            text = file.read().replace("full", "kmsg")
            file.seek(0)
            file.write(text)
        os.utime(agent.config, ns=(before.st_atime_ns, before.st_mtime_ns))
        await asyncio.sleep(2.5)  # longer than the follower's look at the file
        assert "kmsg" not in kubelet.resources[RESOURCE].devices
        assert agent.process is not None
        agent.process.send_signal(signal.SIGHUP)
        await until(lambda: "kmsg" in kubelet.resources[RESOURCE].healthy, 10, agent.text)
        assert "full" not in kubelet.resources[RESOURCE].healthy


async def test_a_bad_configuration_at_start_exits_2_with_every_fault() -> None:
    with short_directory() as root:
        agent = AgentProcess(root, CONFIG.replace("mem,", "mem, bogus: 1,").replace("match:", "mtch:"))
        await agent.start()
        assert await asyncio.wait_for(agent.process.wait(), HANG_SECONDS) == 2  # type: ignore[union-attr]
        assert "mtch" in agent.text()
        assert "Traceback" not in agent.text()


async def test_a_port_in_use_is_reported_in_one_line() -> None:
    async with node() as (agent, _):
        with short_directory() as root:
            server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            other = AgentProcess(root, arguments=("--listen", f"127.0.0.1:{port}"))
            await other.start()
            assert await asyncio.wait_for(other.process.wait(), HANG_SECONDS) == 2  # type: ignore[union-attr]
            assert f"cannot listen on 127.0.0.1:{port}" in other.text()
            assert "Traceback" not in other.text()
            server.close()
        await agent.ready()


async def test_files_of_the_agent_are_readable_by_root_only() -> None:
    async with node() as (agent, kubelet):
        state = agent.root / "plugins" / agent.driver
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        sockets = [*kubelet.node.device_plugin_dir.glob("drabridge-*"), agent.control]
        assert len(sockets) == 2
        for path in [*sockets, *(path for path in state.iterdir() if path.is_file())]:
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


async def test_a_plugin_directory_that_is_a_file_is_reported_and_recovered_from() -> None:
    with short_directory() as root:
        place = root / "device-plugins"
        place.write_text("in the way")
        agent = AgentProcess(root)
        await agent.start()
        try:
            await agent.up()
            await until(lambda: str(place) in agent.text(), 10, agent.text)
            place.unlink()
            place.mkdir()
            await until(lambda: list(place.glob("drabridge-*")), 40, agent.text)
        finally:
            assert await agent.stop() == 0


async def test_a_state_directory_that_cannot_be_made_is_reported_in_one_line() -> None:
    with short_directory() as root:
        (root / "plugins").write_text("in the way")
        agent = AgentProcess(root)
        await agent.start()
        assert await asyncio.wait_for(agent.process.wait(), HANG_SECONDS) == 1  # type: ignore[union-attr]
        assert "cannot be used" in agent.text()
        assert "Traceback" not in agent.text()


async def test_metrics_tell_who_holds_what() -> None:
    async with node() as (agent, kubelet):
        await kubelet.run_pod(pod("a"))
        await kubelet.run_pod(pod("b", 9))
        code, body = await agent.ask("/metrics")
        text = body.decode()
        assert code == 200
        assert f'drabridge_devices{{health="present",resource="{RESOURCE}"}} 4.0' in text
        assert f'drabridge_registered{{api="deviceplugin",resource="{RESOURCE}"}} 1.0' in text
        assert f'drabridge_allocations_total{{api="deviceplugin",resource="{RESOURCE}",result="OK"}} 1.0' in text
        assert 'drabridge_device_allocation_info{api="deviceplugin"' in text


async def test_a_busy_agent_stops_in_time() -> None:
    """The limit of 3 s is for an otherwise idle machine."""
    async with node() as (agent, kubelet):
        await asyncio.gather(*(kubelet.run_pod(pod(f"p{n}")) for n in range(4)))
        before = time.monotonic()
        assert await agent.stop() == 0
        assert time.monotonic() - before < 3 * PATIENCE
        assert sorted(path.name for path in agent.cdi.glob("*.json"))  # pods live on: their CDI files stay
        assert not list(Path(kubelet.node.device_plugin_dir).glob("drabridge-*"))


async def test_each_new_kubelet_is_counted_once_and_the_first_one_is_no_restart() -> None:
    two = (
        CONFIG
        + """\
- name: example.com/tty
  match: [{subsystem: tty, sysname: tty0}]
"""
    )

    async def counted(agent: AgentProcess, times: int) -> bool:
        return f"drabridge_kubelet_restarts_total {times}.0" in (await agent.ask("/metrics"))[1].decode()

    async with node(two) as (agent, kubelet):
        assert await counted(agent, 0)
        for times in (1, 2):
            await kubelet.restart()
            await kubelet.wait_for_resource(RESOURCE, healthy=4)
            await kubelet.wait_for_resource("example.com/tty")
            await until(lambda times=times: counted(agent, times))  # type: ignore[misc]
