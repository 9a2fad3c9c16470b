"""What a changed configuration changes in a running agent, and what it may not change."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import shutil
import signal
import time

from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from drabridge.sim.kubelet.timings import Timings
from tests.support.agent_checks import plugin_socket
from tests.support.agent_on_cluster import BOTH_LANES, bridge, claim_pod, end_claim, held_by_claim, pools
from tests.support.agent_process import CONFIG, DRIVER, RESOURCE, AgentProcess, metric, node, pod, reload
from tests.support.hostile_callers import allocate
from tests.support.waiting import short_directory, until

SAFETY = "safety: {minHoldSeconds: %s, unconfirmedSeconds: 2, absentSeconds: 0.4, settleSeconds: 1}\nresources:\n"


async def test_changed_safety_times_apply_to_devices_already_held() -> None:
    long, short = (CONFIG.replace("resources:\n", SAFETY % seconds) for seconds in (3600, 0.4))
    async with node(long) as (agent, kubelet):
        await kubelet.run_pod(pod("a"))
        (name,) = kubelet.resources[RESOURCE].allocated

        async def looked_at() -> str:
            """The owner after one more round of evidence."""
            await agent.ask("/release", json.dumps({"device": name}).encode())
            return str((await agent.device(name))["owner"])

        assert await looked_at() == "legacy"  # kubelet shows the pod by now
        await kubelet.delete_pod("uid-a")

        async def too_young() -> bool:
            assert await looked_at() == "legacy"
            return await metric(agent, "hold_reason", reason="too-young") == 1

        await until(too_young, 10, agent.text)
        reload(agent, short)

        async def free() -> bool:
            return await looked_at() == "none"

        await until(free, 15, agent.text)


async def test_a_pod_whose_hold_is_being_written_keeps_its_device_when_a_reload_renames_it() -> None:
    with short_directory() as root:
        hold = root / "hold"
        agent = AgentProcess(root, command=("-m", "tests.support.agent_on_hanging_disk", str(hold)))
        async with SimKubelet(root, timings=Timings.fast()) as kubelet:
            await agent.start()
            try:
                await agent.ready()
                await kubelet.wait_for_resource(RESOURCE, healthy=4)
                hold.touch()
                running = asyncio.create_task(kubelet.run_pod(pod("a")))
                await until((root / "hold.hung").exists, 10, agent.text)
                began = time.time()
                reload(agent, CONFIG.replace('id: ["{sysname}"]', 'id: ["mem-{sysname}"]'))

                async def looked_again() -> bool:
                    return await metric(agent, "inventory_last_reconcile_timestamp_seconds") > began

                await until(looked_again, 10, agent.text)
                hold.unlink()
                status = await running
                assert status.phase is Phase.RUNNING, status.message
                await kubelet.wait_for_resource(RESOURCE, healthy=4)  # three by new names
                rows = {row["name"]: (row["presence"], row["owner"]) for row in (await agent.status())["devices"]}
                assert [state for state in rows.values() if "legacy" in state] == [("present", "legacy")], rows
            finally:
                hold.unlink(missing_ok=True)
                await agent.stop(signal.SIGKILL)


async def test_a_changed_pool_name_waits_until_no_claim_has_a_device() -> None:
    another = BOTH_LANES.replace("resources:", "dra: {pool: another}\nresources:")
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        (record,) = agent.root.rglob("claims/*.json")
        left = re.sub('"bootID": *"[^"]*"', '"bootID":"before"', record.read_text())

        async def noted(text: str) -> bool:
            return any(text in note for note in (await agent.status())["notes"])

        async def not_noted(text: str) -> bool:
            return not await noted(text)

        reload(agent, another)
        await until(lambda: noted("dra.pool: found another, and claims have"), 10, agent.text)
        assert pools(cluster) == {"node-a"}

        await agent.stop()
        await agent.start()
        await agent.ready()
        await until(lambda: noted("dra.pool: found another, and claims have"), 10, agent.text)
        assert await noted("All else in the file is in force")
        await cluster.apply(claim_pod("d"))
        await cluster.wait_pod("d")  # another device than the held one: that is not offered in another pool
        assert pools(cluster) == {"node-a"}

        for name in ("c", "d"):
            await end_claim(cluster, name)
        await until(lambda: pools(cluster) == {"another"}, 20, agent.text)
        await until(lambda: not_noted("dra.pool"), 10, agent.text)  # when all of the file is in force

        await agent.stop()
        record.write_text(left)  # kubelet forgot a claim, and it ended: it holds no device
        await agent.start()
        await agent.ready()
        assert pools(cluster) == {"another"}


async def test_a_reload_with_another_driver_is_refused_with_a_reason() -> None:
    async with node() as (agent, kubelet):
        reload(agent, CONFIG.replace(DRIVER, "other.example.com").replace("WHICH", "OTHER"))

        async def said() -> bool:
            notes = (await agent.status())["notes"]
            return any("other.example.com" in note and f"runs as {DRIVER}" in note for note in notes)

        await until(said, 10, agent.text)
        assert (await agent.status())["driver"] == DRIVER
        assert await metric(agent, "config_last_reload_successful") == 0
        await kubelet.run_pod(pod("a"))
        (file,) = agent.cdi.glob("*.json")
        assert file.name.startswith(DRIVER)
        assert "OTHER" not in file.read_text()  # nothing else of that file is taken either
        reload(agent, CONFIG)

        async def well() -> bool:
            return await metric(agent, "config_last_reload_successful") == 1

        await until(well, 10, agent.text)
        assert not await said()


async def test_events_are_written_after_the_first_reload_that_configures_claims() -> None:
    async with bridge(BOTH_LANES.replace("{legacy: 2, dra: 2}", '{legacy: "*", dra: 0}')) as (agent, cluster, _):
        reload(agent, BOTH_LANES)
        name = await held_by_claim(agent, cluster)
        assert (await allocate(plugin_socket(agent), [name]))[0] == "FAILED_PRECONDITION"
        await until(lambda: cluster.events(reason="AllocateRefused"), 10, agent.text)
        (event,) = cluster.events(reason="AllocateRefused")
        assert "claim default/c" in event["message"]


async def test_a_start_with_another_driver_is_refused_while_the_former_one_holds_devices() -> None:
    """As an upgrade that changes the driver's name: the new driver would know no claims."""
    async with node() as (agent, kubelet):
        await kubelet.run_pod(pod("a"))
        (name,) = kubelet.resources[RESOURCE].allocated
        await agent.stop()
        renamed = CONFIG.replace(DRIVER, "other.example.com")
        agent.config.write_text(renamed)
        await agent.start()
        assert agent.process is not None
        assert await agent.process.wait() == 2
        assert f"the driver {DRIVER} holds 1 of the configured devices: {name} is held by" in agent.text()
        assert f"remove {agent.control.parent}" in agent.text()
        # Other hardware may have an agent of its own, and a drained node any name.
        agent.config.write_text(renamed.replace(RESOURCE, "example.com/other"))
        agent.driver = "other.example.com"
        await agent.start()
        await agent.ready()
        await agent.stop()
        agent.config.write_text(renamed)
        shutil.rmtree(agent.root / "plugins" / DRIVER)
        await agent.start()
        await agent.ready()


async def test_a_reload_signal_never_ends_an_agent() -> None:
    async with node() as (agent, _):
        (agent.root / "second").mkdir()
        other = AgentProcess(agent.root / "second")
        (other.root / "plugins").symlink_to(agent.root / "plugins")
        await other.start()
        await until(lambda: "waiting for another agent to end" in other.text(), 10)
        assert other.process is not None
        other.process.send_signal(signal.SIGHUP)
        await asyncio.sleep(0.3)
        assert other.process.returncode is None
        await other.stop()


async def test_a_change_that_fails_for_a_moment_is_applied_later() -> None:
    async with node() as (agent, _):
        before = len((await agent.status())["devices"])
        assert agent.process is not None
        _, hard = resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (5, hard))  # it has more open already
        reload(agent, CONFIG.replace("random]", "random, urandom]"))
        await until(lambda: "the changed configuration is refused" in agent.text(), 10)
        resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (hard, hard))

        async def taken() -> bool:
            status = await agent.status()
            return len(status["devices"]) == before + 1 and "is refused" not in str(status["notes"])

        await until(taken, 10, agent.text)


async def test_a_removed_control_socket_is_created_again() -> None:
    async with node() as (agent, _):
        for away in (agent.control.unlink, lambda: agent.control.rename(agent.control.with_name("x"))):
            away()
            await agent.up(10)  # its file is there before it can be connected to
            assert (await agent.status())["ready"]


async def test_each_fault_of_a_refused_file_is_reported_separately() -> None:
    async with node(CONFIG) as (agent, _):
        reload(agent, CONFIG.replace("kind: AgentConfig", "kind: AgentConfig\nfoo: 1\nbar: 2"))

        async def refused() -> list[str]:
            notes = (await agent.status())["notes"]
            return [note for note in notes if note.startswith("configuration on disk is refused: ")]

        await until(refused, 10, agent.text)
        assert len(await refused()) == 2
        assert not any("\n" in note for note in await refused())
