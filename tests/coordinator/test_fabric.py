"""Devices that several nodes reach: the slices that a coordinator's process writes, and the taints of its checks."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drabridge.config.fabric import FabricDevice, TcpCheck
from drabridge.coordinator.pages import CoordinatorState, not_ready
from drabridge.offers.fabric import UNCHECKED, unreachable
from drabridge.offers.slices import Effect, slice_name
from drabridge.sim.apiserver.server import SimApiServer
from tests.support.agent_on_cluster import BOTH_LANES, bridge, claim_pod
from tests.support.agent_process import DRIVER
from tests.support.coordinators import CoordinatorProcess, running
from tests.support.waiting import short_directory, until

pytest.importorskip("kubernetes.leaderelection.resourcelock.leaselock", reason="needs kubernetes 37 or later")

POOL = f"{DRIVER}/fabric"
HEAD = f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
resources: [{{name: example.com/kvm, match: [{{sysname: kvm}}]}}]
"""
LICENCES = """
- name: licences
  pool: hall
  nodeSelector: {zone: [a, b], hall: "1"}
  sharing: {allowMultipleAllocations: true}
  capacity: {seats: {value: 4, requestPolicy: {default: 1}}}
"""


class Cluster:
    """A simulated API server, and the file that its coordinators follow."""

    def __init__(self, api: SimApiServer, root: Path) -> None:
        self.api = api
        self.file = root / "config.yaml"
        self._root = root
        self._kubeconfig = api.kubeconfig(root / "kubeconfig")

    def write(self, devices: str) -> None:
        self.file.write_text(HEAD + (f"fabric:\n{devices}" if devices else ""))

    def coordinator(self, identity: str = "one") -> CoordinatorProcess:
        return CoordinatorProcess(self._root, self._kubeconfig, identity, config=self.file)

    def slices(self, pool: str = POOL) -> list[dict[str, Any]]:
        found = [dict(one) for one in self.api.objects.list("resourceslices")]
        return sorted(
            (one for one in found if one["spec"]["pool"]["name"] == pool), key=lambda one: str(one["metadata"])
        )

    def devices(self, pool: str = POOL) -> list[str]:
        return [device["name"] for one in self.slices(pool) for device in one["spec"].get("devices", ())]

    def taints(self, device: str) -> list[tuple[str, str, str]] | None:
        """Of a device; None while it is in no slice."""
        for one in self.slices():
            for entry in one["spec"].get("devices", ()):
                if entry["name"] == device:
                    return [(taint["key"], taint["value"], taint["effect"]) for taint in entry.get("taints", ())]
        return None

    def writes(self) -> int:
        """How many writes of slices the server has seen, dry runs aside."""
        return sum(r.is_write and r.resource == "resourceslices" and "dryRun" not in r.query for r in self.api.requests)


@contextlib.asynccontextmanager
async def cluster(devices: str) -> AsyncIterator[Cluster]:
    with short_directory() as root:
        async with SimApiServer() as api:
            found = Cluster(api, root)
            found.write(devices)
            yield found


def cameras(count: int, rest: str = "") -> str:
    return "".join(f"- {{name: camera-{n:03}, attributes: {{type: {{value: camera}}}}{rest}}}\n" for n in range(count))


async def test_slices_say_which_nodes_reach_the_devices_and_follow_the_file() -> None:
    async with cluster(cameras(70) + LICENCES) as here:
        one = here.coordinator()
        pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
        foreign = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "foreign"}}
        here.api.objects.create({**foreign, "spec": {"driver": DRIVER, "nodeName": "n", "pool": pool}})
        async with running(one):
            await until(lambda: len(here.devices()) == 70, 10, one.text)
            first, second = here.slices()
            assert (first["spec"]["allNodes"], len(first["spec"]["devices"])) == (True, 64)
            assert [s["spec"]["pool"]["resourceSliceCount"] for s in (first, second)] == [2, 2]
            assert first["spec"]["devices"][0]["attributes"]["type"] == {"string": "camera"}
            await until(lambda: here.devices(f"{POOL}/hall") == ["licences"], 10, one.text)
            (hall,) = here.slices(f"{POOL}/hall")
            (term,) = hall["spec"]["nodeSelector"]["nodeSelectorTerms"]
            assert term["matchExpressions"] == [
                {"key": "hall", "operator": "In", "values": ["1"]},
                {"key": "zone", "operator": "In", "values": ["a", "b"]},
            ]
            (licences,) = hall["spec"]["devices"]
            assert licences["allowMultipleAllocations"]
            assert licences["capacity"]["seats"]["requestPolicy"] == {"default": "1"}
            assert here.writes() == 3

            here.file.write_text("resources: nonsense")
            await until(lambda: "the last good one stays" in one.text(), 30, one.text)
            here.write(cameras(2))
            await until(lambda: here.devices() == ["camera-000", "camera-001"], 30, one.text)
            await until(lambda: not here.slices(f"{POOL}/hall"), 10, one.text)
            (left,) = here.slices()
            assert left["spec"]["pool"]["generation"] == 2, "of another number of slices"
            here.api.objects.delete("resourceslices", left["metadata"]["name"])
            await until(lambda: here.devices() == ["camera-000", "camera-001"], 30, one.text)
            here.write("")
            await until(lambda: not here.slices(), 30, one.text)
            assert here.slices("n"), "a node's slices are not its own"


async def test_a_device_that_does_not_answer_has_a_taint_until_it_does() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        check = f"host: 127.0.0.1, port: {port}, everySeconds: 1, failures: 2"
        async with cluster(cameras(1, f", health: {{{check}, effect: NoExecute}}")) as here:
            one, key = here.coordinator(), f"{DRIVER}/unreachable"
            async with running(one):
                await until(lambda: here.taints("camera-000") == [], 10, one.text)
                listening.close()
                await until(lambda: here.taints("camera-000") == [(key, "refused", "NoExecute")], 20, one.text)
                (before,) = here.slices()
                assert before["spec"]["pool"]["generation"] == 1, "one slice that changed is no new generation"

                # Another one that begins to lead knows nothing: it takes the taint for right, and no device is free.
                two = here.coordinator("two")
                async with running(two):
                    writes = here.writes()
                    await one.stop(signal.SIGKILL)
                    await until(lambda: "leading" in two.text(), 20, two.text)
                    await asyncio.sleep(2.0)
                    assert here.writes() == writes, "the same slices again are no write"
                    assert here.slices() == [before], "when it was tainted is what eviction counts from"
                    with socket.create_server(("127.0.0.1", port), reuse_port=True):
                        await until(lambda: here.taints("camera-000") == [], 20, two.text)


async def test_a_new_device_is_for_nobody_until_it_has_answered_once() -> None:
    async with cluster(cameras(1, ", health: {host: 192.0.2.1, port: 9, timeoutSeconds: 30}")) as here:
        one, key = here.coordinator(), f"{DRIVER}/unreachable"
        async with running(one):
            await until(lambda: here.taints("camera-000") == [(key, "unchecked", "NoSchedule")], 10, one.text)
            here.api.faults.fail(2, 403, verb="create", resource="resourceslices")
            here.write(cameras(70))
            await until(lambda: len(here.devices()) == 70 and here.taints("camera-000") == [], 20, one.text)
            assert "fabric devices not published" in one.text()


def test_a_device_that_was_not_checked_yet_evicts_nobody() -> None:
    """Who begins to lead after somebody deleted the slices knows of none: pods have its devices all the same."""
    entry = FabricDevice(name="camera", health=TcpCheck(host="camera", port=554, effect="NoExecute"))
    assert unreachable(DRIVER, entry, UNCHECKED).effect is Effect.NO_SCHEDULE
    assert unreachable(DRIVER, entry, "timeout").effect is Effect.NO_EXECUTE


async def test_what_the_server_refuses_or_nobody_can_read_stops_no_other_pool() -> None:
    alone = "".join(f"- {{name: {name}, pool: {name}}}\n" for name in ("first", "last"))
    async with cluster(alone) as here:
        foreign = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
        taken = {"name": slice_name(DRIVER, f"{DRIVER}.fabric.first", 0)}
        pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
        here.api.objects.create(
            {**foreign, "metadata": taken, "spec": {"driver": DRIVER, "nodeName": "n", "pool": pool}}
        )
        strange = {"driver": DRIVER, "allNodes": True, "pool": {**pool, "name": POOL}}
        here.api.objects.create({**foreign, "metadata": {"name": "strange"}, "spec": strange})
        stored = next(one for one in here.api.objects.peek("resourceslices") if one["metadata"]["name"] == "strange")
        stored["spec"]["devices"] = [{"name": 7}]
        one = here.coordinator()
        async with running(one):
            await until(lambda: here.devices(f"{POOL}/last") == ["last"], 10, one.text)
            assert not here.slices(), "nobody knows what it offers"
            await until(lambda: "fabric devices not published" in one.text(), 10, one.text)
            here.api.objects.delete("resourceslices", taken["name"])
            await until(lambda: here.devices(f"{POOL}/first") == ["first"], 60, one.text)


def test_a_leader_that_cannot_publish_is_not_ready() -> None:
    state: dict[str, Any] = {"leads": True, "claims": 0, "unheard_seconds": 0, "lease_seconds": 15}
    state |= {"unfollowed_seconds": 0, "unwritten_seconds": 0}
    assert not list(not_ready(CoordinatorState(**state, unpublished_seconds=9)))
    (why,) = not_ready(CoordinatorState(**state, unpublished_seconds=11))
    assert why == "fabric devices could not be published for 11 s"


async def test_a_wrong_file_and_another_drivers_are_refused_at_the_start() -> None:
    async with cluster("- {name: A}\n") as here:
        one = here.coordinator()
        await one.start()
        assert await one.ended() == 2
        assert "fabric[0].name" in one.text()
        here.file.write_text(HEAD.replace(DRIVER, "other.example.com"))
        two = here.coordinator("two")
        await two.start()
        assert await two.ended() == 2
        assert "other.example.com" in two.text()


async def test_a_pod_gets_what_the_coordinator_published_and_an_agent_that_starts_holds_nothing_for_it() -> None:
    """On a node without any device for claims; records are lost, and the claim's CDI file is left."""
    config = BOTH_LANES.replace("dra: 2", "dra: 0") + "fabric:\n" + cameras(1)
    config += "- {name: zero, pool: alone, env: {A: a}}\n- {name: front-zero, pool: alone, env: {B: b}}\n"
    async with bridge(config) as (agent, sim, _):
        one = CoordinatorProcess(agent.root.parent, agent.root.parent / "kubeconfig", config=agent.config)
        async with running(one):
            await sim.apply(claim_pod("both", 3))
            await sim.wait_pod("both")
            results = (sim.get("resourceclaims", "both") or {})["status"]["allocation"]["devices"]["results"]
            assert {result["pool"] for result in results} == {POOL, f"{POOL}/alone"}
            await agent.stop(signal.SIGKILL)
            shutil.rmtree(agent.root / "plugins" / DRIVER / "claims")
            await agent.start()
            await agent.ready()
            assert (await agent.device("zero"))["owner"] == "none", "it has the name of a fabric device"
            assert "its devices are held" not in agent.text(), "it has none of this node"
            await sim.delete("pods", "both")
